"""The hash chain: a link for each closed or amended ledger row, with the previous link's digest.

Changing a row or a link is detected unless all later links are changed too, which needs the key of
their signatures (``chain_signatures``), and differs from the heads that were published.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec
from django.db import transaction

from proxy.ledger.database.bulk_sql import write
from proxy.models import Exchange, HashChainLink, LedgerHead, LinkKind, State

from .chain_signatures import sign
from .exchange_columns import AnyRow
from .row_digests import digest_of, is_digest_of


def lock_ledger() -> LedgerHead:
    """Lock the ledger until the transaction ends; return the locked head of the hash chain.

    Only one process of the cluster can have the lock, so no other one changes a ledger row before
    the commit.
    """
    if not transaction.get_connection().in_atomic_block:
        raise transaction.TransactionManagementError(
            "the ledger can be locked inside a transaction only"
        )
    head = LedgerHead.objects.select_for_update().filter(pk=1).first()
    if head is None:
        LedgerHead.objects.bulk_create([LedgerHead(pk=1)], ignore_conflicts=True)
        head = LedgerHead.objects.select_for_update().get(pk=1)
    return head


class Link(NamedTuple):
    """A link to append. ``subject``: a request id, or the name of another subject."""

    subject: str
    digest: bytes
    body_digest: bytes | None = None
    note: str = ""


class Note(msgspec.Struct, omit_defaults=True):
    """The note of an amendment."""

    audit: int = 0
    """The id of the audit entry of the command; 0: none, for a row that was closed again."""
    was: str = ""
    """``changed_groups`` before the change, in Base64; empty if it is the row's first link."""

    @property
    def groups_before(self) -> bytes:
        return base64.b64decode(self.was)

    def encode(self) -> str:
        return _encode(self).decode() if self != Note() else ""


def note_of(audit: int, groups_before: bytes = b"") -> Note:
    return Note(audit, base64.b64encode(groups_before).decode())


def append_links(
    head: LedgerHead,
    rows: Sequence[tuple[AnyRow, bytes | None]],
    now: datetime,
    kind: LinkKind = LinkKind.CLOSED,
    notes: Mapping[str, Note] = {},
) -> None:
    """Append a link for each closed row and the digest of its transcript (None: not stored).

    ``notes``: of the amended rows, by request id. The caller has locked ``head``.
    """
    links = [
        Link(row.pk, digest_of(row), body, notes[row.pk].encode() if row.pk in notes else "")
        for row, body in rows
    ]
    append(head, kind, links, now)


def append(head: LedgerHead, kind: LinkKind, new: Sequence[Link], now: datetime) -> None:
    """Append links of one kind, and sign them. The caller has locked ``head``."""
    if not new:
        return
    sequence, digest, day = head.sequence, bytes(head.digest), now.astimezone(UTC).date()
    links: list[dict[str, Any]] = []
    for one in new:
        sequence += 1
        digest = link_digest(
            digest, sequence, one.subject, one.digest, one.body_digest, kind, one.note
        )
        links.append(
            {
                "sequence": sequence,
                "day": day,
                "exchange_id": one.subject,
                "row_digest": one.digest,
                "body_digest": one.body_digest,
                "kind": kind.value,
                "note": one.note,
                "digest": digest,
                "signature": None,
            }
        )
    links[-1]["signature"] = sign(head.sequence + 1, digest)
    write(HashChainLink, links)
    head.sequence, head.digest = sequence, digest
    head.save(update_fields=["sequence", "digest"])


def link_digest(  # noqa: PLR0917 -- the order is that of the digest
    before: bytes,
    sequence: int,
    subject: str,
    row_digest: bytes,
    body_digest: bytes | None,
    kind: str = "",
    note: str = "",
) -> bytes:
    """Return the SHA-256 digest of a link; ``before`` is the digest of the previous link.

    A link without a kind was written by 1.0, whose digests had no other fields.
    """
    if not kind:
        old = (
            before,
            sequence.to_bytes(8, "big"),
            subject.encode(),
            row_digest,
            body_digest or b"",
        )
        return hashlib.sha256(b"".join(old)).digest()
    body = body_digest.hex() if body_digest else None
    fields = _encode([before.hex(), sequence, subject, row_digest.hex(), body, kind, note])
    return hashlib.sha256(fields).digest()


def is_unchanged(row: Exchange) -> bool:
    """Return whether a row is as its newest link says; an open row has none yet.

    A new link for a changed row would hide the change.
    """
    return not differing([row]) or (
        row.state == State.OPEN and not HashChainLink.objects.filter(exchange_id=row.pk).exists()
    )


def differing(rows: Sequence[Exchange]) -> list[Exchange]:
    """Return the rows that are not as their newest links say, or that have none."""
    links = HashChainLink.objects.filter(exchange_id__in=[row.pk for row in rows])
    newest = {
        pk: (bytes(digest), kind)
        for pk, digest, kind in links.order_by("sequence").values_list(
            "exchange_id", "row_digest", "kind"
        )
    }
    return [
        row
        for row in rows
        if row.pk not in newest or not is_digest_of(newest[row.pk][0], row, newest[row.pk][1])
    ]


_encode: Final = msgspec.json.Encoder().encode
