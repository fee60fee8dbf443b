"""Both kinds of store, and time that a test moves."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.counters.redis_store import RedisBudgets
from proxy.counters.sqlite_store import SqliteBudgets
from tests.fakes.redis_server import PATIENT_S, redis_server, running_redis

__all__ = ["redis_server", "running_redis"]


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.at = 1_000_000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqliteBudgets | RedisBudgets]:
    made: SqliteBudgets | RedisBudgets
    if request.param == "sqlite":
        made = SqliteBudgets(tmp_path / "counters.sqlite3")
    else:
        made = RedisBudgets(request.getfixturevalue("redis_server").url, PATIENT_S)
    yield made
    made.close()
