"""One world for each database, shared by all faults that are played."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.proxy.record.postgres import Postgres

from .places import unfriendly_places
from .world import World, running_world

DATABASES = ("sqlite", "postgresql")


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], World]]:
    """The gateway before its upstreams, with the database that is named; begun when asked for."""
    with contextlib.ExitStack() as stack:
        begun: dict[str, World] = {}

        def world_on(database: str) -> World:
            if database not in begun:
                folder = tmp_path_factory.mktemp(database)
                url = stack.enter_context(a_server()) if database == "postgresql" else ""
                places = stack.enter_context(unfriendly_places(folder))
                world = running_world(folder / "gateway", url, places)
                begun[database] = stack.enter_context(world)
            return begun[database]

        yield world_on


@contextlib.contextmanager
def a_server() -> Iterator[str]:
    """A PostgreSQL server; its URL."""
    server = Postgres()
    server.start()
    yield server.url
    server.stop()
    server.remove()


@pytest.fixture(params=DATABASES)
def world(request: pytest.FixtureRequest, worlds: Callable[[str], World]) -> World:
    return worlds(request.param)
