"""Fixtures: a budget store whose clock a test sets."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.counters.sqlite_budgets import SqliteBudgets
from proxy.ledger.posting import budget_sync
from tests.fakes.clock import Clock
from tests.proxy.ledger.factories import NOON


@pytest.fixture
def clock() -> Clock:
    return Clock(NOON)


@pytest.fixture
def at_noon(clock: Clock, monkeypatch) -> None:
    """Let the whole process have this time."""
    # The ledger reads the time itself; no clock can be passed to it.
    monkeypatch.setattr(time, "time", clock)


@pytest.fixture
def store(tmp_path: Path, clock: Clock, monkeypatch) -> Iterator[SqliteBudgets]:
    created = SqliteBudgets(tmp_path / "counters.sqlite3", clock)
    # The store of the settings has no clock that a test sets.
    monkeypatch.setattr(budget_sync, "budget_store", lambda: created)
    budget_sync.DIRTY.clear()
    yield created
    created.close()
    budget_sync.DIRTY.clear()
