"""Answers that are given once: claimed by name, kept for a day, told again to who asks again.

A file serves the workers of one machine; Redis, where there is one, all machines.
"""

import contextlib
import hashlib
import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol, cast

import msgspec

from .shared_file import opened
from .store import StoreAway, asking_redis

log = logging.getLogger("proxy.counters")

KEPT_S: Final = 86_400
ABANDONED_S: Final = 3_600  # longer than any request runs: its process died
BUSY_S: Final = 5.0
MOST_BYTES: Final = 2**30
"""Of the file: beyond it only the fact is kept that there was an answer, which is small."""
PREFIX: Final = "bridge:reply:"
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS replies (
    owner INTEGER NOT NULL,      -- the gateway key
    name TEXT NOT NULL,          -- the idempotency key
    digest BLOB NOT NULL,        -- of the request body
    at REAL NOT NULL,            -- Unix seconds
    done INTEGER NOT NULL DEFAULT 0,
    body BLOB,                   -- NULL: still running, or not kept
    PRIMARY KEY (owner, name)
) WITHOUT ROWID
"""

USED: Final = """
SELECT (page_count - freelist_count) * page_size
FROM pragma_page_count, pragma_freelist_count, pragma_page_size
"""


class Reply(msgspec.Struct, frozen=True):
    """What is known of a name: the request body's digest, whether it was answered, and how.

    ``body`` None: still running, or not kept.
    """

    digest: bytes
    done: bool = False
    body: bytes | None = None


class Replies(Protocol):
    """Raises ``StoreAway``. ``owner`` is the gateway key's id, ``name`` what its client chose."""

    def claim(self, owner: int, name: str, digest: bytes) -> Reply | None:
        """None: it was free and is ours to serve. Else what became of it."""
        ...

    def settle(self, owner: int, name: str, reply: Reply) -> None:
        """It is answered."""
        ...

    def free(self, owner: int, name: str) -> None:
        """There was no answer: the same name may try again."""
        ...


class ReplyFile:
    """For the workers of one machine; the file is made when it is first needed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def claim(self, owner: int, name: str, digest: bytes) -> Reply | None:
        now = time.time()
        with self._book() as book:
            book.execute(
                "DELETE FROM replies WHERE at < ? OR (done = 0 AND at < ?)",
                (now - KEPT_S, now - ABANDONED_S),
            )
            claimed = book.execute(
                "INSERT OR IGNORE INTO replies (owner, name, digest, at) VALUES (?, ?, ?, ?)",
                (owner, name, digest, now),
            )
            if claimed.rowcount:
                return None
            found = book.execute(
                "SELECT digest, done, body FROM replies WHERE owner = ? AND name = ?", (owner, name)
            ).fetchone()
        if found is None:  # settled as a failure just now
            return self.claim(owner, name, digest)
        return Reply(found[0], bool(found[1]), found[2])

    def settle(self, owner: int, name: str, reply: Reply) -> None:
        with self._book() as book:
            body = reply.body if _bytes_used(book) < MOST_BYTES else None
            book.execute(
                "UPDATE replies SET done = ?, body = ? WHERE owner = ? AND name = ?",
                (reply.done, body, owner, name),
            )

    def free(self, owner: int, name: str) -> None:
        with self._book() as book:
            book.execute("DELETE FROM replies WHERE owner = ? AND name = ?", (owner, name))

    @contextmanager
    def _book(self) -> Iterator[sqlite3.Connection]:
        try:
            with contextlib.closing(opened(self._path, SCHEMA, busy_s=BUSY_S)) as book:
                yield book
        except (sqlite3.Error, OSError) as error:
            raise StoreAway(str(error)) from error


def _bytes_used(book: sqlite3.Connection) -> int:
    """Return the bytes of the file's pages that hold something."""
    (used,) = book.execute(USED).fetchone()
    return int(used)


class RedisReplies:
    """For all machines; Redis itself forgets what is too old."""

    def __init__(self, client: Any) -> None:
        self._redis = client

    def claim(self, owner: int, name: str, digest: bytes) -> Reply | None:
        place, running = _place(owner, name), _encode(Reply(digest))
        with asking_redis():
            while not self._redis.set(place, running, nx=True, ex=ABANDONED_S):
                found = cast("str | None", self._redis.get(place))
                if found is None:  # freed just now
                    continue
                try:
                    return _decode(found)
                except msgspec.DecodeError:  # written by nobody of us
                    self._redis.delete(place)
        return None

    def settle(self, owner: int, name: str, reply: Reply) -> None:
        with asking_redis():
            self._redis.set(_place(owner, name), _encode(reply), ex=KEPT_S)

    def free(self, owner: int, name: str) -> None:
        with asking_redis():
            self._redis.delete(_place(owner, name))


class SharedReplies:
    """``Replies`` of this machine, and of all while ``shared`` answers.

    While it does not, each machine answers once, and all of them do again when it is back.
    """

    def __init__(self, shared: Replies, local: Replies) -> None:
        self._shared = shared
        self._local = local

    def claim(self, owner: int, name: str, digest: bytes) -> Reply | None:
        ours = self._local.claim(owner, name, digest)
        if ours is not None:
            return ours
        theirs: Reply | None = None
        with _alone_meanwhile():
            theirs = self._shared.claim(owner, name, digest)
        if theirs is not None:
            self._local.free(owner, name)
        return theirs

    def settle(self, owner: int, name: str, reply: Reply) -> None:
        self._local.settle(owner, name, reply)
        with _alone_meanwhile():
            self._shared.settle(owner, name, reply)

    def free(self, owner: int, name: str) -> None:
        self._local.free(owner, name)
        with _alone_meanwhile():
            self._shared.free(owner, name)


_encoder: Final = msgspec.json.Encoder()
_decode: Final = msgspec.json.Decoder(Reply).decode


def _encode(reply: Reply) -> str:
    return _encoder.encode(reply).decode()


def _place(owner: int, name: str) -> str:
    """What a client chose is of no use in the name of a key: any character, and perhaps secret."""
    return f"{PREFIX}{owner}:{hashlib.sha256(name.encode()).hexdigest()}"


@contextmanager
def _alone_meanwhile() -> Iterator[None]:
    try:
        yield
    except StoreAway as exc:
        log.warning("idempotency-key: %s; this machine remembers for itself", exc)
