"""``idempotency-key``: a repeated non-streaming request gets the stored response of the first one.

Responses are stored for a day, for all workers of this machine, and with Redis for all machines.
Only successful responses are stored: after a failure, a client may use the same idempotency key
again. For a team that stores only metadata, the response body is not stored.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from typing import Any, Final, Self

from proxy.counters.backends import response_store
from proxy.counters.budget_store import StoreUnavailable
from proxy.counters.idempotent_responses import StoredResponse
from proxy.gateway.http.errors import HttpError
from proxy.gateway.snapshot.config_snapshot import Caller
from proxy.ledger.errors import JournalUnavailable
from proxy.ledger.recorder import recorder

log = logging.getLogger("proxy.gateway")

MAX_STORED_BYTES: Final = 4 * 2**20
REPLAYED: Final = {"idempotent-replayed": "true"}


class Claim:
    """The claim of one request on its idempotency key, a context manager.

    Entering raises HttpError with the stored response if the request is repeated, and
    JournalUnavailable if the store cannot be reached. Leaving frees the idempotency key, except if
    a response was stored.
    """

    def __init__(self, caller: Caller, name: str, body: bytes) -> None:
        """``name``: the idempotency key. ``body``: of the request."""
        self._store = response_store(recorder.directory)
        self._owner, self._name = caller.key_id, name
        self._digest = hashlib.sha256(body).digest()
        self._store_body = caller.team.store_full
        self._response_stored = False

    async def __aenter__(self) -> Self:
        try:
            found = await asyncio.to_thread(
                self._store.claim, self._owner, self._name, self._digest
            )
        except StoreUnavailable as exc:
            raise JournalUnavailable(str(exc)) from exc
        if found is not None:
            raise _stored_response_error(found, self._digest)
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._response_stored:
            await self._settle(self._store.free, self._owner, self._name)

    async def store_response(self, body: bytes) -> None:
        """Store the body of a successful response.

        This happens before the response is sent, so that a client that has received it can repeat
        the request at once.
        """
        self._response_stored = True
        stored = body if self._store_body and len(body) <= MAX_STORED_BYTES else None
        response = StoredResponse(self._digest, done=True, body=stored)
        await self._settle(self._store.settle, self._owner, self._name, response)

    async def _settle(self, change: Callable[..., None], *arguments: Any) -> None:
        # Not cancellable: a claim that is never settled would reject the client's next attempt.
        try:
            await asyncio.shield(asyncio.to_thread(change, *arguments))
        except StoreUnavailable as exc:
            # The error is only logged, because the client gets its response all the same.
            log.warning("idempotency-key: %s; the same key is refused for an hour", exc)


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
