"""Both kinds of budget store as a fixture."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxy.counters.redis_store import RedisStore
from proxy.counters.sqlite_store import SqliteStore
from tests.fakes.servers.redis_server import REDIS_TIMEOUT_S

OpenStore = Callable[..., SqliteStore | RedisStore]


@pytest.fixture(params=["sqlite", "redis"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    """Open the store of one more process: all of them have the same file or Redis."""
    opened: list[SqliteStore | RedisStore] = []

    def open_next(**options: float) -> SqliteStore | RedisStore:
        if request.param == "sqlite":
            opened.append(SqliteStore(tmp_path / "counters.sqlite3", **options))
        else:
            url = request.getfixturevalue("redis_server").url
            opened.append(RedisStore(url, REDIS_TIMEOUT_S, **options))
        return opened[-1]

    yield open_next
    for each in opened:
        each.close()


@pytest.fixture
def store(open_store: OpenStore) -> SqliteStore | RedisStore:
    return open_store()
