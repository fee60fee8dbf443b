"""Small states that processes share and change in turn: JSON texts by name.

``change`` gets the texts (None: there is none) and returns the new ones. It may be called again
when another process was quicker, so it must only compute. Raises ``StoreAway``.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, cast

from .shared_file import opened
from .store import StoreAway, asking_redis

Texts = list[str | None]
Change = Callable[[Texts], Sequence[str]]

BUSY_S: Final = 1.0
ATTEMPTS: Final = 50
SCHEMA: Final = """
PRAGMA synchronous = OFF;  -- a minute's counts: after a power cut they are new
CREATE TABLE IF NOT EXISTS states (name TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
"""
PREFIX: Final = "bridge:limit:"
KEEP_S: Final = 3_600
"""Buckets are full again after a minute; an hour without a request, and a state is nothing."""
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
    def update(self, names: Sequence[str], change: Change) -> None:
        """Change all of these at once, or none when ``change`` raises."""
        ...

    def read(self, names: Sequence[str]) -> Texts:
        """The texts as they are."""
        ...


class SqliteStates:
    """In a file, for the processes of one machine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._link: sqlite3.Connection | None = None
        self._lock = threading.Lock()

    def update(self, names: Sequence[str], change: Change) -> None:
        with self._lock:
            try:
                link = self._opened()
                link.execute("BEGIN IMMEDIATE")
            except (sqlite3.Error, OSError) as exc:
                raise StoreAway(str(exc)) from exc
            try:
                new = change([self._read(link, name) for name in names])
                link.executemany(
                    "INSERT OR REPLACE INTO states VALUES (?, ?)", zip(names, new, strict=True)
                )
                link.execute("COMMIT")
            except sqlite3.Error as exc:
                self._undo(link)
                raise StoreAway(str(exc)) from exc
            except BaseException:
                self._undo(link)
                raise

    def read(self, names: Sequence[str]) -> Texts:
        with self._lock:
            try:
                link = self._opened()
                return [self._read(link, name) for name in names]
            except (sqlite3.Error, OSError) as exc:
                raise StoreAway(str(exc)) from exc

    def close(self) -> None:
        with self._lock:
            if self._link is not None:
                self._link.close()
                self._link = None

    def _opened(self) -> sqlite3.Connection:
        if self._link is None:
            self._link = opened(self._path, SCHEMA, busy_s=BUSY_S)
        return self._link

    @staticmethod
    def _read(link: sqlite3.Connection, name: str) -> str | None:
        row = link.execute("SELECT text FROM states WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    @staticmethod
    def _undo(link: sqlite3.Connection) -> None:
        with contextlib.suppress(sqlite3.Error):
            link.execute("ROLLBACK")


class RedisStates:
    """In Redis, for any number of machines; written only if nobody else wrote meanwhile."""

    def __init__(self, client: Any) -> None:
        self._redis = client
        self._swap = client.register_script(SWAP)

    def update(self, names: Sequence[str], change: Change) -> None:
        keys = [PREFIX + name for name in names]
        with asking_redis():
            for _ in range(ATTEMPTS):
                old = cast("Texts", self._redis.mget(keys))
                new = change(old)
                if self._swap(keys=keys, args=[*(text or "" for text in old), *new, KEEP_S]):
                    return
        raise StoreAway("too many others write at once")

    def read(self, names: Sequence[str]) -> Texts:
        with asking_redis():
            return cast("Texts", self._redis.mget([PREFIX + name for name in names]))
