"""``idempotency-key``: a request that is not streamed is answered once, however often it is sent.

Answers are kept for a day, for all workers of this machine, and with Redis for all machines. Only
answers are: after a failure the same key may try again. Where the team keeps no words, only the
fact is kept.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from proxy.counters.replies import Replies, Reply
from proxy.counters.shared import replies_in
from proxy.counters.store import StoreAway
from proxy.record.errors import SpoolUnavailable
from proxy.record.recorder import recorder

from .ledger import Exchange
from .refusals import Refusal

log = logging.getLogger("proxy.gateway")

KEPT_BYTES: Final = 4 * 2**20
REPLAYED: Final = {"idempotent-replayed": "true"}


def wanted(entry: Exchange) -> str:
    """The key that the request names; empty: it names none, or is streamed."""
    if b"idempotency-key" not in entry.head.headers or entry.request.get("stream") is True:
        return ""
    return entry.head.text(b"idempotency-key")


async def once(entry: Exchange, name: str, serve: Callable[[], Awaitable[None]]) -> None:
    """Serve it, or refuse it with what came of the first one. Raises Refusal, SpoolUnavailable."""
    owner, digest = entry.caller.key_id, hashlib.sha256(entry.body).digest()
    replies = replies_in(recorder.directory)
    try:
        found = await asyncio.to_thread(replies.claim, owner, name, digest)
    except StoreAway as exc:
        raise SpoolUnavailable(str(exc)) from exc
    if found is not None:
        raise _told_before(found, digest)
    answer: bytes | None = None
    try:
        await serve()
        answer = entry.consumer.answer
    finally:
        keep = entry.caller.team.store_full
        # In a thread that nothing cancels: a claim that stays would refuse the next try.
        await asyncio.shield(
            asyncio.to_thread(_settle, replies, owner, name, digest, answer, keep=keep)
        )


def _told_before(found: Reply, digest: bytes) -> Refusal:
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


def _settle(
    replies: Replies, owner: int, name: str, digest: bytes, answer: bytes | None, *, keep: bool
) -> None:
    """``answer`` None: there was none, so the key is free again."""
    try:
        if answer is None:
            replies.free(owner, name)
        else:
            body = answer if keep and len(answer) <= KEPT_BYTES else None
            replies.settle(owner, name, Reply(digest, done=True, body=body))
    except StoreAway as exc:  # its client has its answer already
        log.warning("idempotency-key: %s; the same key is refused for an hour", exc)
