"""The hash chain: a link for each closed or amended ledger row, with the previous link's digest.

Changing a row or a link is detected unless all later links are changed too, which needs the key of
their signatures (``chain_signatures``), and differs from the heads that were published.
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from types import NoneType
from typing import Any, Final, NamedTuple

import msgspec
from django.db import models, transaction

from proxy.encryption.bodies import stored_text
from proxy.ledger.database.bulk_sql import write
from proxy.models import Exchange, HashChainLink, LedgerHead, LinkKind
from proxy.models.encrypted_text import BodyTextField

from .chain_signatures import sign
from .exchange_columns import AnyRow

encode = msgspec.json.Encoder(order="deterministic").encode


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


def append_links(
    head: LedgerHead,
    rows: Sequence[tuple[AnyRow, bytes | None]],
    now: datetime,
    kind: LinkKind = LinkKind.CLOSED,
) -> None:
    """Append a link for each closed row and the digest of its transcript (None: not stored).

    The caller has locked ``head``.
    """
    append(head, kind, [Link(row.pk, digest_of(row), body) for row, body in rows], now)


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


def is_unchanged(row: AnyRow) -> bool:
    """Return whether a row is as its newest link says; True if it has none, as an open row has.

    A new link for a changed row would hide the change.
    """
    links = HashChainLink.objects.filter(exchange_id=row.pk).order_by("-sequence")
    newest = links.values_list("row_digest", flat=True).first()
    return newest is None or bytes(newest) == digest_of(row)


def digest_of(row: AnyRow) -> bytes:
    """Return the SHA-256 of all columns of a ledger row, equal for SQLite and PostgreSQL."""
    columns = dict(zip(COLUMNS, _values_of(row), strict=True))
    for name in LATER_COLUMNS:
        if not columns[name]:
            del columns[name]
    for name in DATETIMES:
        if (value := columns[name]) is not None:
            columns[name] = value.astimezone(UTC).isoformat(timespec="microseconds")
    for name in JSON_COLUMNS:
        if name in columns:
            columns[name] = _canonical(columns[name])
    for name in BODY_TEXTS:  # the encrypted form, so that the digest is valid without the key
        columns[name] = stored_text(columns[name])
    return hashlib.sha256(_encode(columns)).digest()


def _canonical(value: Any) -> str:
    """Return JSON with sorted keys, and with integral floats as integers.

    PostgreSQL's jsonb does not preserve number formats: it returns 1.0 as 1.0, but 1e2 as 100.
    """
    if not value and (text := EMPTY.get(type(value))):
        return text
    raw = _encode(value)
    return (_sort_cached if len(raw) < LONG else _sort)(raw)


def _sort(raw: bytes) -> str:
    return encode(_decode(raw)).decode()


_sort_cached: Final = lru_cache(maxsize=64)(_sort)
"""Most rows repeat the price of a few models: a cache hit takes 0.5 us, sorting the keys 1.8 us."""
LONG: Final = 1024  # bytes; longer JSON texts are not cached


def _number(text: str) -> int | float:
    number = float(text)
    return int(number) if number.is_integer() else number


_fields: Final = Exchange._meta.concrete_fields  # noqa: SLF001 -- Django's documented model API
# The order is that of sorted JSON keys.
COLUMNS: Final = sorted(field.attname for field in _fields)
LATER_COLUMNS: Final = ("inference_geo", "iterations", "speed")
"""Columns that the first version did not have. Empty, they are not part of the digest, so that the
digests of older rows stay valid."""
DATETIMES: Final = [f.attname for f in _fields if isinstance(f, models.DateTimeField)]
JSON_COLUMNS: Final = [f.attname for f in _fields if isinstance(f, models.JSONField)]
BODY_TEXTS: Final = [f.attname for f in _fields if isinstance(f, BodyTextField)]
EMPTY: Final[Mapping[type, str]] = {list: "[]", dict: "{}", NoneType: "null"}
_values_of: Final = attrgetter(*COLUMNS)
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(float_hook=_number).decode
