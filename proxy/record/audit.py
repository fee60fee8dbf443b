"""Verifies the ledger: the hash chain, the rows it seals, the bodies, and the sums."""

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import Count, Max, Sum

from proxy.models import Exchange, LedgerHead, Seal, State, Transcript

from . import transcripts
from .retention import expired
from .rollups import COUNTS, TABLES, counts_of, rows_of
from .seals import digest_of, hold_ledger, link

BATCH = 1000


class Finding(NamedTuple):
    """``what`` is chain, head, row, unsealed, lost, body or sum; ``where`` names the place."""

    what: str
    where: str
    why: str


class Checked(NamedTuple):
    """Progress: links looked at so far, and what was found among the last ones."""

    links: int
    findings: list[Finding]


def verify(
    *, bodies: bool = True, day: date | None = None, now: datetime | None = None
) -> Iterator[Checked]:
    """Walk the chain from its first link, or over one day."""
    retention = dict(expired(now or datetime.now(UTC))) if bodies else None
    head = LedgerHead.objects.filter(pk=1).first()
    seals = Seal.objects.order_by("sequence")
    if day is not None:
        seals = seals.filter(day=day)
    before: Seal | None = None
    seen = 0
    batch: list[Seal] = []
    if day is not None and (first := seals.first()) is not None:
        before = Seal.objects.filter(sequence=first.sequence - 1).first()
    for seal in seals.iterator(chunk_size=BATCH):
        batch.append(seal)
        if len(batch) == BATCH:
            seen += len(batch)
            yield Checked(seen, [*_chain(before, batch), *_rows(batch, retention)])
            before, batch = batch[-1], []
    seen += len(batch)
    findings = [*_chain(before, batch), *_rows(batch, retention)]
    if day is None:
        findings += [*_head(head), *_unsealed()]
    yield Checked(seen, findings)


def _chain(before: Seal | None, batch: list[Seal]) -> Iterator[Finding]:
    for seal in batch:
        where = f"seal {seal.sequence}"
        if before is None:
            sequence, digest = 0, bytes(32)
        else:
            sequence, digest = before.sequence, bytes(before.digest)
        if seal.sequence != sequence + 1:
            yield Finding(
                "chain", where, f"{seal.sequence - sequence - 1} links before it are gone"
            )
        else:
            body = None if seal.body_digest is None else bytes(seal.body_digest)
            linked = link(digest, seal.sequence, seal.exchange_id, bytes(seal.row_digest), body)
            if linked != bytes(seal.digest):
                yield Finding("chain", where, f"its digest is not that of {seal.exchange_id}")
        before = seal


def _rows(batch: list[Seal], retention: Mapping[str, datetime] | None) -> Iterator[Finding]:
    """Compare each row with its newest seal, when that one is in the batch.

    ``retention``: the moment before which a team's bodies may be gone; None: look at no body.
    """
    ids = {seal.exchange_id for seal in batch}
    newest = dict(
        Seal.objects.filter(exchange_id__in=ids)
        .values_list("exchange_id")
        .annotate(newest=Max("sequence"))
    )
    rows = Exchange.objects.in_bulk(list(ids))
    kept = Transcript.objects.in_bulk(list(ids)) if retention is not None else {}
    for seal in batch:
        if newest[seal.exchange_id] != seal.sequence:
            continue
        row = rows.get(seal.exchange_id)
        if row is None:
            yield Finding("lost", seal.exchange_id, "the row is gone")
            continue
        if digest_of(row) != bytes(seal.row_digest) and not _amended(seal):
            yield Finding("row", seal.exchange_id, "the row is not as it was sealed")
        if (stored := kept.get(seal.exchange_id)) is not None:
            yield from _body(seal, stored)
        elif (
            retention is not None
            and seal.body_digest
            and row.created >= _kept_since(row, retention)
        ):
            yield Finding("body", seal.exchange_id, "the transcript is gone before its time")


def _amended(seal: Seal) -> bool:
    """Whether the row was amended while we looked; under the lock nothing can be."""
    with transaction.atomic():
        hold_ledger()
        if Seal.objects.filter(exchange_id=seal.exchange_id, sequence__gt=seal.sequence).exists():
            return True
        row = Exchange.objects.filter(pk=seal.exchange_id).first()
        return row is not None and digest_of(row) == bytes(seal.row_digest)


def _kept_since(row: Exchange, retention: Mapping[str, datetime]) -> datetime:
    """Bodies of a team that was deleted may go at any time."""
    return retention.get(row.team, datetime.max.replace(tzinfo=UTC))


def _body(seal: Seal, stored: Transcript) -> Iterator[Finding]:
    try:
        digest = transcripts.load(stored).conversation.digest()
    except transcripts.BrokenTranscript as exc:
        yield Finding("body", seal.exchange_id, str(exc))
        return
    if seal.body_digest is None or digest != bytes(seal.body_digest):
        yield Finding("body", seal.exchange_id, "the transcript is not as it was sealed")


def _head(head: LedgerHead | None) -> Iterator[Finding]:
    """``head`` was read before the walk: links may have come since, none may have gone."""
    if head is None or head.sequence == 0:
        return
    last = Seal.objects.filter(sequence=head.sequence).first()
    if last is None or bytes(last.digest) != bytes(head.digest):
        yield Finding("head", f"seal {head.sequence}", "links at the end of the chain are gone")


def _unsealed() -> Iterator[Finding]:
    sealed = Seal.objects.values("exchange_id")
    rows = Exchange.objects.filter(state=State.CLOSED).exclude(pk__in=sealed)
    for pk in rows.order_by("pk").values_list("pk", flat=True)[:100]:
        yield Finding("unsealed", pk, "the row is closed and not sealed")


def verify_sums(since: datetime, until: datetime) -> list[Finding]:
    """Compare every rollup table with the rows of whole UTC days; a day at a time is wise."""
    totals: dict[str, int] = dict.fromkeys(COUNTS, 0)
    rows = Exchange.objects.filter(state=State.CLOSED, created__gte=since, created__lt=until)
    for row in rows.iterator(chunk_size=2000):
        counts = counts_of(row)
        for name in COUNTS:
            totals[name] += counts[name]
    found = []
    for table in TABLES:
        sums = rows_of(table).filter(start__gte=since, start__lt=until)
        kept: Mapping[str, Any] = sums.aggregate(**{f"sum_{name}": Sum(name) for name in COUNTS})
        for name in COUNTS:
            if (kept[f"sum_{name}"] or 0) != totals[name]:
                why = f"{name} is {kept[f'sum_{name}'] or 0}, its rows say {totals[name]}"
                found.append(Finding("sum", f"{table.__name__} {since:%Y-%m-%d}", why))
    return found


def heads() -> list[tuple[date, int, str]]:
    """(day, links, digest of its last link as hex): to be written down elsewhere."""
    days = Seal.objects.values("day").annotate(links=Count("*"), last=Max("sequence"))
    found = []
    for day in days.order_by("day"):
        last = Seal.objects.get(pk=day["last"])
        found.append((day["day"], day["links"], bytes(last.digest).hex()))
    return found
