"""Publish the end of the hash chain each hour, where whoever changes the database cannot reach it.

A head goes to the log and to a file of the data directory. ``verifyledger`` compares the chain with
the file, or with a copy: so links that were cut off or written again are found up to the last head.
"""

import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from django.db import transaction

from proxy.ledger.posting.chain_signatures import public_keys, sign
from proxy.ledger.posting.hash_chain import Link, append, lock_ledger
from proxy.models import AuditEntry, HashChainLink, LedgerHead, LinkKind
from proxy.secrets import ConfigError

logger = logging.getLogger(__name__)

FILE: Final = "ledger_heads"
AUDIT: Final = "audit_"
"""The start of the subject of links for audit entries; their padded ids sort as numbers."""
HEAD: Final = 0
"""In place of the first link of a range: the signature of a head is none of links."""
BATCH: Final = 1000


class PublishedHead(msgspec.Struct):
    """One line of the file. ``signature`` covers the digest, which covers the sequence."""

    at: datetime
    sequence: int
    digest: str
    key: str
    """The public key, in hex, as the other bytes."""
    signature: str


def publish(path: Path) -> PublishedHead | None:
    """Append the end of the chain to the file and the log; None: it is published already.

    Entries of the audit log get their links first.
    """
    link_audit_entries()
    head = LedgerHead.objects.filter(pk=1).first()
    if head is None or not head.sequence:
        return None
    signature = sign(HEAD, bytes(head.digest))
    known = [one.sequence for one in published(path)]
    if signature is None or head.sequence in known[-1:]:
        return None
    key = min(public_keys(current_only=True)).hex()
    found = PublishedHead(
        datetime.now(UTC), head.sequence, bytes(head.digest).hex(), key, signature.hex()
    )
    line = msgspec.json.encode(found)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())
    logger.info("ledger head: %s", line.decode())
    return found


def published(path: Path) -> list[PublishedHead]:
    """Return the heads in the file; none if there is no file. Raises ConfigError."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    heads = []
    for number, line in enumerate(lines, 1):
        # A line may be copied from the log, with the time and the logger's name before it.
        try:
            heads.append(msgspec.json.decode(line[line.find(b"{") :], type=PublishedHead))
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{path}: line {number} is not a published head: {error}") from None
    return heads


def link_audit_entries() -> None:
    """Append a link for each entry of the audit log that has none."""
    while True:
        with transaction.atomic():
            head = lock_ledger()
            batch = list(AuditEntry.objects.filter(pk__gt=last_linked()).order_by("pk")[:BATCH])
            links = [Link(subject_of(one), digest_of_entry(one)) for one in batch]
            append(head, LinkKind.AUDIT, links, datetime.now(UTC))
        if len(batch) < BATCH:
            return


def linked_entries(pks: Sequence[int]) -> list[int]:
    """Return which of these entries of the audit log are as their newest link says."""
    found = []
    for entry in AuditEntry.objects.filter(pk__in=pks).iterator():
        links = HashChainLink.objects.filter(exchange_id=subject_of(entry)).order_by("-sequence")
        link = links.first()
        if link is not None and bytes(link.row_digest) == digest_of_entry(entry):
            found.append(entry.pk)
    return found


def link_again(pks: Sequence[int]) -> None:
    """Append a link for each of these entries, which an erasure has changed."""
    with transaction.atomic():
        head = lock_ledger()
        entries = AuditEntry.objects.filter(pk__in=pks).order_by("pk")
        links = [Link(subject_of(one), digest_of_entry(one)) for one in entries]
        append(head, LinkKind.AUDIT, links, datetime.now(UTC))


def last_linked() -> int:
    """Return the id of the newest audit entry with a link; 0: there is none."""
    links = HashChainLink.objects.filter(exchange_id__startswith=AUDIT).order_by("-exchange_id")
    newest = links.values_list("exchange_id", flat=True).first()
    return int(newest.removeprefix(AUDIT)) if newest else 0


def subject_of(entry: AuditEntry) -> str:
    return f"{AUDIT}{entry.pk:020}"


def digest_of_entry(entry: AuditEntry) -> bytes:
    """Return the SHA-256 of all columns of an entry, equal for SQLite and PostgreSQL."""
    fields = {field.attname: getattr(entry, field.attname) for field in _FIELDS}
    fields["created"] = entry.created.astimezone(UTC).isoformat(timespec="microseconds")
    return hashlib.sha256(msgspec.json.encode(fields, order="deterministic")).digest()


def not_linked() -> Iterator[AuditEntry]:
    """Yield the entries up to the newest linked one that have no link themselves."""
    last = last_linked()
    linked = set(
        HashChainLink.objects.filter(exchange_id__startswith=AUDIT).values_list(
            "exchange_id", flat=True
        )
    )
    for entry in AuditEntry.objects.filter(pk__lte=last).order_by("pk").iterator():
        if subject_of(entry) not in linked:
            yield entry


_FIELDS: Final = AuditEntry._meta.concrete_fields  # noqa: SLF001 -- Django's documented model API
