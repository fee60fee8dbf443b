"""Budget counters in a SQLite file that all processes of one machine share.

Each change is one short write transaction in WAL mode, so a process that is killed leaves no
partial change.
"""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from .budget_store import (
    BATCH,
    LEASE_S,
    AppliedCosts,
    BudgetLimit,
    ReservationResult,
    Standing,
    UsedChange,
)
from .shared_file import SharedFile, again_on_a_new_file

BUSY_S: Final = 5.0
SCHEMA: Final = """
PRAGMA synchronous = NORMAL;  -- the ledger restores what a power cut loses
CREATE TABLE IF NOT EXISTS sums (
    counter TEXT PRIMARY KEY, spent INTEGER NOT NULL, settled INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leases (
    counter TEXT NOT NULL, holder TEXT NOT NULL,
    reserved INTEGER NOT NULL,  -- sum of the holder's open reservations
    expires REAL NOT NULL,      -- Unix seconds
    PRIMARY KEY (counter, holder)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS requests (
    counter TEXT NOT NULL, id TEXT NOT NULL, amount INTEGER NOT NULL,
    holder TEXT,  -- NULL: settled, not in the ledger's sum yet
    PRIMARY KEY (counter, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS open_requests ON requests (counter, holder) WHERE holder IS NOT NULL;
"""
READ: Final = "BEGIN"
"""Begins a transaction that does not wait for writers."""
STANDING: Final = """
SELECT spent, settled,
       (SELECT coalesce(sum(reserved), 0) FROM leases
        WHERE leases.counter = sums.counter AND expires > ?)
FROM sums WHERE counter = ?
"""
ADD_TO_LEASE: Final = """
INSERT INTO leases VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE
SET reserved = reserved + excluded.reserved, expires = max(expires, excluded.expires)
"""


class _Removed(NamedTuple):
    """A reservation that was deleted. ``holder`` None: it was settled."""

    amount: int
    holder: str | None


