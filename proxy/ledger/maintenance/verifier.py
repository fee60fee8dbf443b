"""Verify the ledger: the hash chain, the rows and bodies that it covers, and the rollups."""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple, Self

import msgspec
from django.db import transaction
from django.db.models import Count, Exists, Max, Min, OuterRef, Q, Sum

from proxy.ledger.archive.reading import (
    bounds,
    iterate_both,
    read_both,
    removed_months,
    with_ids,
    within,
)
from proxy.ledger.posting import stop_reasons
from proxy.ledger.posting.hash_chain import digest_of, link_digest, lock_ledger
from proxy.ledger.posting.rollups import COUNTS, TABLES, counts_of, rows_of
from proxy.ledger.transcripts import storage
from proxy.models import (
    Exchange,
    HashChainLink,
    LedgerHead,
    State,
    StopReasonDay,
    Transcript,
    UsageByToolDay,
)

from .retention import expired

BATCH: Final = 1000
MAX_FINDINGS: Final = 1000


class Finding(NamedTuple):
    """An inconsistency that the verification found.

    ``what`` is its kind: chain, head, row, unsealed (a row without a link), lost (a missing row),
    body or sum. ``where`` names the affected link, row or table.
    """

    what: str
    where: str
    why: str


class DayRange(NamedTuple):
    """UTC days from ``since`` up to, not including, ``until``; None: no bound."""

    since: date | None = None
    until: date | None = None

    def filter(self, field: str) -> Q:
        bounds = {f"{field}__gte": self.since, f"{field}__lt": self.until}
        return Q(**{name: day for name, day in bounds.items() if day is not None})


EVERYTHING: Final = DayRange()


class VerifyProgress(NamedTuple):
    """The last verified link, and the links and findings since the previous progress report."""

    sequence: int
    links: int
    findings: list[Finding]
    encrypted: Mapping[str, int] = {}
    """The number of transcripts that could not be verified, by the id of the missing body key."""


