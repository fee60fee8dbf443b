"""The record of a session's tool calls: what must go back to an upstream, but fits into no call id.

The workers of one machine share a SQLite file; all machines share Redis, if it is configured. An
entry is kept for a day and its name for a week, so that a later request can report that it is gone.
The oldest entries of a session go first. All methods raise StoreUnavailable.

``origin`` identifies an upstream and its model, ``session`` a session of one gateway key; both are
digests. ``calls`` has the entries by the names of the calls, as text.
"""

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from proxy.encryption.bodies import MissingBodyKey, decrypt_text, encrypt_text

from .shared_file import SharedFile, again_on_a_new_file
from .store import redis_errors_as_unavailable

ENTRY_LIFETIME_S: Final = 86_400
NAME_LIFETIME_S: Final = 7 * ENTRY_LIFETIME_S
EXPIRY_INTERVAL_S: Final = 3_600
"""Seconds between two deletions of expired entries from the file; they are never returned."""
MAX_CALL: Final = 256 * 1024
MAX_SESSION: Final = 2**20
"""Maximum characters of one entry and of all entries of a session; entries are ASCII text."""
MAX_CALLS: Final = 256
MAX_NAMES: Final = 1_024
"""Maximum number of a session's entries, and of its names with those of deleted entries."""
MAX_FILE_BYTES: Final = 2**30
BUSY_S: Final = 1.0
PREFIX: Final = "bridge:calls:"

SCHEMA: Final = """
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS calls (
    origin TEXT NOT NULL, session TEXT NOT NULL, name TEXT NOT NULL,
    at REAL NOT NULL,  -- Unix seconds
    entry TEXT,        -- NULL: expired, or over a limit
    PRIMARY KEY (origin, session, name)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS names_at ON calls (at);
CREATE INDEX IF NOT EXISTS entries_at ON calls (at) WHERE entry IS NOT NULL;
"""
USED: Final = """
SELECT (page_count - freelist_count) * page_size
FROM pragma_page_count, pragma_freelist_count, pragma_page_size
"""
RANKED: Final = """
SELECT name, row_number() OVER newest AS number, sum(length(entry)) OVER newest AS total
FROM calls WHERE origin = :origin AND session = :session
WINDOW newest AS (ORDER BY at DESC, name ROWS UNBOUNDED PRECEDING)
"""
DROP_ENTRIES: Final = f"""
UPDATE calls SET entry = NULL WHERE origin = :origin AND session = :session AND name IN
(SELECT name FROM ({RANKED}) WHERE number > :max_calls OR total > :max_session)
"""  # noqa: S608 - the statement consists of constants  # nosec B608
DROP_NAMES: Final = f"""
DELETE FROM calls WHERE origin = :origin AND session = :session AND name IN
(SELECT name FROM ({RANKED}) WHERE number > :max_names)
"""  # noqa: S608 - the statement consists of constants  # nosec B608

SAVE: Final = """
local at, oldest, stored_s, remembered_s = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local max_calls, max_session, max_names = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
for i = 8, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], at .. ' ' .. ARGV[i + 1])
  redis.call('ZADD', KEYS[2], at, ARGV[i])
end
local names, total = redis.call('ZREVRANGE', KEYS[2], 0, -1), 0
for number, name in ipairs(names) do
  local entry = redis.call('HGET', KEYS[1], name)
  if entry then
    total = total + #entry - #at - 1
    local expired = tonumber(redis.call('ZSCORE', KEYS[2], name)) < oldest
    if expired or number > max_calls or total > max_session then
      redis.call('HDEL', KEYS[1], name)
    end
  end
end
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -max_names - 1)
redis.call('EXPIRE', KEYS[1], stored_s)
redis.call('EXPIRE', KEYS[2], remembered_s)
"""

Entries = dict[str, str | None]
"""The entries of a session by name; None: the entry expired or exceeded a limit."""


class CallStore(Protocol):
    def save(self, origin: str, session: str, calls: Mapping[str, str]) -> bool:
        """Add entries to a session; return False if there is no space for them."""
        ...

    def load(self, origin: str, session: str) -> Entries: ...

    def has_origin(self, origin: str) -> bool:
        """Return whether any session has entries, or had some, for this origin."""
        ...


