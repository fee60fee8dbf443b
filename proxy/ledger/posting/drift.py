"""Record new beta names, body fields, block types, roles, client versions and upstream events.

A background thread extracts these names from the journal records, so requests are not delayed.
Counts are collected in memory and written when a new name appears, otherwise every ten seconds: a
crash loses at most ten seconds of counts, but no name.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec
from django.db import DatabaseError, transaction
from django.db.models import F

from proxy.ledger.journal.records import CloseRecord, OpenRecord
from proxy.models import Drift, DriftKind
from translator.anthropic.content_blocks import BLOCKS_BY_ROLE, RESULT_PARTS
from translator.anthropic.request_validation import FIELDS

logger = logging.getLogger(__name__)

WRITE_INTERVAL_S: Final = 10.0
# The maximum of names of one kind in the table; it is needed, because clients choose the names.
MAX_NAMES: Final = 500
MAX_PER_REQUEST: Final = 100  # the maximum of one kind; each new name takes several SQL statements
OTHERS: Final = "(others)"
MAX_LENGTH: Final = 100
BLOCKS: Final = frozenset(RESULT_PARTS).union(*BLOCKS_BY_ROLE.values())
KNOWN: Final = {
    DriftKind.FIELD: frozenset(FIELDS),
    DriftKind.BLOCK: BLOCKS,
    DriftKind.ROLE: frozenset(BLOCKS_BY_ROLE),
    DriftKind.EVENT: frozenset[str](),
}
Name = tuple[str, str]
T = TypeVar("T")


class _Block(msgspec.Struct):
    type: Any = None
    content: msgspec.Raw = msgspec.Raw()


class _Message(msgspec.Struct):
    role: Any = None
    content: msgspec.Raw = msgspec.Raw()


_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_message: Final = msgspec.json.Decoder(_Message).decode
_block: Final = msgspec.json.Decoder(_Block).decode


def names_seen(opening: OpenRecord) -> Iterator[Name]:
    """Yield kind and name of the betas, client, fields, roles and block types in a request."""
    for beta in opening.betas:
        yield DriftKind.BETA, beta
    if opening.client_name:
        yield DriftKind.CLIENT, f"{opening.client_name} {opening.client_version}".strip()
    if (
        opening.body is not None and not opening.faulty
    ):  # the names in a rejected body were counted by add_rejected
        yield from names_in(opening.body)


def names_in(body: bytes) -> Iterator[Name]:
    """Yield the fields, roles and block types of a request body; nothing if it is no JSON object.

    Parts of an unusual shape have no names: an Anthropic upstream gets a body of any shape.
    """
    try:
        fields = _fields(body)
        messages = list(_objects(fields.get("messages"), _message))
        kinds = {kind for each in messages for kind in _kinds(each.content)}
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return
    roles = {str(each.role) for each in messages}
    for kind, names in (
        (DriftKind.FIELD, fields), (DriftKind.ROLE, roles), (DriftKind.BLOCK, kinds)
    ):  # fmt: skip
        for name in islice(names, MAX_PER_REQUEST):
            yield kind, name


def _kinds(content: msgspec.Raw) -> Iterator[str]:
    """Yield the types of all content blocks, including those inside tool results."""
    for block in _objects(content, _block):
        yield str(block.type)
        if block.type == "tool_result":
            yield from _kinds(block.content)


def _objects(items: msgspec.Raw | None, decode: Callable[[msgspec.Raw], T]) -> Iterator[T]:
    """Yield the decoded objects of a JSON list; nothing if it is no list."""
    if items is not None and bytes(memoryview(items)[:1]) == b"[":
        for item in _items(items):
            if bytes(memoryview(item)[:1]) == b"{":
                yield decode(item)


class NewNameRecorder:
    """Collects names and their counts, and writes them to the database.

    A new name is written at once; later counts every ``write_interval_s`` seconds.
    """

    def __init__(self, write_interval_s: float = WRITE_INTERVAL_S) -> None:
        self.write_interval_s = write_interval_s
        self._lock = threading.Lock()
        self._counts: Counter[Name] = Counter()
        self._firsts: dict[Name, str] = {}
        self._written: set[Name] = set()  # names that are in the table
        self._known: Counter[str] = Counter()  # number of names by kind
        self._at = 0.0  # when the counts were last written (monotonic seconds)

    def note(self, openings: Iterable[OpenRecord], closings: Iterable[CloseRecord]) -> None:
        """Count the protocol names in these records. Never raises: ledger rows must be written."""
        try:
            with self._lock:
                for opening in openings:
                    for kind, name in names_seen(opening):
                        self._count(kind, name, opening.id)
                for closing in closings:
                    for event in closing.unknown_events:
                        self._count(DriftKind.EVENT, event, closing.id)
                new = self._counts.keys() - self._written
                if new or time.monotonic() - self._at > self.write_interval_s:
                    self.write(datetime.now(UTC))
        except DatabaseError as exc:
            logger.warning("drift: new names are written later: %s", exc)
        except Exception:
            logger.exception("drift: a record could not be processed")

    def add_rejected(self, request: str, body: bytes) -> None:
        """Count the protocol names in a rejected request's body; the next write stores them."""
        with self._lock:
            for kind, name in names_in(body):
                self._count(kind, name, request)

    def _count(self, kind: str, name: str, request: str) -> None:
        key = (kind, name)
        if key not in self._counts:  # otherwise the name was checked when it was first counted
            key = (kind, name.replace("\0", "?")[:MAX_LENGTH])
            if key not in self._counts and key not in self._written:
                if self._known[kind] >= MAX_NAMES:
                    key = (kind, OTHERS)
                self._known[kind] += key[1] != OTHERS
            self._firsts.setdefault(key, request)
        self._counts[key] += 1

    def write(self, now: datetime) -> None:
        """Add the counts to the table, in one transaction."""
        with transaction.atomic():
            stored = {
                (kind, name)
                for (kind, name), requests in sorted(self._counts.items())
                if self._add(kind, name, requests, now)
            }
        self._written = self._written - self._counts.keys() | stored
        self._counts.clear()
        self._firsts.clear()
        self._at = time.monotonic()

    def _add(self, kind: str, name: str, requests: int, now: datetime) -> bool:
        """Add to the count of a name; False if the name was erased since it was first counted.

        Its next request, of another person, is then recorded as its first.
        """
        rows = Drift.objects.filter(kind=kind)
        counted = {"requests": F("requests") + requests, "last_seen": now}
        if rows.filter(name=name).update(**counted):
            return True
        if (kind, name) in self._written and rows.count() < MAX_NAMES:
            return False
        known: bool | None = None
        if kind in KNOWN:
            known = name in KNOWN[DriftKind(kind)]
        if name == OTHERS or rows.count() >= MAX_NAMES:
            first, name, known = "", OTHERS, None
        else:
            first = self._firsts[kind, name]
        row, is_new = Drift.objects.get_or_create(
            kind=kind, name=name,
            defaults={"known": known, "requests": requests, "first_seen": now, "last_seen": now,
                      "first_request": first},
        )  # fmt: skip
        if not is_new:
            rows.filter(pk=row.pk).update(**counted)
        return True


new_name_recorder: Final = NewNameRecorder()