class Checkpoint(msgspec.Struct):
    """How far a verification has come: its options, its position in each step, its findings."""

    days: DayRange = EVERYTHING
    bodies: bool = True
    sums: bool = True
    sequence: int = 0
    """The last verified link."""
    rows_until: date | None = None
    """Rows that were created before this day have a link."""
    sums_until: date | None = None
    """The sums of the days before this one are verified."""
    links: int = 0
    findings: list[Finding] = []
    """The first ``MAX_FINDINGS`` findings."""
    found: int = 0
    """The number of all findings."""
    encrypted: dict[str, int] = {}
    """The number of transcripts that could not be verified, by the id of the missing body key."""

    def add(self, findings: list[Finding]) -> None:
        self.found += len(findings)
        self.findings += findings[: MAX_FINDINGS - len(self.findings)]

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """Return the stored checkpoint; None if there is none, or if it cannot be read."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError):
            return None

    def save(self, path: Path) -> None:
        """Store the checkpoint; a kill leaves the old or the new one."""
        new = path.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_bytes(msgspec.json.encode(self))
        new.replace(path)


def steps(state: Checkpoint, batch_size: int = BATCH) -> Iterator[None]:
    """Verify the links, then by month the rows without a link, then by day the sums.

    ``state`` contains the position and the findings at each yield.
    """
    for checked in verify(
        bodies=state.bodies, days=state.days, after=state.sequence, batch_size=batch_size
    ):
        state.links += checked.links
        state.sequence = checked.sequence
        state.add(checked.findings)
        state.encrypted = dict(Counter(state.encrypted) + Counter(checked.encrypted))
        yield
    days = _days_with_rows(state.days)
    if days is None:
        return
    first, last = days
    for at, end in _months(max(first, state.rows_until or first), last):
        state.add(verify_links_of_rows(_midnight(at), _midnight(end)))
        state.rows_until = end
        yield
    at = max(first, state.sums_until or first)
    while state.sums and at <= last:
        end = at + timedelta(days=1)
        state.add(verify_sums(_midnight(at), _midnight(end)))
        state.sums_until = at = end
        yield


def _days_with_rows(days: DayRange) -> tuple[date, date] | None:
    """Return the first and the last UTC day with rows within ``days``; None: there are none.

    All days of an archived month count as days with rows.
    """
    found = Exchange.objects.aggregate(first=Min("created"), last=Max("created"))
    known = [at.astimezone(UTC).date() for at in found.values() if at is not None]
    for month in removed_months():
        known += [month, bounds(month)[1].date() - timedelta(days=1)]
    if not known:
        return None
    first = max(min(known), days.since or date.min)
    last = min(max(known), days.until - timedelta(days=1) if days.until else date.max)
    return (first, last) if first <= last else None


def _months(first: date, last: date) -> Iterator[tuple[date, date]]:
    """Split the days from ``first`` to ``last`` at the ends of months."""
    while first <= last:
        following = (first.replace(day=1) + timedelta(days=32)).replace(day=1)
        end = min(following, last + timedelta(days=1))
        yield first, end
        first = end


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time_of_day(), UTC)


def link_range(days: DayRange) -> tuple[int, int]:
    """Return the first and the last sequence number of the links of these days; (1, 0): none."""
    links = HashChainLink.objects.filter(days.filter("day"))
    found = links.aggregate(first=Min("sequence"), last=Max("sequence"))
    return found["first"] or 1, found["last"] or 0


def verify(
    *,
    bodies: bool = True,
    days: DayRange = EVERYTHING,
    after: int = 0,
    now: datetime | None = None,
    batch_size: int = BATCH,
) -> Iterator[VerifyProgress]:
    """Verify the hash chain, or the links of some days; yield the progress after each batch.

    ``bodies``: verify stored transcripts too. ``after``: the last link that was verified before.
    """
    retention = dict(expired(now or datetime.now(UTC))) if bodies else None
    head = LedgerHead.objects.filter(pk=1).first()
    links = HashChainLink.objects.order_by("sequence")
    if days != EVERYTHING:
        first, last = link_range(days)
        links, after = links.filter(sequence__lte=last), max(after, first - 1)
    before = HashChainLink.objects.filter(sequence=after).first()
    while True:
        batch = list(links.filter(sequence__gt=after)[:batch_size])
        encrypted: Counter[str] = Counter()
        findings = [*_chain(before, batch), *_rows(batch, retention, encrypted)]
        if len(batch) < batch_size and days == EVERYTHING:
            findings += _head(head)
        if batch:
            before, after = batch[-1], batch[-1].sequence
        yield VerifyProgress(after, len(batch), findings, encrypted)
        if len(batch) < batch_size:
            return


def _chain(before: HashChainLink | None, batch: list[HashChainLink]) -> Iterator[Finding]:
    for link in batch:
        where = f"link {link.sequence}"
        if before is None:
            sequence, digest = 0, bytes(32)
        else:
            sequence, digest = before.sequence, bytes(before.digest)
        if link.sequence != sequence + 1:
            yield Finding(
                "chain", where, f"{link.sequence - sequence - 1} links before it are missing"
            )
        else:
            body = None if link.body_digest is None else bytes(link.body_digest)
            expected = link_digest(
                digest, link.sequence, link.exchange_id, bytes(link.row_digest), body
            )
            if expected != bytes(link.digest):
                yield Finding("chain", where, f"its digest is not that of {link.exchange_id}")
        before = link


def _rows(
    batch: list[HashChainLink],
    retention: Mapping[str, datetime] | None,
    encrypted: Counter[str],
) -> Iterator[Finding]:
    """Compare each row of the batch with its newest link, if that link is in the batch.

    ``retention``: team -> time before which transcripts may be deleted; None: skip transcripts.
    ``encrypted``: the function adds the transcripts that it cannot read, by their missing key.
    """
    ids = {link.exchange_id for link in batch}
    newest = dict(
        HashChainLink.objects.filter(exchange_id__in=ids)
        .values_list("exchange_id")
        .annotate(newest=Max("sequence"))
    )
    rows = _rows_by_id(ids)
    stored_by_id = Transcript.objects.in_bulk(list(ids)) if retention is not None else {}
    for link in batch:
        if newest[link.exchange_id] != link.sequence:
            continue
        row = rows.get(link.exchange_id)
        if row is None:
            yield Finding("lost", link.exchange_id, "the row is missing")
            continue
        if digest_of(row) != bytes(link.row_digest) and not _amended(link):
            yield Finding("row", link.exchange_id, "the row differs from its link")
        if (stored := stored_by_id.get(link.exchange_id)) is not None:
            yield from _body(link, stored, encrypted)
        elif (
            retention is not None
            and link.body_digest
            and row.created >= _stored_since(row, retention)
        ):
            yield Finding(
                "body", link.exchange_id, "the transcript is missing within its retention"
            )


def _rows_by_id(ids: set[str]) -> dict[str, Exchange]:
    """Return the rows of the database and of the archive."""
    rows = Exchange.objects.in_bulk(list(ids))
    if missing := sorted(ids - rows.keys()):
        for found in read_both(
            Exchange.objects.filter(pk__in=missing), list[Exchange], with_ids(missing)
        ):
            rows |= {row.pk: row for row in found}
    return rows


def _amended(link: HashChainLink) -> bool:
    """Return whether the row was amended during the verification, so it differs from ``link``.

    The ledger lock prevents another amendment during this check.
    """
    with transaction.atomic():
        lock_ledger()
        if HashChainLink.objects.filter(
            exchange_id=link.exchange_id, sequence__gt=link.sequence
        ).exists():
            return True
        row = Exchange.objects.filter(pk=link.exchange_id).first()
        return row is not None and digest_of(row) == bytes(link.row_digest)


def _stored_since(row: Exchange, retention: Mapping[str, datetime]) -> datetime:
    """Return the time since which transcripts of the row's team must exist.

    Transcripts of a deleted team need not exist.
    """
    return retention.get(row.team, datetime.max.replace(tzinfo=UTC))


def _body(link: HashChainLink, stored: Transcript, encrypted: Counter[str]) -> Iterator[Finding]:
    try:
        digest = storage.load(stored).conversation.digest()
    except storage.EncryptedTranscript as exc:
        encrypted[exc.key_id] += 1
        return
    except storage.BrokenTranscript as exc:
        yield Finding("body", link.exchange_id, str(exc))
        return
    if link.body_digest is None or digest != bytes(link.body_digest):
        yield Finding("body", link.exchange_id, "the transcript differs from its link")


def _head(head: LedgerHead | None) -> Iterator[Finding]:
    """Check the end of the chain. ``head`` was read before the links, so newer links may exist."""
    if head is None or head.sequence == 0:
        return
    last = HashChainLink.objects.filter(sequence=head.sequence).first()
    if last is None or bytes(last.digest) != bytes(head.digest):
        yield Finding("head", f"link {head.sequence}", "links at the end of the chain are missing")


def verify_links_of_rows(since: datetime, until: datetime) -> list[Finding]:
    """Return the closed rows of a time range without a link, at most 100.

    A range of at most a month lets PostgreSQL read one partition. ``NOT EXISTS`` is an anti-join;
    for ``NOT IN``, PostgreSQL would search all links again for each row.
    """
    links = HashChainLink.objects.filter(exchange_id=OuterRef("pk"))
    rows = Exchange.objects.filter(
        ~Exists(links), state=State.CLOSED, created__gte=since, created__lt=until
    )
    ids = rows.order_by("created").values_list("pk", flat=True)[:100]
    return [Finding("unsealed", pk, "the row is closed and has no link") for pk in ids]


def verify_sums(since: datetime, until: datetime) -> list[Finding]:
    """Compare the sums of each rollup table with the ledger rows of the same time range.

    The range must consist of whole UTC days; one day at a time is best.
    """
    totals: dict[str, int] = dict.fromkeys(COUNTS, 0)
    by_tool: dict[str, int] = dict.fromkeys(COUNTS, 0)
    tools = 0
    rows = Exchange.objects.filter(state=State.CLOSED, created__gte=since, created__lt=until)
    for row in iterate_both(rows.order_by("pk"), within(since, until), attrgetter("pk")):
        counts = counts_of(row)
        called = len(stop_reasons.tools_of(row.tool_names))
        for name in COUNTS:
            totals[name] += counts[name]
            by_tool[name] += counts[name] * called
        tools += called
    stopped = {"requests": totals["requests"], "requests_with_tool": tools}
    tables = [
        *((rows_of(table), by_tool if table is UsageByToolDay else totals) for table in TABLES),
        (StopReasonDay.objects, stopped),
    ]
    found = []
    for manager, expected in tables:
        sums = manager.filter(start__gte=since, start__lt=until)
        found_sums = sums.aggregate(**{f"sum_{name}": Sum(name) for name in expected})
        for name, total in expected.items():
            stored = found_sums[f"sum_{name}"] or 0
            if stored != total:
                why = f"{name} is {stored}, the sum of its rows is {total}"
                where = f"{manager.model.__name__} {since:%Y-%m-%d}"
                found.append(Finding("sum", where, why))
    return found


def heads() -> list[tuple[date, int, str]]:
    """Return (day, number of links, hex digest of the last link) of each day.

    A copy of this list outside of the database can prove later that no link was changed.
    """
    days = HashChainLink.objects.values("day").annotate(links=Count("*"), last=Max("sequence"))
    found = []
    for day in days.order_by("day"):
        last = HashChainLink.objects.get(pk=day["last"])
        found.append((day["day"], day["links"], bytes(last.digest).hex()))
    return found
