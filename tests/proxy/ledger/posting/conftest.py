"""Fixtures: a budget store whose clock a test sets."""

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.counters.sqlite_store import SqliteStore
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
def store(store_file: Path, clock: Clock, monkeypatch) -> Iterator[SqliteStore]:
    created = SqliteStore(store_file, clock)
    # The store of the settings has no clock that a test sets.
    monkeypatch.setattr(budget_sync, "shared_store", lambda: created)
    budget_sync.DIRTY.clear()
    yield created
    created.close()
    budget_sync.DIRTY.clear()


@pytest.fixture
def store_file(tmp_path: Path) -> Path:
    """The file of ``store``, which exists when the store has been used."""
    return tmp_path / "counters.sqlite3"


@contextlib.contextmanager
def unavailable(store_file: Path) -> Iterator[None]:
    """Let the store fail in the block: a directory is in the place of its file."""
    with contextlib.closing(sqlite3.connect(store_file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    aside = store_file.rename(store_file.with_suffix(".aside"))
    store_file.mkdir()
    yield
    store_file.rmdir()
    aside.rename(store_file)
