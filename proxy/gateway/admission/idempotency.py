"""``idempotency-key``: a repeated non-streaming request gets the stored response of the first one.

Responses are stored for a day, for all workers of this machine, and with Redis for all machines.
Only successful responses are stored: after a failure, a client may use the same idempotency key
again. For a team that stores only metadata, the response body is not stored.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from proxy.counters.backends import response_store
from proxy.counters.budget_store import StoreUnavailable
from proxy.counters.idempotent_responses import ResponseStore, StoredResponse
from proxy.gateway.http.errors import HttpError
from proxy.gateway.snapshot.config_snapshot import Caller
from proxy.ledger.errors import JournalUnavailable
from proxy.ledger.recorder import recorder

log = logging.getLogger("proxy.gateway")

MAX_STORED_BYTES: Final = 4 * 2**20
REPLAYED: Final = {"idempotent-replayed": "true"}


async def run_once(
    caller: Caller, name: str, body: bytes, serve: Callable[[], Awaitable[bytes | None]]
) -> None:
    """Serve the request once. If it is repeated, raise HttpError with the stored response.

    ``name``: the request's idempotency key. ``serve`` returns the body of a successful response.
    Raises JournalUnavailable if the store cannot be reached.
    """
    owner, digest = caller.key_id, hashlib.sha256(body).digest()
    store = response_store(recorder.directory)
    try:
        found = await asyncio.to_thread(store.claim, owner, name, digest)
    except StoreUnavailable as exc:
        raise JournalUnavailable(str(exc)) from exc
    if found is not None:
        raise _stored_response_error(found, digest)
    answer: bytes | None = None
    try:
        answer = await serve()
    finally:
        store_body = caller.team.store_full
        # Not cancellable: a claim that is never settled would reject the client's next attempt.
        await asyncio.shield(
            asyncio.to_thread(_settle, store, owner, name, digest, answer, store_body=store_body)
        )


def _stored_response_error(found: StoredResponse, digest: bytes) -> HttpError:
    if found.digest != digest:
        return HttpError(
            400, "invalid_request_error", "this idempotency-key was used with another body"
        )
    if found.body is not None:
        return HttpError(200, "", "", REPLAYED, detail="replayed", raw=found.body)
    if found.done:
        return HttpError(
            409,
            "invalid_request_error",
            "this request was answered; the response is not stored",
        )
    return HttpError(409, "invalid_request_error", "a request with this idempotency-key is running")


def _settle(
    store: ResponseStore,
    owner: int,
    name: str,
    digest: bytes,
    answer: bytes | None,
    *,
    store_body: bool,
) -> None:
    """Store the response body ``answer``, or free the idempotency key if it is None (a failure)."""
    try:
        if answer is None:
            store.free(owner, name)
        else:
            body = answer if store_body and len(answer) <= MAX_STORED_BYTES else None
            store.settle(owner, name, StoredResponse(digest, done=True, body=body))
    except StoreUnavailable as exc:
        # The error is only logged, because the client already has its response.
        log.warning("idempotency-key: %s; the same key is refused for an hour", exc)
