"""Both kinds of budget store as a fixture."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.counters.redis_budgets import RedisBudgets
from proxy.counters.sqlite_budgets import SqliteBudgets
from tests.fakes.servers.redis_server import REDIS_TIMEOUT_S


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqliteBudgets | RedisBudgets]:
    store: SqliteBudgets | RedisBudgets
    if request.param == "sqlite":
        store = SqliteBudgets(tmp_path / "counters.sqlite3")
    else:
        store = RedisBudgets(request.getfixturevalue("redis_server").url, REDIS_TIMEOUT_S)
    yield store
    store.close()