class SqliteCalls:
    """A ``CallStore`` in a file for the workers of one machine, created by the first entry."""

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = time.time,
        max_file_bytes: int = MAX_FILE_BYTES,
    ) -> None:
        self._path = path
        self._clock = clock
        self._max_file_bytes = max_file_bytes
        self._expiry_due = 0.0  # Unix seconds

    @again_on_a_new_file
    def save(self, origin: str, session: str, calls: Mapping[str, str]) -> bool:
        now = self._clock()
        names = {"origin": origin, "session": session}
        limits = {"max_calls": MAX_CALLS, "max_session": MAX_SESSION, "max_names": MAX_NAMES}
        with self._connect() as connection:
            (used,) = connection.execute(USED).fetchone()
            has_space: bool = used < self._max_file_bytes
            connection.executemany(
                "INSERT OR REPLACE INTO calls VALUES (?, ?, ?, ?, ?)",
                [
                    (origin, session, name, now, entry if has_space else None)
                    for name, entry in calls.items()
                ],
            )
            connection.execute(DROP_ENTRIES, names | limits)
            connection.execute(DROP_NAMES, names | limits)
        return has_space

    @again_on_a_new_file
    def load(self, origin: str, session: str) -> Entries:
        if not self._path.exists():
            return {}
        with self._connect() as connection:
            rows = connection.execute(
                "SELECT name, iif(at < ?, NULL, entry) FROM calls WHERE origin = ? AND session = ?",
                (self._clock() - ENTRY_LIFETIME_S, origin, session),
            )
            return dict(rows.fetchall())

    @again_on_a_new_file
    def has_origin(self, origin: str) -> bool:
        if not self._path.exists():
            return False
        with self._connect() as connection:
            found = connection.execute("SELECT 1 FROM calls WHERE origin = ? LIMIT 1", (origin,))
            return found.fetchone() is not None

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        file = SharedFile(self._path, SCHEMA, busy_s=BUSY_S)
        with contextlib.closing(file), file.transaction() as connection:
            if self._clock() >= self._expiry_due:
                self._delete_expired(connection)
            yield connection

    def _delete_expired(self, connection: sqlite3.Connection) -> None:
        now = self._clock()
        connection.execute("DELETE FROM calls WHERE at < ?", (now - NAME_LIFETIME_S,))
        connection.execute(
            "UPDATE calls SET entry = NULL WHERE at < ? AND entry IS NOT NULL",
            (now - ENTRY_LIFETIME_S,),
        )
        self._expiry_due = now + EXPIRY_INTERVAL_S


class RedisCalls:
    """A ``CallStore`` in Redis for all machines."""

    def __init__(self, client: Any, clock: Callable[[], float] = time.time) -> None:
        self.client = client
        self._clock = clock

    def save(self, origin: str, session: str, calls: Mapping[str, str]) -> bool:
        now = int(self._clock())
        arguments: list[object] = [now, now - ENTRY_LIFETIME_S, ENTRY_LIFETIME_S, NAME_LIFETIME_S]
        arguments += [MAX_CALLS, MAX_SESSION, MAX_NAMES]
        for pair in calls.items():
            arguments += pair
        with redis_errors_as_unavailable():
            script = self.client.register_script(SAVE)
            script(keys=_session_keys(origin, session), args=arguments)
            self.client.set(PREFIX + origin, 1, ex=NAME_LIFETIME_S)
        return True

    def load(self, origin: str, session: str) -> Entries:
        entries, names = _session_keys(origin, session)
        with redis_errors_as_unavailable():
            pipeline = self.client.pipeline(transaction=False)
            known, stored = pipeline.zrange(names, 0, -1).hgetall(entries).execute()
        calls: Entries = dict.fromkeys(known)
        for name, text in stored.items():
            at, _, entry = text.partition(" ")
            if at.isdecimal() and int(at) >= self._clock() - ENTRY_LIFETIME_S:
                calls[name] = entry
        return calls

    def has_origin(self, origin: str) -> bool:
        with redis_errors_as_unavailable():
            return bool(self.client.exists(PREFIX + origin))


def _session_keys(origin: str, session: str) -> list[str]:
    """Return the Redis keys of the entries and of their names, in one slot of Redis Cluster."""
    tag = f"{PREFIX}{{{origin}:{session}}}"
    return [f"{tag}:entries", f"{tag}:names"]


class EncryptedCalls:
    """A ``CallStore`` that encrypts the entries if there is a body key.

    An entry whose key is missing counts as expired.
    """

    def __init__(self, store: CallStore) -> None:
        self.store = store

    def save(self, origin: str, session: str, calls: Mapping[str, str]) -> bool:
        return self.store.save(
            origin,
            session,
            {name: encrypt_text(call, _address(session, name)) for name, call in calls.items()},
        )

    def load(self, origin: str, session: str) -> Entries:
        return {
            name: None if entry is None else _decrypted(entry, _address(session, name))
            for name, entry in self.store.load(origin, session).items()
        }

    def has_origin(self, origin: str) -> bool:
        return self.store.has_origin(origin)


def _address(session: str, name: str) -> bytes:
    return f"call:{session}:{name}".encode()


def _decrypted(entry: str, address: bytes) -> str | None:
    try:
        return decrypt_text(entry, address)
    except MissingBodyKey:
        return None
