"""The drift radar: beta names, fields, block types, roles and client versions as they first appear.

Read from the records that the drainer has in hand, so the path of a request pays nothing. Counts
are gathered in memory and written when something new is seen, else every ten seconds; a process
that dies takes at most that with it, never the name.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

import msgspec
from django.db import DatabaseError, transaction
from django.db.models import F

from proxy.models import Drift, DriftKind
from translator.anthropic.content import BLOCKS_BY_ROLE, RESULT_PARTS
from translator.anthropic.request import FIELDS

from .records import CloseRecord, OpenRecord

logger = logging.getLogger(__name__)

EVERY_S: Final = 10.0
MOST_NAMES: Final = 500  # of one kind; clients choose them, and the table must not fill the disk
MOST_OF_ONE: Final = 100  # of one kind in one request: each new one is a few statements
OTHERS: Final = "(others)"
LONGEST: Final = 100
BLOCKS: Final = frozenset(RESULT_PARTS).union(*BLOCKS_BY_ROLE.values())
KNOWN: Final = {
    DriftKind.FIELD: frozenset(FIELDS),
    DriftKind.BLOCK: BLOCKS,
    DriftKind.ROLE: frozenset(BLOCKS_BY_ROLE),
    DriftKind.EVENT: frozenset[str](),
}
Name = tuple[str, str]


class _Block(msgspec.Struct):
    type: Any = None
    content: msgspec.Raw = msgspec.Raw()


class _Said(msgspec.Struct):
    role: Any = None
    content: str | list[_Block] = ""


_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_messages: Final = msgspec.json.Decoder(list[_Said]).decode
_blocks: Final = msgspec.json.Decoder(list[_Block]).decode


def sightings(opening: OpenRecord) -> Iterator[Name]:
    """Each name once that a request brought along."""
    for beta in opening.betas:
        yield DriftKind.BETA, beta
    if opening.client_name:
        yield DriftKind.CLIENT, f"{opening.client_name} {opening.client_version}".strip()
    if opening.body is not None and not opening.faulty:  # else it was counted when it was refused
        yield from names_in(opening.body)


def names_in(body: bytes) -> Iterator[Name]:
    """Fields, roles and block types of a request; none of one that cannot be read."""
    try:
        fields = _fields(body)
        said = _messages(fields.get("messages", b"[]"))
        kinds = {kind for each in said for kind in _kinds(each.content)}
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return
    roles = {str(each.role) for each in said}
    for of, names in (
        (DriftKind.FIELD, fields), (DriftKind.ROLE, roles), (DriftKind.BLOCK, kinds)
    ):  # fmt: skip
        for name in islice(names, MOST_OF_ONE):
            yield of, name


def _kinds(content: str | list[_Block]) -> Iterator[str]:
    """The types of blocks, those inside of tool results too."""
    for block in content if isinstance(content, list) else ():
        yield str(block.type)
        if block.type == "tool_result" and bytes(memoryview(block.content)[:1]) == b"[":
            yield from _kinds(_blocks(block.content))


class Radar:
    """What was seen since it was last written."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[Name] = Counter()
        self._firsts: dict[Name, str] = {}
        self._written: set[Name] = set()  # names that the table has
        self._known: Counter[str] = Counter()  # how many names of each kind were seen
        self._at = 0.0

    def note(self, openings: Iterable[OpenRecord], closings: Iterable[CloseRecord]) -> None:
        """Never raises: the ledger's own work must not suffer."""
        try:
            with self._lock:
                for opening in openings:
                    for kind, name in sightings(opening):
                        self._see(kind, name, opening.id)
                for closing in closings:
                    for event in closing.unknown_events:
                        self._see(DriftKind.EVENT, event, closing.id)
                news = self._counts.keys() - self._written
                if news or time.monotonic() - self._at > EVERY_S:
                    self._write(datetime.now(UTC))
        except DatabaseError as exc:
            logger.warning("drift: what was seen is written later: %s", exc)
        except Exception:
            logger.exception("drift: a record could not be read")

    def refused(self, request: str, body: bytes) -> None:
        """A request that is refused for its body: its names wait for the next writing."""
        with self._lock:
            for kind, name in names_in(body):
                self._see(kind, name, request)

    def _see(self, kind: str, name: str, request: str) -> None:
        key = (kind, name)
        if key not in self._counts:  # else it is sound, and not the first
            key = (kind, name.replace("\0", "?")[:LONGEST])
            if key not in self._counts and key not in self._written:
                if self._known[kind] >= MOST_NAMES:
                    key = (kind, OTHERS)
                self._known[kind] += key[1] != OTHERS
            self._firsts.setdefault(key, request)
        self._counts[key] += 1

    def _write(self, now: datetime) -> None:
        with transaction.atomic():
            for (kind, name), requests in sorted(self._counts.items()):
                self._add(kind, name, requests, now)
        self._written |= self._counts.keys()
        self._counts.clear()
        self._firsts.clear()
        self._at = time.monotonic()

    def _add(self, kind: str, name: str, requests: int, now: datetime) -> None:
        rows = Drift.objects.filter(kind=kind)
        counted = {"requests": F("requests") + requests, "last_seen": now}
        if rows.filter(name=name).update(**counted):
            return
        known: bool | None = None
        if kind in KNOWN:
            known = name in KNOWN[DriftKind(kind)]
        if name == OTHERS or rows.count() >= MOST_NAMES:
            first, name, known = "", OTHERS, None
        else:
            first = self._firsts[kind, name]
        row, made = Drift.objects.get_or_create(
            kind=kind, name=name,
            defaults={"known": known, "requests": requests, "first_seen": now, "last_seen": now,
                      "first_request": first},
        )  # fmt: skip
        if not made:
            rows.filter(pk=row.pk).update(**counted)


radar: Final = Radar()
