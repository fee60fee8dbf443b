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
from typing import Final

from .budget_store import LEASE_S, BudgetLimit, ReservationResult, Standing, StoreUnavailable
from .shared_file import open_shared_file

BUSY_S: Final = 5.0
SCHEMA: Final = """
PRAGMA synchronous = NORMAL;  -- the ledger restores what a power cut loses
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, spent INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS reservations (
    counter TEXT NOT NULL, id TEXT NOT NULL, amount INTEGER NOT NULL,
    holder TEXT NOT NULL, expires REAL,  -- Unix seconds; NULL: settled, not in the ledger's sum yet
    PRIMARY KEY (counter, id)
) WITHOUT ROWID;
"""
STANDING: Final = """
SELECT spent,
       (SELECT coalesce(sum(amount), 0) FROM reservations WHERE counter = name AND expires IS NULL),
       (SELECT coalesce(sum(amount), 0) FROM reservations WHERE counter = name AND expires > ?)
FROM counters WHERE name = ?
"""


class SqliteBudgets:
    """A ``BudgetStore`` in one SQLite file."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()

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
            # A request that costs nothing may run although the budget is exhausted.
            if not full or not amount:
                connection.executemany(
                    "INSERT OR REPLACE INTO reservations VALUES (?, ?, ?, ?, ?)",
                    [(c.counter, request_id, amount, holder, now + LEASE_S) for c in limits],
                )
                return ReservationResult()
            return ReservationResult(full=full)

    def settle(self, request_id: str, counters: Collection[str], cost: int) -> None:
        with self._change() as connection:
            connection.executemany(
                "UPDATE reservations SET amount = ?, expires = NULL WHERE counter = ? AND id = ?",
                [(cost, counter, request_id) for counter in counters],
            )

    def release(self, request_id: str, counters: Collection[str]) -> None:
        with self._change() as connection:
            connection.executemany(
                "DELETE FROM reservations WHERE counter = ? AND id = ?",
                [(c, request_id) for c in counters],
            )

    def apply_posted(self, counter: str, costs: Mapping[str, int]) -> set[str]:
        missing = set()
        with self._change() as connection:
            for request_id, cost in costs.items():
                gone = connection.execute(
                    "DELETE FROM reservations WHERE counter = ? AND id = ?", (counter, request_id)
                ).rowcount
                if gone:
                    connection.execute(
                        "UPDATE counters SET spent = spent + ? WHERE name = ?", (cost, counter)
                    )
                else:
                    missing.add(request_id)
        return missing

    def publish(self, counter: str, spent: int, posted: Collection[str] = ()) -> None:
        with self._change() as connection:
            connection.execute("INSERT OR REPLACE INTO counters VALUES (?, ?)", (counter, spent))
            connection.executemany(
                "DELETE FROM reservations WHERE counter = ? AND id = ?",
                [(counter, request_id) for request_id in posted],
            )
            connection.execute(
                "DELETE FROM reservations WHERE counter = ? AND expires <= ?",
                (counter, self._clock()),
            )

    def reserved_ids(self, counter: str) -> list[str]:
        with self._change() as connection:
            found = connection.execute("SELECT id FROM reservations WHERE counter = ?", (counter,))
            return [request_id for (request_id,) in found]

    def standing(self, counter: str) -> Standing | None:
        with self._change() as connection:
            return _standing(connection, counter, self._clock())

    def renew(self, holder: str, counters: Collection[str]) -> None:
        until = self._clock() + LEASE_S
        with self._change() as connection:
            connection.executemany(
                "UPDATE reservations SET expires = ? "
                "WHERE counter = ? AND holder = ? AND expires IS NOT NULL",
                [(until, counter, holder) for counter in counters],
            )

    def forget(self, counters: Collection[str]) -> None:
        with self._change() as connection:
            rows = [(counter,) for counter in counters]
            connection.executemany("DELETE FROM counters WHERE name = ?", rows)
            connection.executemany("DELETE FROM reservations WHERE counter = ?", rows)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextlib.contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """Run the block in a write transaction; all threads share one connection, under a lock."""
        with self._lock:
            try:
                connection = self._connect()
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    connection.execute("ROLLBACK")
                    raise
            except (sqlite3.Error, OSError) as exc:
                raise StoreUnavailable(str(exc)) from exc

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = open_shared_file(self._path, SCHEMA, busy_s=BUSY_S)
        return self._connection


def _standing(connection: sqlite3.Connection, counter: str, now: float) -> Standing | None:
    row = connection.execute(STANDING, (now, counter)).fetchone()
    return None if row is None else Standing(*row)
