"""Small states that processes share, such as rate limits: JSON texts by name, changed atomically.

The argument ``change`` of ``update`` is a function that gets the current texts (None: missing) and
returns the new texts. It is called again if another process has written in between, so it must not
have side effects. All methods raise StoreUnavailable.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, cast

from .budget_store import StoreUnavailable, redis_errors_as_unavailable
from .shared_file import SharedFile, again_on_a_new_file

Texts = list[str | None]
Change = Callable[[Texts], Sequence[str]]

BUSY_S: Final = 1.0
ATTEMPTS: Final = 50
SCHEMA: Final = """
PRAGMA synchronous = OFF;  -- counts of one minute: they may be lost in a power cut
CREATE TABLE IF NOT EXISTS states (name TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
"""
PREFIX: Final = "bridge:{state}:"  # a hash tag: in Redis Cluster, all states are in one slot
EXPIRE_S: Final = 3_600
"""Seconds after which an unused state expires; its token buckets are full after a minute."""
SWAP: Final = """
for i, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  local now = ''
  if kind == 'string' then now = redis.call('GET', key)
  elseif kind ~= 'none' then redis.call('DEL', key) end
  if now ~= ARGV[i] then return 0 end
end
for i, key in ipairs(KEYS) do redis.call('SET', key, ARGV[#KEYS + i], 'EX', ARGV[#ARGV]) end
return 1
"""


class States(Protocol):
    def update(self, names: Sequence[str], change: Change) -> Sequence[str]:
        """Replace the texts with these names by the result of ``change``, all or none of them.

        Returns the new texts. If ``change`` raises, no text is changed.
        """
        ...

    def read(self, names: Sequence[str]) -> Texts:
        """Return the current texts with these names; None for a missing one."""
        ...


class SqliteStates:
    """States in a SQLite file, for the processes of one machine."""

    def __init__(self, path: Path, busy_s: float = BUSY_S) -> None:
        """``busy_s``: how long a call waits for other processes."""
        self._busy_s = busy_s
        self._file = SharedFile(path, SCHEMA, busy_s=busy_s)
        self._lock = threading.Lock()

    @again_on_a_new_file
    def update(
        self, names: Sequence[str], change: Change, *, busy_s: float | None = None
    ) -> Sequence[str]:
        """``busy_s``: how long this call waits; None: as long as the other calls."""
        with self._lock, self._busy_timeout(busy_s), self._file.transaction() as connection:
            new = change([self._read(connection, name) for name in names])
            connection.executemany(
                "INSERT OR REPLACE INTO states VALUES (?, ?)", zip(names, new, strict=True)
            )
            return new

    @again_on_a_new_file
    def read(self, names: Sequence[str]) -> Texts:
        with self._lock, self._file.transaction("BEGIN") as connection:
            return [self._read(connection, name) for name in names]

    def close(self) -> None:
        with self._lock:
            self._file.close()

    @contextlib.contextmanager
    def _busy_timeout(self, busy_s: float | None) -> Iterator[None]:
        """Let the block wait at most ``busy_s`` for other processes; None: as long as others."""
        if busy_s is None:
            yield
            return
        try:
            connection = self._file.connect()
        except (sqlite3.Error, OSError) as exc:
            raise StoreUnavailable(str(exc)) from exc
        connection.execute(f"PRAGMA busy_timeout = {busy_s * 1_000:.0f}")
        try:
            yield
        finally:
            connection = self._file.connect()
            connection.execute(f"PRAGMA busy_timeout = {self._busy_s * 1_000:.0f}")

    @staticmethod
    def _read(connection: sqlite3.Connection, name: str) -> str | None:
        row = connection.execute("SELECT text FROM states WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])


class RedisStates:
    """States in Redis, for any number of machines, written by compare-and-swap.

    Use it for states that rarely have concurrent writers, such as those of the live view.
    """

    def __init__(self, client: Any) -> None:
        self.client = client

    def update(self, names: Sequence[str], change: Change) -> Sequence[str]:
        keys = [PREFIX + name for name in names]
        with redis_errors_as_unavailable():
            swap = self.client.register_script(SWAP)
            for _ in range(ATTEMPTS):
                old = cast("Texts", self.client.mget(keys))
                new = change(old)
                if swap(keys=keys, args=[*(text or "" for text in old), *new, EXPIRE_S]):
                    return new
        raise StoreUnavailable("too many concurrent writers")

    def read(self, names: Sequence[str]) -> Texts:
        with redis_errors_as_unavailable():
            return cast("Texts", self.client.mget([PREFIX + name for name in names]))
