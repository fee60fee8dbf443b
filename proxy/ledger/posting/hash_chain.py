"""The hash chain: a link for each closed or amended ledger row, with the previous link's digest.

Changing a row or a link is detected unless all later links are changed too.
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from types import NoneType
from typing import Any, Final

import msgspec
from django.db import models, transaction

from proxy.encryption.bodies import stored_text
from proxy.ledger.database.bulk_sql import write
from proxy.models import Exchange, HashChainLink, LedgerHead
from proxy.models.encrypted_text import BodyTextField

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


def append_links(
    head: LedgerHead, rows: Sequence[tuple[AnyRow, bytes | None]], now: datetime
) -> None:
    """Append a link for each closed row and the digest of its transcript (None: not stored).

    The caller has locked ``head``.
    """
    sequence, digest, day = head.sequence, bytes(head.digest), now.astimezone(UTC).date()
    links = []
    for row, body_digest in rows:
        sequence += 1
        row_digest = digest_of(row)
        digest = link_digest(digest, sequence, row.pk, row_digest, body_digest)
        links.append(
            {
                "sequence": sequence,
                "day": day,
                "exchange_id": row.pk,
                "row_digest": row_digest,
                "body_digest": body_digest,
                "digest": digest,
            }
        )
    write(HashChainLink, links)
    head.sequence, head.digest = sequence, digest
    head.save(update_fields=["sequence", "digest"])


def link_digest(
    before: bytes, sequence: int, exchange_id: str, row_digest: bytes, body_digest: bytes | None
) -> bytes:
    """Return the SHA-256 digest of a link; ``before`` is the digest of the previous link."""
    pieces = (before, sequence.to_bytes(8, "big"), exchange_id.encode(), row_digest)
    return hashlib.sha256(b"".join((*pieces, body_digest or b""))).digest()


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
