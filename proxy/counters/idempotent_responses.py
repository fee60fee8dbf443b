"""The store of responses by idempotency key.

The first request with an idempotency key claims the key; its response is stored for a day, and
later requests with this key get the stored response. The workers of one machine share a SQLite
file; all machines share Redis, if it is configured.
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

from proxy.encryption.bodies import (
    DamagedBody,
    MissingBodyKey,
    decrypt,
    encrypt,
    keyed_digest,
    known_digests,
)

from .budget_store import StoreUnavailable, redis_errors_as_unavailable
from .shared_file import open_shared_file

log = logging.getLogger("proxy.counters")

STORED_S: Final = 86_400
# No request runs this long, so an older claim without a response is deleted.
ABANDONED_S: Final = 3_600
BUSY_S: Final = 5.0
MAX_BYTES: Final = 2**30
"""Limit of the file's size; above it, a response is stored as ``done``, but without its body."""
PREFIX: Final = "bridge:reply:"
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS replies (
    owner INTEGER NOT NULL,      -- the gateway key
    name TEXT NOT NULL,          -- the idempotency key
    digest BLOB NOT NULL,        -- of the request body
    at REAL NOT NULL,            -- Unix seconds
    done INTEGER NOT NULL DEFAULT 0,
    body BLOB,                   -- NULL: still running, or not stored
    PRIMARY KEY (owner, name)
) WITHOUT ROWID
"""

USED: Final = """
SELECT (page_count - freelist_count) * page_size
FROM pragma_page_count, pragma_freelist_count, pragma_page_size
"""


class StoredResponse(msgspec.Struct, frozen=True):
    """The state of an idempotency key: the digest of the request body, and the response.

    ``done``: whether the request has ended. ``body``: the response; None if the request still runs,
    or if its response was not stored.
    """

    digest: bytes
    done: bool = False
    body: bytes | None = None


class ResponseStore(Protocol):
    """A store of responses. ``owner``: the id of the gateway key; ``name``: the idempotency key.

    All methods raise StoreUnavailable.
    """

    def claim(self, owner: int, name: str, digest: bytes) -> StoredResponse | None:
        """Claim the idempotency key and return None; if it is claimed already, return its state."""
        ...

    def settle(self, owner: int, name: str, reply: StoredResponse) -> None:
        """Store the response of the request that claimed the idempotency key."""
        ...

    def free(self, owner: int, name: str) -> None:
        """Delete the claim, because its request failed: the client may retry."""
        ...


class SqliteResponses:
    """A ``ResponseStore`` in a file for the workers of one machine, created on first use."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes

    def claim(self, owner: int, name: str, digest: bytes) -> StoredResponse | None:
        now = time.time()
        with self._connect() as connection:
            connection.execute(
                "DELETE FROM replies WHERE at < ? OR (done = 0 AND at < ?)",
                (now - STORED_S, now - ABANDONED_S),
            )
            claimed = connection.execute(
                "INSERT OR IGNORE INTO replies (owner, name, digest, at) VALUES (?, ?, ?, ?)",
                (owner, name, digest, now),
            )
            if claimed.rowcount:
                return None
            found = connection.execute(
                "SELECT digest, done, body FROM replies WHERE owner = ? AND name = ?", (owner, name)
            ).fetchone()
        if found is None:  # the claim was deleted in between, as its request failed
            return self.claim(owner, name, digest)
        return StoredResponse(found[0], bool(found[1]), found[2])

    def settle(self, owner: int, name: str, reply: StoredResponse) -> None:
        with self._connect() as connection:
            body = reply.body if _bytes_used(connection) < self._max_bytes else None
            connection.execute(
                "UPDATE replies SET done = ?, body = ? WHERE owner = ? AND name = ?",
                (reply.done, body, owner, name),
            )

    def free(self, owner: int, name: str) -> None:
        with self._connect() as connection:
            connection.execute("DELETE FROM replies WHERE owner = ? AND name = ?", (owner, name))

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        try:
            with contextlib.closing(
                open_shared_file(self._path, SCHEMA, busy_s=BUSY_S)
            ) as connection:
                yield connection
        except (sqlite3.Error, OSError) as error:
            raise StoreUnavailable(str(error)) from error


