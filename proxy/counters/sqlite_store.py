"""Counters in a SQLite file that all processes of one machine share.

WAL and one short write transaction for each change, so that a process that is killed leaves either
the state before it or the state after it.
"""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from .shared_file import opened
from .store import LEASE_S, Ceiling, Standing, StoreAway, Verdict

BUSY_S: Final = 5.0
SCHEMA: Final = """
PRAGMA synchronous = NORMAL;  -- what a power cut takes, the ledger gives back
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, spent INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS holds (
    counter TEXT NOT NULL, id TEXT NOT NULL, amount INTEGER NOT NULL,
    holder TEXT NOT NULL, expires REAL,  -- Unix seconds; null: settled, waits for the ledger
    PRIMARY KEY (counter, id)
) WITHOUT ROWID;
"""
STANDING: Final = """
SELECT spent,
       (SELECT coalesce(sum(amount), 0) FROM holds WHERE counter = name AND expires IS NULL),
       (SELECT coalesce(sum(amount), 0) FROM holds WHERE counter = name AND expires > ?)
FROM counters WHERE name = ?
"""


class SqliteBudgets:
    """A ``BudgetStore`` in one file."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._link: sqlite3.Connection | None = None
        self._lock = threading.Lock()

    def reserve(
        self, request_id: str, holder: str, amount: int, ceilings: Sequence[Ceiling]
    ) -> Verdict:
        now = self._clock()
        with self._change() as link:
            standings = {c.counter: _standing(link, c.counter, now) for c in ceilings}
            unknown = tuple(name for name, standing in standings.items() if standing is None)
            if unknown:
                return Verdict(unknown=unknown)
            full = tuple(
                (ceiling.counter, standing)
                for ceiling in ceilings
                if (standing := standings[ceiling.counter]) is not None
                and ceiling.limit is not None
                and standing.used + standing.reserved + amount > ceiling.limit
            )
            if not full or not amount:  # what costs nothing is never refused
                link.executemany(
                    "INSERT OR REPLACE INTO holds VALUES (?, ?, ?, ?, ?)",
                    [(c.counter, request_id, amount, holder, now + LEASE_S) for c in ceilings],
                )
                return Verdict()
            return Verdict(full=full)

    def settle(self, request_id: str, counters: Collection[str], cost: int) -> None:
        with self._change() as link:
            link.executemany(
                "UPDATE holds SET amount = ?, expires = NULL WHERE counter = ? AND id = ?",
                [(cost, counter, request_id) for counter in counters],
            )

    def release(self, request_id: str, counters: Collection[str]) -> None:
        with self._change() as link:
            link.executemany(
                "DELETE FROM holds WHERE counter = ? AND id = ?",
                [(c, request_id) for c in counters],
            )

    def fold(self, counter: str, costs: Mapping[str, int]) -> set[str]:
        missing = set()
        with self._change() as link:
            for request_id, cost in costs.items():
                gone = link.execute(
                    "DELETE FROM holds WHERE counter = ? AND id = ?", (counter, request_id)
                ).rowcount
                if gone:
                    link.execute(
                        "UPDATE counters SET spent = spent + ? WHERE name = ?", (cost, counter)
                    )
                else:
                    missing.add(request_id)
        return missing

    def publish(self, counter: str, spent: int, posted: Collection[str] = ()) -> None:
        with self._change() as link:
            link.execute("INSERT OR REPLACE INTO counters VALUES (?, ?)", (counter, spent))
            link.executemany(
                "DELETE FROM holds WHERE counter = ? AND id = ?",
                [(counter, request_id) for request_id in posted],
            )
            link.execute(
                "DELETE FROM holds WHERE counter = ? AND expires <= ?", (counter, self._clock())
            )

    def held(self, counter: str) -> list[str]:
        with self._change() as link:
            found = link.execute("SELECT id FROM holds WHERE counter = ?", (counter,))
            return [request_id for (request_id,) in found]

    def standing(self, counter: str) -> Standing | None:
        with self._change() as link:
            return _standing(link, counter, self._clock())

    def renew(self, holder: str, counters: Collection[str]) -> None:
        until = self._clock() + LEASE_S
        with self._change() as link:
            link.executemany(
                "UPDATE holds SET expires = ? "
                "WHERE counter = ? AND holder = ? AND expires IS NOT NULL",
                [(until, counter, holder) for counter in counters],
            )

    def forget(self, counters: Collection[str]) -> None:
        with self._change() as link:
            named = [(counter,) for counter in counters]
            link.executemany("DELETE FROM counters WHERE name = ?", named)
            link.executemany("DELETE FROM holds WHERE counter = ?", named)

    def close(self) -> None:
        with self._lock:
            if self._link is not None:
                self._link.close()
                self._link = None

    @contextlib.contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """One write transaction; the connection is shared by this process's threads, in turn."""
        with self._lock:
            try:
                link = self._opened()
                link.execute("BEGIN IMMEDIATE")
                try:
                    yield link
                    link.execute("COMMIT")
                except BaseException:
                    link.execute("ROLLBACK")
                    raise
            except (sqlite3.Error, OSError) as exc:
                raise StoreAway(str(exc)) from exc

    def _opened(self) -> sqlite3.Connection:
        if self._link is None:
            self._link = opened(self._path, SCHEMA, busy_s=BUSY_S)
        return self._link


def _standing(link: sqlite3.Connection, counter: str, now: float) -> Standing | None:
    row = link.execute(STANDING, (now, counter)).fetchone()
    return None if row is None else Standing(*row)
