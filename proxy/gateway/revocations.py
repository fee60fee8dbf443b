"""Revoked keys stay revoked when the database is restored from a backup of before (T49).

Every node keeps digests of revoked keys in a file beside its spool, which no restore of the
database touches, and revokes again whatever comes back, also a key of bridge.toml. A key that is
revoked only since the file no longer names it is left out: the file may name it again. Earlier
versions could not tell the two apart, so what they noted (a digest without a mark) counts only for
keys that the file does not manage.
"""

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from django.utils.timezone import now

from proxy.conf import conf
from proxy.models import ApiKey, Revision

log = logging.getLogger("proxy.gateway")

NAME: Final = "revoked_keys"
UNDECIDED: Final = frozenset({"digest", "dropped", "managed", "revoked"})
FOR_GOOD: Final = "+"
BYTES: Final = (bytes, memoryview)


def keep(keys: Iterable[ApiKey], path: Path | None = None) -> None:
    """Note who is revoked; revoke again who was, and is not any more. Never raises for the file."""
    path = path or conf.data_dir / NAME
    listed = _listed(path)
    fresh = []
    for key in keys:
        if UNDECIDED & key.get_deferred_fields() or not isinstance(key.digest, BYTES):
            continue  # nobody can read it, and it opens nothing
        digest = bytes(key.digest).hex()
        entry = digest + FOR_GOOD
        if key.revoked is not None and key.revoked <= now():
            if entry not in listed and not key.dropped:
                fresh.append(entry)
        elif entry in listed or (digest in listed and not key.managed):
            _again(key)
    if fresh:
        _note(path, fresh)


def _listed(path: Path) -> frozenset[str]:
    try:
        return frozenset(path.read_text(encoding="ascii").split())
    except FileNotFoundError:
        return frozenset()
    except (OSError, UnicodeDecodeError) as exc:
        log.warning("%s cannot be read: %s", path.name, exc)
        return frozenset()


def _note(path: Path, entries: list[str]) -> None:
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, "".join(f"{entry}\n" for entry in entries).encode())
            os.fsync(file)
        finally:
            os.close(file)
    except OSError as exc:
        log.warning("%s cannot be written: %s", path.name, exc)


def _again(key: ApiKey) -> None:
    key.revoked = now()
    ApiKey.objects.filter(pk=key.pk, revoked=None).update(revoked=key.revoked)
    Revision.rise()  # nodes that have no such entry read their keys again
    log.warning("key %d was revoked before the database was restored; it is again", key.pk)
