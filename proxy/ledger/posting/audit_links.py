"""Links of the hash chain for entries of the audit log, which the links of amendments name."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from django.db import transaction

from proxy.audit_log import Action, record
from proxy.models import AuditEntry, HashChainLink, LedgerHead, LinkKind

from .hash_chain import Link, Note, append, lock_ledger, newest_links

AUDIT: Final = "audit_"
"""The start of the subject of links for audit entries; their padded ids sort as numbers."""
BATCH: Final = 500
LATE: Final = 400
"""How many ids before the last linked one are looked at again: PostgreSQL gives out an id before
the commit, so an entry may become visible after one with a higher id."""


class Cause:
    """Why rows are amended: an entry of the audit log, recorded with the first amendment.

    The entry and its link are written in the transaction of the amendment.
    """

    def __init__(self, action: Action, detail: str, subject: str = "") -> None:
        self._action, self._detail, self._subject = action, detail, subject
        self._pk = 0

    def link(self, head: LedgerHead) -> int:
        """Return the id of the entry, which has a link. The caller has locked ``head``."""
        # The transaction that recorded it may be rolled back, and its id be that of another entry.
        own = AuditEntry.objects.filter(pk=self._pk, action=self._action, detail=self._detail)
        if not own.exists():
            entry = record(self._action, detail=self._detail, subject=self._subject)
            self._pk = entry.pk
            while batch := without_link():
                _append(head, batch)
        return self._pk


def link_audit_entries() -> None:
    """Append a link for each entry of the audit log that has none."""
    while True:
        with transaction.atomic():
            head = lock_ledger()
            batch = without_link()
            _append(head, batch)
        if not batch:
            return


def intact_entries(pks: Sequence[int]) -> list[int]:
    """Return which of these entries are as their newest link says."""
    entries = {subject_of(one): one for one in AuditEntry.objects.filter(pk__in=pks)}
    return [
        entries[subject].pk
        for subject, link in newest_links(entries).items()
        if bytes(link.row_digest) == digest_of_entry(entries[subject])
    ]


def link_again(head: LedgerHead, entries: Iterable[AuditEntry], cause: int) -> None:
    """Append links for entries that an erasure has changed. The caller has locked ``head``."""
    _append(head, entries, Note(cause).encode())


def without_link() -> list[AuditEntry]:
    """Return the next entries of the audit log that have no link."""
    last = last_linked()
    recent = AuditEntry.objects.filter(pk__gt=max(0, last - LATE)).order_by("pk")
    return _without(recent[: LATE + BATCH])


def not_linked() -> Iterator[AuditEntry]:
    """Yield the entries up to the newest linked one that have no link themselves."""
    entries = AuditEntry.objects.filter(pk__lte=last_linked()).order_by("pk")
    batch: list[AuditEntry] = []
    for entry in entries.iterator():
        batch.append(entry)
        if len(batch) == BATCH:
            yield from _without(batch)
            batch = []
    yield from _without(batch)


def last_linked() -> int:
    """Return the id of the newest audit entry with a link; 0: there is none."""
    ends = (f"{AUDIT}{0:020}", f"{AUDIT}{'9' * 20}")
    links = HashChainLink.objects.filter(exchange_id__range=ends).order_by("-exchange_id")
    subjects = links.values_list("exchange_id", flat=True).iterator()
    return next(filter(None, map(entry_of, subjects)), 0)


def entry_of(subject: str) -> int:
    """Return the id of the entry of a link; 0 if the gateway did not write such a subject."""
    digits = subject.removeprefix(AUDIT)
    is_id = len(digits) == 20 and digits.isascii() and digits.isdigit()
    return int(digits) if is_id and subject.startswith(AUDIT) and int(digits) < 2**63 else 0


def subject_of(entry: AuditEntry) -> str:
    return f"{AUDIT}{entry.pk:020}"


def digest_of_entry(entry: AuditEntry) -> bytes:
    """Return the SHA-256 of all columns of an entry, equal for SQLite and PostgreSQL."""
    fields = {field.attname: getattr(entry, field.attname) for field in _FIELDS}
    fields["created"] = entry.created.astimezone(UTC).isoformat(timespec="microseconds")
    return hashlib.sha256(msgspec.json.encode(fields, order="deterministic")).digest()


def _append(head: LedgerHead, entries: Iterable[AuditEntry], note: str = "") -> None:
    links = [Link(subject_of(one), digest_of_entry(one), note=note) for one in entries]
    append(head, LinkKind.AUDIT, links, datetime.now(UTC))


def _without(entries: Iterable[AuditEntry]) -> list[AuditEntry]:
    by_subject = {subject_of(one): one for one in entries}
    links = HashChainLink.objects.filter(exchange_id__in=list(by_subject))
    for linked in links.values_list("exchange_id", flat=True):
        by_subject.pop(linked, None)
    return list(by_subject.values())


_FIELDS: Final = AuditEntry._meta.concrete_fields  # noqa: SLF001 -- Django's documented model API