class SqliteBudgets:
    """A ``BudgetStore`` in one SQLite file."""

    def __init__(
        self, path: Path, clock: Callable[[], float] = time.time, lease_s: float = LEASE_S
    ) -> None:
        self._file = SharedFile(path, SCHEMA, busy_s=BUSY_S)
        self._clock = clock
        self._lease_s = lease_s
        self._lock = threading.Lock()

    @again_on_a_new_file
    def reserve(
        self, request_id: str, holder: str, amount: int, limits: Sequence[BudgetLimit]
    ) -> ReservationResult:
        now = self._clock()
        with self._change() as connection:
            standings = {c.counter: _standing(connection, c.counter, now) for c in limits}
            unknown = tuple(name for name, standing in standings.items() if standing is None)
            if unknown:
                return ReservationResult(unknown=unknown)
            full = tuple(
                (limit.counter, standing)
                for limit in limits
                if (standing := standings[limit.counter]) is not None
                and limit.limit is not None
                and standing.used + standing.reserved + amount > limit.limit
            )
            if full and amount:  # a request that costs nothing may run with a full budget
                return ReservationResult(full=full)
            for counter in standings:
                _remove(connection, counter, request_id)
                connection.execute(
                    "INSERT INTO requests VALUES (?, ?, ?, ?)",
                    (counter, request_id, amount, holder),
                )
                connection.execute(ADD_TO_LEASE, (counter, holder, amount, now + self._lease_s))
            return ReservationResult()

    @again_on_a_new_file
    def settle(
        self, request_id: str, counters: Collection[str], cost: int
    ) -> dict[str, UsedChange]:
        changes = {}
        with self._change() as connection:
            for counter in counters:
                before = _used(connection, counter)
                if before is not None and _remove(connection, counter, request_id):
                    connection.execute(
                        "INSERT INTO requests VALUES (?, ?, ?, NULL)", (counter, request_id, cost)
                    )
                    _add(connection, counter, settled=cost)
                    changes[counter] = UsedChange(before, _used(connection, counter) or 0)
        return changes

    @again_on_a_new_file
    def release(self, request_id: str, counters: Collection[str]) -> None:
        with self._change() as connection:
            for counter in counters:
                _remove(connection, counter, request_id)

    @again_on_a_new_file
    def apply_posted(self, counter: str, costs: Mapping[str, int]) -> AppliedCosts:
        missing = set()
        with self._change() as connection:
            before = _used(connection, counter)
            if before is None:
                return AppliedCosts(frozenset(costs))
            for request_id, cost in costs.items():
                if _remove(connection, counter, request_id):
                    _add(connection, counter, spent=cost)
                else:
                    missing.add(request_id)
            used = UsedChange(before, _used(connection, counter) or 0)
        return AppliedCosts(frozenset(missing), used)

    @again_on_a_new_file
    def mark_posted(self, counter: str, request_ids: Collection[str]) -> None:
        with self._change() as connection:
            for request_id in request_ids:
                removed = _remove(connection, counter, request_id)
                if removed is not None:
                    _add(connection, counter, spent=removed.amount)

    @again_on_a_new_file
    def publish(self, counter: str, spent: int) -> Standing:
        now = self._clock()
        with self._change() as connection:
            connection.execute(
                "INSERT INTO sums VALUES (?, ?, 0) ON CONFLICT DO UPDATE SET spent = ?",
                (counter, spent, spent),
            )
            expired = connection.execute(
                "DELETE FROM leases WHERE counter = ? AND expires <= ? RETURNING counter, holder",
                (counter, now),
            ).fetchall()
            connection.executemany("DELETE FROM requests WHERE counter = ? AND holder = ?", expired)
            return _standing(connection, counter, now) or Standing(spent, 0, 0)

    def reserved_ids(self, counter: str) -> Iterator[list[str]]:
        last = ""
        while True:
            with self._change(READ) as connection:
                found = connection.execute(
                    "SELECT id FROM requests WHERE counter = ? AND id > ? ORDER BY id LIMIT ?",
                    (counter, last, BATCH),
                ).fetchall()
            if not found:
                return
            yield [request_id for (request_id,) in found]
            last = found[-1][0]

    def standing(self, counter: str) -> Standing | None:
        return self.standings([counter]).get(counter)

    @again_on_a_new_file
    def standings(self, counters: Collection[str]) -> dict[str, Standing]:
        now = self._clock()
        with self._change(READ) as connection:
            found = {counter: _standing(connection, counter, now) for counter in counters}
        return {counter: standing for counter, standing in found.items() if standing is not None}

    @again_on_a_new_file
    def renew(self, holder: str, counters: Collection[str]) -> None:
        until = self._clock() + self._lease_s
        with self._change() as connection:
            connection.executemany(
                "UPDATE leases SET expires = ? WHERE counter = ? AND holder = ?",
                [(until, counter, holder) for counter in counters],
            )

    @again_on_a_new_file
    def forget(self, counters: Collection[str]) -> None:
        rows = [(counter,) for counter in counters]
        with self._change() as connection:
            connection.executemany("DELETE FROM sums WHERE counter = ?", rows)
            connection.executemany("DELETE FROM leases WHERE counter = ?", rows)
            connection.executemany("DELETE FROM requests WHERE counter = ?", rows)

    def close(self) -> None:
        with self._lock:
            self._file.close()

    @contextlib.contextmanager
    def _change(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """Run the block in a transaction; all threads share one connection, under a lock."""
        with self._lock, self._file.transaction(begin) as connection:
            yield connection


def _standing(connection: sqlite3.Connection, counter: str, now: float) -> Standing | None:
    row = connection.execute(STANDING, (now, counter)).fetchone()
    return None if row is None else Standing(*row)


def _used(connection: sqlite3.Connection, counter: str) -> int | None:
    row = connection.execute(
        "SELECT spent + settled FROM sums WHERE counter = ?", (counter,)
    ).fetchone()
    return None if row is None else int(row[0])


def _add(connection: sqlite3.Connection, counter: str, spent: int = 0, settled: int = 0) -> None:
    connection.execute(
        "UPDATE sums SET spent = spent + ?, settled = settled + ? WHERE counter = ?",
        (spent, settled, counter),
    )


def _remove(connection: sqlite3.Connection, counter: str, request_id: str) -> _Removed | None:
    """Delete the reservation of a request and subtract its amount. Return None if there is none."""
    row = connection.execute(
        "DELETE FROM requests WHERE counter = ? AND id = ? RETURNING amount, holder",
        (counter, request_id),
    ).fetchone()
    if row is None:
        return None
    removed = _Removed(*row)
    if removed.holder is None:
        _add(connection, counter, settled=-removed.amount)
    else:
        connection.execute(
            "UPDATE leases SET reserved = reserved - ? WHERE counter = ? AND holder = ?",
            (removed.amount, counter, removed.holder),
        )
    return removed
