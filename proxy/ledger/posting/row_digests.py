"""The digests of a ledger row: of each group of its columns, and of all groups together.

A link of the hash chain has the digest of the row. An amendment may change some groups only, and
its link also has their digests before the change: together with the row, they prove that no other
column was changed.
"""

import hashlib
from collections.abc import Iterable, Mapping
from datetime import UTC
from functools import lru_cache
from operator import attrgetter
from types import NoneType
from typing import Any, Final

import msgspec
from django.db import models

from proxy.encryption.bodies import stored_text
from proxy.models import Exchange, LinkKind
from proxy.models.encrypted_text import BodyTextField

from .exchange_columns import FROM_CLOSE, OVERRIDDEN, AnyRow, token_columns

Digests = Mapping[str, bytes]
"""The digest of each group, in the order of ``GROUPS``."""


def digest_of(row: AnyRow) -> bytes:
    """Return the SHA-256 of all columns of a ledger row, equal for SQLite and PostgreSQL."""
    return combined(group_digests(row))


def combined(digests: Digests) -> bytes:
    return hashlib.sha256(b"".join(digests.values())).digest()


def group_digests(row: AnyRow) -> dict[str, bytes]:
    columns = _columns_of(row)
    return {
        group: _digest({name: columns[name] for name in names if name in columns})
        for group, names in GROUPS.items()
    }


def is_digest_of(digest: bytes, row: AnyRow, kind: str) -> bool:
    """Return whether a link of this kind has the digest of the row.

    A link without a kind was written by 1.0, whose digests had no groups.
    """
    return digest == (digest_of(row) if kind else _digest(_columns_of(row)))


def changed_groups(row: AnyRow, kind: LinkKind) -> bytes:
    """Return the digests of the groups that links of this kind may change, one after the other."""
    digests = group_digests(row)
    return b"".join(digests[group] for group in CHANGES[kind])


def with_groups_before(digests: Digests, kind: LinkKind, before: bytes) -> Digests:
    """Return the digests with those of ``changed_groups`` before the change in their places."""
    size = hashlib.sha256().digest_size
    parts = (before[at : at + size] for at in range(0, len(before), size))
    return {**digests, **dict(zip(CHANGES[kind], parts, strict=True))}


def columns_changed_by(kind: LinkKind) -> frozenset[str]:
    return frozenset(name for group in CHANGES[kind] for name in GROUPS[group])


def _columns_of(row: AnyRow) -> dict[str, Any]:
    """Return the values of the columns in the form that is digested, sorted by name."""
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
    return columns


def _digest(columns: Mapping[str, Any]) -> bytes:
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
    return _encode_sorted(_decode(raw)).decode()


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


def _groups() -> Mapping[str, tuple[str, ...]]:
    """Return each group with its columns. Each column is in one group."""
    named: Mapping[str, Iterable[str]] = {
        "money": ("cost_nanousd", "price"),
        "texts": BODY_TEXTS,
        "person": (
            "user",
            "betas",
            "key_name",
            "session_id",
            "agent_id",
            "parent_agent_id",
            "ip",
            "user_agent",
            "traceparent",
            "tags",
        ),
        "trace": ("attempts", "notes", "upstream_request_id"),
        "ending": ("state", "finished", *FROM_CLOSE, *OVERRIDDEN, *token_columns({})),
        "opening": COLUMNS,
    }
    groups: dict[str, tuple[str, ...]] = {}
    rest = set(COLUMNS)
    for group, names in named.items():
        groups[group] = tuple(sorted(rest.intersection(names)))
        rest.difference_update(names)
    return groups


GROUPS: Final = _groups()
CHANGES: Final[Mapping[LinkKind, tuple[str, ...]]] = {
    LinkKind.CLOSED: ("money", "texts", "trace", "ending"),
    LinkKind.SETTLED: ("money", "texts", "trace", "ending"),
    LinkKind.REPRICED: ("money",),
    LinkKind.ENCRYPTED: ("texts",),
    LinkKind.ERASED: ("texts", "person", "trace"),
}
"""The groups of columns that a link of this kind may change."""
_values_of: Final = attrgetter(*COLUMNS)
_encode: Final = msgspec.json.Encoder().encode
_encode_sorted: Final = msgspec.json.Encoder(order="deterministic").encode
_decode: Final = msgspec.json.Decoder(float_hook=_number).decode
