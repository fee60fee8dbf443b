"""The shared store in a SQLite file that all processes of one machine share.

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

from .shared_file import SharedFile, again_on_a_new_file
from .store import (
    BATCH,
    EXPIRE_S,
    LEASE_S,
    LIMITS,
    AppliedCosts,
    Change,
    Kind,
    Standing,
    Store,
    Take,
    Taken,
    Texts,
    UsedChange,
)

BUSY_S: Final = 2.0
"""Less than a request waits, so that it learns that the file is locked (``counter_thread``)."""
PRUNE_S: Final = 60.0
"""Seconds between two deletions of ended leases of slots and of debts that were paid off."""
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
CREATE TABLE IF NOT EXISTS debts (
    counter TEXT PRIMARY KEY,
    due INTEGER NOT NULL  -- Unix microseconds
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS states (name TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
"""
READ: Final = "BEGIN"
"""Begins a transaction that does not wait for writers."""
STANDING: Final = """
SELECT spent, settled,
       (SELECT coalesce(sum(reserved), 0) FROM leases
        WHERE leases.counter = sums.counter AND expires > ?)
FROM sums WHERE counter = ?
"""
ADD_SLOTS: Final = """
INSERT INTO leases VALUES (?1, ?2, ?3, ?4)
ON CONFLICT DO UPDATE SET reserved = iif(expires > ?5, reserved, 0) + ?3, expires = ?4
"""
DELETE_SLOTS: Final = "DELETE FROM leases WHERE counter BETWEEN ? AND ? AND expires <= ?"
HELD: Final = "SELECT coalesce(sum(reserved), 0) FROM leases WHERE counter = ? AND expires > ?"
CHANGE_LEASE: Final = """
UPDATE leases SET reserved = max(0, reserved + ?), expires = ?
WHERE counter = ? AND holder = ? AND expires > ?
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


class SqliteStore(Store):
    """A ``Store`` and ``TextStore`` in one SQLite file."""

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = time.time,
        lease_s: float = LEASE_S,
        busy_s: float = BUSY_S,
    ) -> None:
        """``clock``: returns Unix seconds. ``busy_s``: how long a call waits for others."""
        self._file = SharedFile(path, SCHEMA, busy_s=busy_s)
        self._clock = clock
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._pruned_at = 0.0

    @again_on_a_new_file
    def take(self, request_id: str, holder: str, takes: Sequence[Take]) -> Taken:
        with self._change() as connection:
            now = self._clock()
            found = [_value(connection, each, now) for each in takes]
            unknown = tuple(
                each.counter for each, value in zip(takes, found, strict=True) if value is None
            )
            if unknown:
                return Taken(granted=False, unknown=unknown)
            standings = tuple(value for value in found if value is not None)
            if not all(each.fits(value) for each, value in zip(takes, standings, strict=True)):
                return Taken(granted=False, standings=standings)
            debts, slots = [], []
            until = now + self._lease_s
            for each, value in zip(takes, standings, strict=True):
                lease = (each.counter, holder, each.amount, until)
                if each.kind is Kind.RATE:
                    due = int(now * 1_000_000) + value.spent + each.amount
                    debts.append((each.counter, due))
                elif each.kind is Kind.SLOTS:
                    slots.append((*lease, now))
                else:
                    _remove(connection, each.counter, request_id)
                    connection.execute(
                        "INSERT INTO requests VALUES (?, ?, ?, ?)",
                        (each.counter, request_id, each.amount, holder),
                    )
                    connection.execute(ADD_TO_LEASE, lease)
            if debts:
                connection.executemany("INSERT OR REPLACE INTO debts VALUES (?, ?)", debts)
            if slots:
                connection.executemany(ADD_SLOTS, slots)
            if (debts or slots) and now - self._pruned_at >= PRUNE_S:
                self._pruned_at = now
                connection.execute(DELETE_SLOTS, (LIMITS, f"{LIMITS}~", now))
                paid_off = int((now - EXPIRE_S) * 1_000_000)
                connection.execute("DELETE FROM debts WHERE due < ?", (paid_off,))
            return Taken(granted=True, standings=standings)

    @again_on_a_new_file
    def add(self, holder: str, takes: Sequence[Take]) -> None:
        with self._change() as connection:
            now = self._clock()
            for each in takes:
                if each.kind is Kind.RATE:
                    connection.execute(
                        "UPDATE debts SET due = due + ? WHERE counter = ?",
                        (each.amount, each.counter),
                    )
                else:
                    connection.execute(
                        CHANGE_LEASE, (each.amount, now + self._lease_s, each.counter, holder, now)
                    )

    @again_on_a_new_file
    def peek(self, takes: Sequence[Take]) -> list[Standing | None]:
        with self._change(READ) as connection:
            now = self._clock()
            return [_value(connection, each, now) for each in takes]

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

    def standings(self, counters: Collection[str]) -> dict[str, Standing]:
        found = self.peek([Take(counter, 0) for counter in counters])
        pairs = zip(counters, found, strict=True)
        return {counter: standing for counter, standing in pairs if standing is not None}

    @again_on_a_new_file
    def renew(self, holder: str, held: Mapping[str, int | None]) -> None:
        now = self._clock()
        until = now + self._lease_s
        with self._change() as connection:
            for counter, amount in held.items():
                if amount is None:
                    connection.execute(
                        "UPDATE leases SET expires = ? WHERE counter = ? AND holder = ?",
                        (until, counter, holder),
                    )
                elif amount:
                    connection.execute(
                        "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)",
                        (counter, holder, amount, until),
                    )
                else:
                    connection.execute(
                        "DELETE FROM leases WHERE counter = ? AND holder = ?", (counter, holder)
                    )

    @again_on_a_new_file
    def forget(self, counters: Collection[str]) -> None:
        rows = [(counter,) for counter in counters]
        with self._change() as connection:
            connection.executemany("DELETE FROM sums WHERE counter = ?", rows)
            connection.executemany("DELETE FROM leases WHERE counter = ?", rows)
            connection.executemany("DELETE FROM requests WHERE counter = ?", rows)

    @again_on_a_new_file
    def update(self, names: Sequence[str], change: Change) -> Sequence[str]:
        with self._change() as connection:
            new = change(_texts(connection, names))
            connection.executemany(
                "INSERT OR REPLACE INTO states VALUES (?, ?)", zip(names, new, strict=True)
            )
            return new

    @again_on_a_new_file
    def read(self, names: Sequence[str]) -> Texts:
        with self._change(READ) as connection:
            return _texts(connection, names)

    def close(self) -> None:
        with self._lock:
            self._file.close()

    @contextlib.contextmanager
    def _change(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """Run the block in a transaction; all threads share one connection, under a lock."""
        with self._lock, self._file.transaction(begin) as connection:
            yield connection


def _texts(connection: sqlite3.Connection, names: Sequence[str]) -> Texts:
    query = "SELECT text FROM states WHERE name = ?"
    rows = [connection.execute(query, (name,)).fetchone() for name in names]
    return [None if row is None else str(row[0]) for row in rows]


def _value(connection: sqlite3.Connection, take: Take, now: float) -> Standing | None:
    if take.kind is Kind.BUDGET:
        return _standing(connection, take.counter, now)
    if take.kind is Kind.SLOTS:
        (held,) = connection.execute(HELD, (take.counter, now)).fetchone()
        return Standing(reserved=max(held, take.floor))
    row = connection.execute("SELECT due FROM debts WHERE counter = ?", (take.counter,)).fetchone()
    debt = 0 if row is None else row[0] - int(now * 1_000_000)
    return Standing(spent=max(debt, take.floor))


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
