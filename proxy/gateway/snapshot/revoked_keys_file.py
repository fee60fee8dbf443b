"""Keep revoked keys revoked after the database is restored from an older backup.

Every node writes the digests of revoked keys to a file in its data directory, which a restore of
the database does not change. A key that is valid again after a restore is revoked again, even if
bridge.toml declares it. A key that was revoked only because bridge.toml no longer declares it is
not written, because bridge.toml may declare it again. Earlier versions did not distinguish these
two cases, so their entries (a digest without a mark) apply only to keys that bridge.toml does not
manage.
"""

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from django.db import transaction
from django.utils.timezone import now

from proxy.audit_log import Action, record
from proxy.conf import conf
from proxy.models import ApiKey, Revision

log = logging.getLogger("proxy.gateway")

FILE_NAME: Final = "revoked_keys"
REQUIRED_FIELDS: Final = frozenset({"digest", "dropped", "managed", "revoked"})
PERMANENT_MARK: Final = "+"
BYTES_TYPES: Final = (bytes, memoryview)


def update(keys: Iterable[ApiKey], path: Path | None = None) -> None:
    """Add revoked keys to the file. Revoke keys that are in the file but valid in the database.

    An error when the file is read or written is only logged.
    """
    path = path or conf.data_dir / FILE_NAME
    known = _read_entries(path)
    added = []
    for key in keys:
        if REQUIRED_FIELDS & key.get_deferred_fields() or not isinstance(key.digest, BYTES_TYPES):
            continue  # the row is invalid, so the key is not accepted anyway
        digest = bytes(key.digest).hex()
        entry = digest + PERMANENT_MARK
        if key.revoked is not None and key.revoked <= now():
            if entry not in known and not key.dropped:
                added.append(entry)
        elif entry in known or (digest in known and not key.managed):
            revoke_again(key)
    if added:
        _append(path, added)


def _read_entries(path: Path) -> frozenset[str]:
    try:
        return frozenset(path.read_text(encoding="ascii").split())
    except FileNotFoundError:
        return frozenset()
    except (OSError, UnicodeDecodeError) as exc:
        log.warning("%s cannot be read: %s", path.name, exc)
        return frozenset()


def _append(path: Path, entries: list[str]) -> None:
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, "".join(f"{entry}\n" for entry in entries).encode())
            os.fsync(file)
        finally:
            os.close(file)
    except OSError as exc:
        log.warning("%s cannot be written: %s", path.name, exc)


def revoke_again(key: ApiKey) -> None:
    """Revoke a key that an older backup has restored, and record it in the audit log."""
    key.revoked = now()
    with transaction.atomic():
        if ApiKey.objects.filter(pk=key.pk, revoked=None).update(revoked=key.revoked):
            record(Action.REVOKE, key, detail="revoked before the database was restored")
        Revision.bump()  # nodes without this entry then read their keys again
    log.warning("key %d was revoked before the database was restored; it is again", key.pk)
