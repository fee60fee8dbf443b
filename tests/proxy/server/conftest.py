"""Share the fixtures of a bridge.toml and of commands in processes, and the echo application."""

import pytest

from tests.proxy.config.conftest import manage, toml  # noqa: F401 - fixtures

from .echo import Echo


@pytest.fixture
def echo() -> Echo:
    return Echo()
