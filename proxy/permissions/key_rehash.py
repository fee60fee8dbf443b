"""Replace the digests of gateway keys after SECRET_KEY has changed.

Only the digest of a key is stored, so it can be computed under the new SECRET_KEY only when a
client sends the key. Until then, the digest under one of SECRET_KEY_FALLBACKS identifies it.
"""

import logging

from django.db import DatabaseError, InterfaceError

from proxy.models import ApiKey, Revision

log = logging.getLogger(__name__)


def rehash(key_id: int, old: bytes, new: bytes) -> None:
    """Store the digest under the current SECRET_KEY, unless the key has another secret by now.

    An error is only logged: the next request with the key tries again. All processes load the key
    again; this revokes it if it was revoked before the database was restored.
    """
    try:
        if ApiKey.objects.filter(pk=key_id, digest=old).update(digest=new):
            Revision.bump()
    except (DatabaseError, InterfaceError) as exc:
        log.warning("key %d keeps the digest of an earlier secret key: %s", key_id, exc)
