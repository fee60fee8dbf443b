"""``idempotency-key``: a request that is not streamed is answered once, however often it is sent.

Answers are kept for a day in a file beside the spool, for all workers of this machine. Only
answers are: after a failure the same key may try again. Where the team keeps no words, only the
fact is kept.
"""

import asyncio
import contextlib
import hashlib
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from proxy.counters.shared_file import opened
from proxy.record.errors import SpoolUnavailable
from proxy.record.recorder import recorder

from .ledger import Exchange
from .refusals import Refusal

NAME_CHARACTERS: Final = 255
KEPT_S: Final = 86_400.0
ABANDONED_S: Final = 3_600.0  # longer than any request runs: its process died
KEPT_BYTES: Final = 4 * 2**20
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
REPLAYED: Final = {"idempotent-replayed": "true"}


class Found(NamedTuple):
    """What is known of a key that was used before."""

    digest: bytes
    done: bool
    body: bytes | None


def wanted(entry: Exchange) -> str:
    """The key that the request names; empty: it names none, or is streamed."""
    if entry.request.get("stream") is True:
        return ""
    return entry.head.text(b"idempotency-key", NAME_CHARACTERS)


async def once(entry: Exchange, name: str, serve: Callable[[], Awaitable[None]]) -> None:
    """Serve it, or refuse it with what came of the first one. Raises Refusal, SpoolUnavailable."""
    owner, digest = entry.caller.key_id, hashlib.sha256(entry.body).digest()
    found = await asyncio.to_thread(_claim, owner, name, digest)
    if found is not None:
        raise _told_before(found, digest)
    answer: bytes | None = None
    try:
        await serve()
        answer = entry.consumer.answer
    finally:
        keep = entry.caller.team.store_full
        # In a thread that nothing cancels: a claim that stays would refuse the next try.
        await asyncio.shield(asyncio.to_thread(_settle, owner, name, answer, keep=keep))


def _told_before(found: Found, digest: bytes) -> Refusal:
    if found.digest != digest:
        return Refusal(
            400, "invalid_request_error", "this idempotency-key was used with another body"
        )
    if found.body is not None:
        return Refusal(200, "", "", REPLAYED, detail="replayed", raw=found.body)
    if found.done:
        return Refusal(
            409,
            "invalid_request_error",
            "it was answered; the answer is not kept",
        )
    return Refusal(409, "invalid_request_error", "a request with this idempotency-key is running")


@contextmanager
def _book() -> Iterator[sqlite3.Connection]:
    path = Path(recorder.directory) / "replies.sqlite3"
    try:
        with contextlib.closing(opened(path, SCHEMA, busy_s=5)) as book:
            yield book
    except (sqlite3.Error, OSError) as error:
        raise SpoolUnavailable(str(error)) from error


def _claim(owner: int, name: str, digest: bytes) -> Found | None:
    """None: it is ours to serve."""
    now = time.time()
    with _book() as book:
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
        return _claim(owner, name, digest)
    return Found(found[0], bool(found[1]), found[2])


def _settle(owner: int, name: str, answer: bytes | None, *, keep: bool) -> None:
    """``answer`` None: there was none, so the key is free again."""
    with _book() as book:
        if answer is None:
            book.execute("DELETE FROM replies WHERE owner = ? AND name = ?", (owner, name))
            return
        body = answer if keep and len(answer) <= KEPT_BYTES else None
        book.execute(
            "UPDATE replies SET done = 1, body = ? WHERE owner = ? AND name = ?",
            (body, owner, name),
        )