def _bytes_used(connection: sqlite3.Connection) -> int:
    """Return the size of the file's used pages in bytes."""
    (used,) = connection.execute(USED).fetchone()
    return int(used)


class RedisResponses:
    """A ``ResponseStore`` in Redis for all machines; Redis deletes expired entries."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def claim(self, owner: int, name: str, digest: bytes) -> StoredResponse | None:
        key, running = _redis_key(owner, name), _encode(StoredResponse(digest))
        with redis_errors_as_unavailable():
            while not self.client.set(key, running, nx=True, ex=ABANDONED_S):
                found = cast("str | None", self.client.get(key))
                if found is None:  # the claim was deleted or has expired in between
                    continue
                try:
                    return _decode(found)
                except msgspec.DecodeError:  # another program wrote the value
                    self.client.delete(key)
        return None

    def settle(self, owner: int, name: str, reply: StoredResponse) -> None:
        with redis_errors_as_unavailable():
            self.client.set(_redis_key(owner, name), _encode(reply), ex=STORED_S)

    def free(self, owner: int, name: str) -> None:
        with redis_errors_as_unavailable():
            self.client.delete(_redis_key(owner, name))


class FailoverResponses:
    """A ``ResponseStore`` that uses the store of this machine and the shared store in Redis.

    During an outage of Redis, a repeated request is detected on the same machine only.
    """

    def __init__(self, shared: ResponseStore, local: ResponseStore) -> None:
        self.shared = shared
        self.local = local

    def claim(self, owner: int, name: str, digest: bytes) -> StoredResponse | None:
        own = self.local.claim(owner, name, digest)
        if own is not None:
            return own
        other: StoredResponse | None = None
        with _local_while_redis_down():
            other = self.shared.claim(owner, name, digest)
        if other is not None:
            self.local.free(owner, name)
        return other

    def settle(self, owner: int, name: str, reply: StoredResponse) -> None:
        self.local.settle(owner, name, reply)
        with _local_while_redis_down():
            self.shared.settle(owner, name, reply)

    def free(self, owner: int, name: str) -> None:
        self.local.free(owner, name)
        with _local_while_redis_down():
            self.shared.free(owner, name)


class EncryptedResponses:
    """A ``ResponseStore`` that encrypts the responses if there is a body key.

    A response whose key is missing counts as not stored. The digest of a request body is stored as
    an HMAC, so it does not confirm a guess.
    """

    def __init__(self, store: ResponseStore) -> None:
        self.store = store

    def claim(self, owner: int, name: str, digest: bytes) -> StoredResponse | None:
        found = self.store.claim(owner, name, keyed_digest(digest))
        if found is None:
            return None
        try:
            body = None if found.body is None else decrypt(found.body, _address(owner, name))
        except (MissingBodyKey, DamagedBody):  # the digest was made with the missing key, too
            return StoredResponse(digest, found.done)
        same = found.digest in known_digests(digest)
        return StoredResponse(digest if same else found.digest, found.done, body)

    def settle(self, owner: int, name: str, reply: StoredResponse) -> None:
        body = None if reply.body is None else encrypt(reply.body, _address(owner, name))
        self.store.settle(owner, name, StoredResponse(keyed_digest(reply.digest), reply.done, body))

    def free(self, owner: int, name: str) -> None:
        self.store.free(owner, name)


def _address(owner: int, name: str) -> bytes:
    return f"response:{owner}:{name}".encode()


_encoder: Final = msgspec.json.Encoder()
_decode: Final = msgspec.json.Decoder(StoredResponse).decode


def _encode(reply: StoredResponse) -> str:
    return _encoder.encode(reply).decode()


def _redis_key(owner: int, name: str) -> str:
    """Return the Redis key of an idempotency key.

    The idempotency key is hashed, because it may be secret and contain any character.
    """
    return f"{PREFIX}{owner}:{hashlib.sha256(name.encode()).hexdigest()}"


@contextmanager
def _local_while_redis_down() -> Iterator[None]:
    try:
        yield
    except StoreUnavailable as exc:
        log.warning("idempotency-key: %s; this machine uses its own store", exc)
