"""The hash chain: each closing or amendment of a row is a link; none can be changed alone."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from types import NoneType
from typing import Any, Final

import msgspec
from django.db import models, transaction

from proxy.models import Exchange, LedgerHead, Seal

from .rows import AnyRow
from .statements import write

encode = msgspec.json.Encoder(order="deterministic").encode


def hold_ledger() -> LedgerHead:
    """Take the ledger's lock until the transaction ends: one writer at a time, in the cluster.

    What is read after this call and written before the commit cannot be changed in between.
    """
    if not transaction.get_connection().in_atomic_block:
        raise transaction.TransactionManagementError("the ledger is held inside a transaction only")
    head = LedgerHead.objects.select_for_update().filter(pk=1).first()
    if head is None:
        LedgerHead.objects.bulk_create([LedgerHead(pk=1)], ignore_conflicts=True)
        head = LedgerHead.objects.select_for_update().get(pk=1)
    return head


def seal(head: LedgerHead, rows: Sequence[tuple[AnyRow, bytes | None]], now: datetime) -> None:
    """Append a link for each closed row and its body digest. ``head`` is held by the caller."""
    sequence, digest, day = head.sequence, bytes(head.digest), now.astimezone(UTC).date()
    links = []
    for row, body_digest in rows:
        sequence += 1
        row_digest = digest_of(row)
        digest = link(digest, sequence, row.pk, row_digest, body_digest)
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
    write(Seal, links)
    head.sequence, head.digest = sequence, digest
    head.save(update_fields=["sequence", "digest"])


def link(
    before: bytes, sequence: int, exchange_id: str, row_digest: bytes, body_digest: bytes | None
) -> bytes:
    pieces = (before, sequence.to_bytes(8, "big"), exchange_id.encode(), row_digest)
    return hashlib.sha256(b"".join((*pieces, body_digest or b""))).digest()


def digest_of(row: AnyRow) -> bytes:
    """SHA-256 over every column, by name, in a form that both databases give back the same."""
    columns = dict(zip(COLUMNS, _values_of(row), strict=True))
    for name in MOMENTS:
        if (moment := columns[name]) is not None:
            columns[name] = moment.astimezone(UTC).isoformat(timespec="microseconds")
    for name in OF_JSON:
        columns[name] = _canonical(columns[name])
    return hashlib.sha256(_encode(columns)).digest()


def _canonical(value: Any) -> str:
    """Sorted keys, and whole floats as integers: jsonb gives 1.0 back as 1.0, but 1e2 as 100."""
    if not value and (text := EMPTY.get(type(value))):
        return text
    raw = _encode(value)
    return (_sorted if len(raw) < LONG else _sort)(raw)


def _sort(raw: bytes) -> str:
    return encode(_decode(raw)).decode()


_sorted: Final = lru_cache(maxsize=64)(_sort)
"""Most rows have the price of a few models: 0.5 µs, where to sort it anew takes 1.8."""
LONG: Final = 1024  # bytes: longer ones are not remembered


def _number(text: str) -> int | float:
    number = float(text)
    return int(number) if number.is_integer() else number


_fields: Final = Exchange._meta.concrete_fields  # noqa: SLF001 -- Django's documented model API
COLUMNS: Final = sorted(field.attname for field in _fields)  # as ``encode`` would sort them
MOMENTS: Final = [f.attname for f in _fields if isinstance(f, models.DateTimeField)]
OF_JSON: Final = [f.attname for f in _fields if isinstance(f, models.JSONField)]
EMPTY: Final[Mapping[type, str]] = {list: "[]", dict: "{}", NoneType: "null"}
_values_of: Final = attrgetter(*COLUMNS)
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(float_hook=_number).decode
