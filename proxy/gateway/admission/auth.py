"""Authenticate a request: look up the digest of its key in memory, without the database."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from django.db import connection

from proxy.gateway.http.errors import HttpError, directory_unavailable, unauthenticated
from proxy.gateway.http.request_headers import RequestHeaders
from proxy.gateway.snapshot.config_snapshot import Caller, ConfigStore, directory
from proxy.ledger.database.access import check_present
from proxy.ledger.errors import LedgerUnavailable
from proxy.permissions.key_rehash import rehash
from proxy.permissions.key_validity import INVALID
from proxy.secrets import digest_of_bytes, old_digests_of

from .checks import key_rules, require

log = logging.getLogger("proxy.gateway")

LONGEST_KEY = 512

_rehashing: Final[set[bytes]] = set()
"""Digests that a thread is replacing."""


def authenticate(
    head: RequestHeaders, scope: str = "messages", store: ConfigStore = directory
) -> Caller:
    """Return the caller whose key is in ``x-api-key`` or ``Authorization: Bearer``.

    Raises HttpError 400 if the two headers have different keys, 401 if the key is missing or
    invalid, 403 if the key lacks ``scope`` or may not be used from the client's address, and 503 if
    the key is unknown but the configuration snapshot may be out of date.
    """
    caller = identify(head, store)
    authorise(caller, head, scope)
    return caller


def identify(head: RequestHeaders, store: ConfigStore = directory) -> Caller:
    """Return the caller that the request's gateway key identifies.

    The key may be expired or revoked. Raises HttpError 400, 401 or 503.
    """
    presented = _presented(head)
    keys = store.snapshot.keys
    caller = keys.get(digest_of_bytes(presented)) or _find_old_digest(presented, keys)
    if caller is None:
        if not store.fresh:
            raise directory_unavailable()
        raise unauthenticated(INVALID)
    return caller


def _find_old_digest(presented: bytes, keys: Mapping[bytes, Caller]) -> Caller | None:
    """Return the caller whose digest is that under an earlier SECRET_KEY, and replace the digest.

    The database is written in another thread, once for concurrent requests.
    """
    for old in old_digests_of(presented):
        caller = keys.get(old)
        if caller is not None:
            if old not in _rehashing:
                _rehashing.add(old)
                arguments = (caller.key_id, old, digest_of_bytes(presented))
                asyncio.get_running_loop().run_in_executor(None, _rehash, *arguments)
            return caller
    return None


def _rehash(key_id: int, old: bytes, new: bytes) -> None:
    try:
        check_present()
        rehash(key_id, old, new)
    except LedgerUnavailable as exc:
        log.warning("key %d keeps the digest of an earlier secret key: %s", key_id, exc)
    finally:
        _rehashing.discard(old)
        connection.close()


def authorise(caller: Caller, head: RequestHeaders, scope: str = "messages") -> None:
    """Check the caller's key: validity, allowed client addresses and scope.

    Raises HttpError 401 or 403.
    """
    require(key_rules(caller, head.ip if caller.ip_allow else None, scope))


def _presented(head: RequestHeaders) -> bytes:
    headers = head.headers
    presented = headers[b"x-api-key"].strip() if b"x-api-key" in headers else b""
    differ = head.credentials_differ
    if b"authorization" in headers:
        scheme, _, bearer = headers[b"authorization"].strip().partition(b" ")
        bearer = bearer.strip() if scheme.lower() == b"bearer" else b""
        differ = differ or bool(presented and bearer and presented != bearer)
        presented = presented or bearer
    if differ:
        raise HttpError(
            400,
            "invalid_request_error",
            "x-api-key and Authorization carry different keys; send one",
        )
    if not presented:
        raise unauthenticated("no gateway key; send x-api-key or Authorization: Bearer")
    if len(presented) > LONGEST_KEY or not presented.isascii():
        raise unauthenticated(INVALID)
    return presented
