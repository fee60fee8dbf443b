"""``Idempotency-Key``: a repeated write gets the stored response of the first one.

The store is that of the Messages API (``proxy.counters``). A response may contain the secret of a
new key, so responses are stored encrypted. Only successful responses are stored: after an error, a
client may send the same key again.
"""

import contextlib
import functools
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any, Final

import msgspec
from django.views.decorators.debug import sensitive_variables
from rest_framework.exceptions import APIException, ParseError
from rest_framework.response import Response

from proxy.conf import conf
from proxy.counters.backends import response_store
from proxy.counters.budget_store import StoreUnavailable
from proxy.counters.idempotent_responses import StoredResponse
from proxy.encryption.upstream_secrets import decrypt_secret, encrypt_secret
from proxy.models import ApiKey

from .base_views import encode_json
from .exception_handler import Conflict
from .permissions import caller_of

MAX_LENGTH: Final = 255
HEADER: Final = "idempotency-key"
_decode: Final = msgspec.json.Decoder(tuple[int, Any]).decode


class StoreDown(APIException):
    status_code = 503
    default_detail = "the store of idempotency keys is unavailable; send the request again"


def idempotent(action: Callable[..., Response]) -> Callable[..., Response]:
    """Decorate a writing action of a viewset, so that an ``Idempotency-Key`` runs it only once."""

    @functools.wraps(action)
    def run_once(view: Any, request: Any, *args: Any, **kwargs: Any) -> Response:
        header = request.headers.get(HEADER, "")
        if not header:
            return action(view, request, *args, **kwargs)
        if len(header) > MAX_LENGTH or not (header.isascii() and header.isprintable()):
            raise ParseError(f"{HEADER} has at most {MAX_LENGTH} printable ASCII characters")
        caller = caller_of(request)
        # Users have negative owners, because the store has the ids of gateway keys as owners.
        owner = caller.pk if isinstance(caller, ApiKey) else -caller.pk
        name = f"rest:{header}"
        sent = f"{request.method} {request.path.rstrip('/')} {json.dumps(request.data)}"
        digest, store = hashlib.sha256(sent.encode()).digest(), response_store(conf.data_dir)
        try:
            found = store.claim(owner, name, digest)
        except StoreUnavailable:
            raise StoreDown from None
        if found is not None:
            return _replayed(found, digest, name)
        try:
            response = action(view, request, *args, **kwargs)
        except BaseException:
            with contextlib.suppress(StoreUnavailable):  # an unfinished claim expires
                store.free(owner, name)
            raise
        stored = StoredResponse(digest, done=True, body=_sealed(response, name))
        with contextlib.suppress(StoreUnavailable):  # as above; the write itself has succeeded
            store.settle(owner, name, stored)
        return response

    return run_once


@sensitive_variables()
def _sealed(response: Response, name: str) -> bytes:
    body = msgspec.json.encode([response.status_code, msgspec.Raw(encode_json(response.data))])
    return encrypt_secret(body.decode(), name).encode()


@sensitive_variables()
def _replayed(found: StoredResponse, digest: bytes, name: str) -> Response:
    if not hmac.compare_digest(found.digest, digest):
        raise ParseError(f"this {HEADER} was used with another request")
    if found.body is None:
        state = "was answered; the response is not stored" if found.done else "is running"
        raise Conflict(f"the request with this {HEADER} {state}")
    code, body = _decode(decrypt_secret(found.body.decode(), name).encode())
    return Response(body, status=code, headers={"Idempotent-Replayed": "true"})
