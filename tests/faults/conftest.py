"""One world for each database, shared by all faults that are played."""

from collections.abc import Iterator

import pytest

from tests.proxy.record.postgres import Postgres

from .places import unfriendly_places
from .world import World, running_world


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Empty: SQLite in the data directory."""
    if request.param == "sqlite":
        yield ""
        return
    server = Postgres()
    server.start()
    yield server.url
    server.stop()
    server.remove()


@pytest.fixture(scope="session")
def world(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The gateway before its upstreams, with either database."""
    folder = tmp_path_factory.mktemp("world")
    with (
        unfriendly_places(folder) as places,
        running_world(folder / "gateway", database_url, places) as made,
    ):
        yield made
