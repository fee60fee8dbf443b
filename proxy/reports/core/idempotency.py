"""``Idempotency-Key``: a repeated write gets the stored response of the first one.

The write and its response are one transaction. A response may contain the secret of a new key, so
responses are stored encrypted. Only successful responses are stored: after an error, a client may
send the same key again.
"""

import contextlib
import functools
import hashlib
import hmac
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import msgspec
from django.db import DatabaseError, IntegrityError, transaction
from django.utils.timezone import now
from django.views.decorators.debug import sensitive_variables
from rest_framework.exceptions import ParseError
from rest_framework.response import Response

from proxy.encryption.upstream_secrets import decrypt_secret, encrypt_secret
from proxy.ledger.maintenance.retention import IDEMPOTENT_FOR
from proxy.models import ApiKey, IdempotentWrite

from .base_views import encode_json
from .exception_handler import Conflict
from .permissions import caller_of

MAX_LENGTH: Final = 255
HEADER: Final = "idempotency-key"
ABANDONED_AFTER: Final = timedelta(hours=1)
"""No write takes this long: its process was killed."""
_decode: Final = msgspec.json.Decoder(tuple[int, Any]).decode


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
        sent = f"{request.method} {request.path.rstrip('/')} {json.dumps(request.data)}"
        digest = hashlib.sha256(sent.encode()).digest()
        claim, is_new = _claim(
            caller.pk if isinstance(caller, ApiKey) else -caller.pk, header, digest
        )
        if not is_new:
            return _stored_response(claim, digest)
        try:
            with transaction.atomic():
                response = action(view, request, *args, **kwargs)
                claim.response = _sealed(response, header)
                claim.save(update_fields=["response"])
        except BaseException:
            with contextlib.suppress(DatabaseError):  # an abandoned claim expires
                claim.delete()
            raise
        return response

    return run_once


def _claim(owner: int, name: str, digest: bytes) -> tuple[IdempotentWrite, bool]:
    """Return the write of this idempotency key, and whether this call created it."""
    at = now()
    found = IdempotentWrite.objects.filter(owner=owner, name=name)
    found.filter(created__lt=at - IDEMPOTENT_FOR).delete()
    found.filter(created__lt=at - ABANDONED_AFTER, response="").delete()
    try:
        return found.get_or_create(
            defaults={"owner": owner, "name": name, "digest": digest, "created": at}
        )
    except IntegrityError:  # the other write failed between the two queries
        raise Conflict(f"another request with this {HEADER} has just failed") from None


@sensitive_variables()
def _sealed(response: Response, name: str) -> str:
    body = msgspec.json.encode([response.status_code, msgspec.Raw(encode_json(response.data))])
    return encrypt_secret(body.decode(), name)


@sensitive_variables()
def _stored_response(found: IdempotentWrite, digest: bytes) -> Response:
    if not hmac.compare_digest(bytes(found.digest), digest):
        raise ParseError(f"this {HEADER} was used with another request")
    if not found.response:
        raise Conflict(f"the request with this {HEADER} is running")
    code, body = _decode(decrypt_secret(found.response, found.name).encode())
    return Response(body, status=code, headers={"Idempotent-Replayed": "true"})
