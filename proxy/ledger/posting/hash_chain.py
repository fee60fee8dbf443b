"""The hash chain: a link for each closed or amended ledger row, with the previous link's digest.

Changing a row or a link is detected unless all later links are changed too, and differs from the
heads that were published. Whoever may write to the database can rewrite rows, links and sums, but
cannot sign: the last link of each transaction has a signature of its digest and of the first link
that it covers. So a link that nobody signed lies between two signed ranges, also when the gateway
goes on after it. The key is Ed25519 (RFC 8032), derived from SECRET_KEY, which all nodes share.

A link has the digest of its row, made of the digests of groups of columns. An amendment may change
some groups only, and its link also has their digests before the change: together with the row, they
prove that no other column was changed.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from django.conf import settings
from django.db import models, transaction

from proxy.encryption.bodies import stored_text
from proxy.ledger.database.bulk_sql import write
from proxy.models import Exchange, HashChainLink, LedgerHead, LinkKind, State
from proxy.models.encrypted_text import BodyTextField
from proxy.secrets import derive, has_root

from .exchange_columns import FROM_CLOSE, OVERRIDDEN, AnyRow, token_columns

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PURPOSE: Final = "ledger signature"


def sign(first: int, digest: bytes) -> bytes | None:
    """Return the signature of the links from ``first`` to the one with this digest.

    None: there is no SECRET_KEY yet, because no gateway has started.
    """
    return _private_key(settings.SECRET_KEY).sign(_signed(first, digest)) if has_root() else None


def is_signed(first: int, digest: bytes, signature: bytes, keys: frozenset[bytes]) -> bool:
    """Return whether one of these public keys verifies the signature."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - only verification needs it
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

    for key in keys:
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, _signed(first, digest))
        except InvalidSignature:
            continue
        return True
    return False


def public_keys(*, current_only: bool = False) -> frozenset[bytes]:
    """Return the public keys of SECRET_KEY and of SECRET_KEY_FALLBACKS."""
    roots = [settings.SECRET_KEY] if has_root() else []
    if roots and not current_only:
        roots += settings.SECRET_KEY_FALLBACKS
    return frozenset(_private_key(root).public_key().public_bytes_raw() for root in roots)


@lru_cache(maxsize=8)
def _private_key(root: str) -> "Ed25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415 - takes 20 ms
        Ed25519PrivateKey,
    )

    return Ed25519PrivateKey.from_private_bytes(derive(PURPOSE, root))


def _signed(first: int, digest: bytes) -> bytes:
    return b"messages-bridge ledger" + first.to_bytes(8, "big") + digest


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
    newest = newest_links(row.pk for row in rows)
    return [
        row
        for row in rows
        if (link := newest.get(row.pk)) is None
        or not is_digest_of(bytes(link.row_digest), row, link.kind)
    ]


def newest_links(subjects: Iterable[str]) -> dict[str, HashChainLink]:
    """Return the newest link of each subject that has one."""
    links = HashChainLink.objects.filter(exchange_id__in=list(subjects)).order_by("sequence")
    return {link.exchange_id: link for link in links}
