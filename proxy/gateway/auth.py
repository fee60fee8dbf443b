"""Headers -> Caller: a digest lookup in memory, no database, no comparison of secrets."""

import time

from proxy.key_validity import INVALID, MESSAGES, refusal
from proxy.secrets import digest_of_bytes

from .directory import Caller, directory
from .head import Head, inside
from .refusals import Refusal, directory_unavailable, forbidden, unauthenticated

LONGEST_KEY = 512


def authenticate(head: Head, scope: str = "messages") -> Caller:
    """The key behind ``x-api-key`` or ``Authorization: Bearer``, and it may do this.

    Raises Refusal: 400 when both are there and differ, 401, 403, or 503 when an unknown key may be
    a new one that cannot be looked up now.
    """
    caller = identify(head)
    authorise(caller, head, scope)
    return caller


def identify(head: Head) -> Caller:
    """Whose key it is, whether or not it may still do anything. Raises Refusal 400, 401 or 503."""
    caller = directory.snapshot.keys.get(digest_of_bytes(_presented(head)))
    if caller is None:
        if not directory.fresh:
            raise directory_unavailable()
        raise unauthenticated(INVALID)
    return caller


def authorise(caller: Caller, head: Head, scope: str = "messages") -> None:
    """Raises Refusal 401 or 403."""
    if caller.ends and (reason := refusal(caller.ends, time.time())):
        raise unauthenticated(MESSAGES[reason])
    if caller.ip_allow and not inside(head.ip, caller.ip_allow):
        raise forbidden("this gateway key may not be used from this address")
    if scope not in caller.scopes:
        raise forbidden(f"this gateway key lacks the scope {scope!r}")


def _presented(head: Head) -> bytes:
    headers = head.headers
    presented = headers[b"x-api-key"].strip() if b"x-api-key" in headers else b""
    differ = head.credentials_differ
    if b"authorization" in headers:
        scheme, _, bearer = headers[b"authorization"].strip().partition(b" ")
        bearer = bearer.strip() if scheme.lower() == b"bearer" else b""
        differ = differ or bool(presented and bearer and presented != bearer)
        presented = presented or bearer
    if differ:
        raise Refusal(
            400,
            "invalid_request_error",
            "x-api-key and Authorization carry different keys; send one",
        )
    if not presented:
        raise unauthenticated("no gateway key; send x-api-key or Authorization: Bearer")
    if len(presented) > LONGEST_KEY or not presented.isascii():
        raise unauthenticated(INVALID)
    return presented
