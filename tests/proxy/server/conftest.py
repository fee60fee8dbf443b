"""Share the fixtures of a bridge.toml and of commands in processes, and the echo application."""

from collections.abc import Iterator

import pytest
import uvicorn

from tests.proxy.config.conftest import manage, toml  # noqa: F401 - fixtures
from tests.proxy.config.server_fixtures import served

from .echo import CurrentEcho, Echo


@pytest.fixture(scope="module")
def current_echo() -> CurrentEcho:
    return CurrentEcho()


@pytest.fixture(scope="module")
def echo_server(current_echo: CurrentEcho) -> Iterator[tuple[int, uvicorn.Server]]:
    """A server that the tests of a module share, because a start and an end wait for timers."""
    with served(current_echo, send_buffer=2_048) as running:
        yield running


@pytest.fixture
def echo(current_echo: CurrentEcho) -> Echo:
    """The application of one test, which records the requests of that test only."""
    current_echo.echo = Echo()
    return current_echo.echo


@pytest.fixture
def port(echo_server: tuple[int, uvicorn.Server], echo: Echo) -> int:
    """The port of the shared server, which serves ``echo``."""
    return echo_server[0]
