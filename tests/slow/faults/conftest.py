"""One test environment (``World``) for each database, shared by all faults."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.fakes.servers.postgresql import Postgres

from .environment.invariants import World, running_world
from .environment.unreachable_upstreams import unreachable_places

DATABASES = ("sqlite", "postgresql")


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], World]]:
    """Return a function that starts the environment of a database on first use."""
    with contextlib.ExitStack() as stack:
        begun: dict[str, World] = {}

        def world_on(database: str) -> World:
            if database not in begun:
                folder = tmp_path_factory.mktemp(database)
                url = stack.enter_context(a_server()) if database == "postgresql" else ""
                places = stack.enter_context(unreachable_places(folder))
                world = running_world(folder / "gateway", url, places)
                begun[database] = stack.enter_context(world)
            return begun[database]

        yield world_on


@contextlib.contextmanager
def a_server() -> Iterator[str]:
    """Start a PostgreSQL server and yield its URL."""
    with Postgres() as server:
        yield server.url


@pytest.fixture(params=DATABASES)
def world(request: pytest.FixtureRequest, worlds: Callable[[str], World]) -> World:
    return worlds(request.param)
