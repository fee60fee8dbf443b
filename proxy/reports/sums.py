"""Adds up the rollups: counts by bucket and group. No report scans the requests (D9)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import msgspec
from django.db import connection
from django.db.models import Case, F, Min, Q, QuerySet, Sum, TextField, Value, When
from django.db.models.functions import Cast, Concat, Substr, TruncHour
from django.db.models.lookups import GreaterThanOrEqual
from django.utils.timezone import now

from proxy.models import (
    DaySession,
    DaySummary,
    DayUsage,
    DayWhat,
    DayWho,
    DrainMark,
    QuarterUsage,
    QuarterWhat,
    QuarterWho,
)
from proxy.models.rollups import UsageCounts
from proxy.record.latency import Sketch, merged
from proxy.record.pricing import SOURCE_OF
from proxy.record.rollups import DIMENSIONS as COLUMNS
from proxy.record.rollups import SKETCHED, rows_of
from proxy.visibility import Reader, visible_rows

from .spans import DAY, Span

CLASSES: Final = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h", "reasoning")
MISSING: Final = ("input", "output", "cache_read", "cache_write", "reasoning")
SUMMED: Final = (
    "requests",
    "errors",
    "client_gone",
    *(f"{name}_{source}" for name in CLASSES for source in ("reported", "estimated")),
    *(f"{name}_missing" for name in MISSING),
    "cost_nanousd",
    "cost_estimated_nanousd",
    *(f"cost_{name}_nanousd" for name in CLASSES if name != "reasoning"),
    "unpriced",
    "web_searches",
    "tool_calls",
)
COST_COUNTS: Final = ("requests", "cost_nanousd", "unpriced")
TOKEN_COUNTS: Final = (
    *(f"{name}_{source}" for name in CLASSES for source in ("reported", "estimated")),
    *(f"{name}_missing" for name in MISSING),
    "web_searches",
)
MISSING_OF: Final = {name: f"{source}_missing" for name, source in SOURCE_OF.items()}
"""A class of tokens -> the count of requests without a number of it."""
SILENT: Final = timedelta(minutes=10)

DIMENSIONS: Final[Mapping[str, str]] = {  # what a caller says -> the column
    "team": "team",
    "key": "key_name",
    "key_id": "key_id",
    "user": "user",
    "client": "client_name",
    "endpoint": "endpoint",
    "model": "model_requested",
    "model_upstream": "model_upstream",
    "upstream": "upstream",
    "service_tier": "service_tier",
    "context_window": "context_window",
    "outcome": "outcome",
    "status": "status",
    "stop_reason": "stop_reason",
    "error_type": "error_type",
}
SESSION: Final = {"session": "session_id"}  # known by UTC day only: for Anthropic's reports


@dataclass(slots=True)
class Sums:
    """The counts of one group in one bucket."""

    counts: dict[str, int] = field(default_factory=dict)
    """What is not here is 0, or was not asked for."""

    def add(self, counts: Mapping[str, int]) -> None:
        known = self.counts
        for name, count in counts.items():
            known[name] = known.get(name, 0) + count

    def __getitem__(self, name: str) -> int:
        return self.counts.get(name, 0)


Key = tuple[Any, ...]  # the values of the grouped columns
Table = dict[tuple[int, Key], Sums]  # (number of the bucket, group) -> sums
Rollup = type[UsageCounts]

DAYS: Final[tuple[Rollup, ...]] = (  # the smallest first
    DayWhat,
    DayWho,
    DaySummary,
    DayUsage,
    DaySession,
)
QUARTERS: Final[tuple[Rollup, ...]] = (QuarterWhat, QuarterWho, QuarterUsage)


class NoRollup(LookupError):
    """No table knows all that is asked by: only the requests themselves do."""


def usage(
    reader: Reader,
    span: Span,
    groups: Sequence[str],
    condition: Q | None = None,
    counts: Sequence[str] = SUMMED,
) -> Table:
    """Sums by bucket and group of what this reader may see. ``groups`` name DIMENSIONS.

    ``counts``: what the report will show; a wide report that shows little is quicker. Raises
    NoRollup, with ``session`` among the groups only.
    """
    columns = [{**DIMENSIONS, **SESSION}[name] for name in groups]
    names = tuple(dict.fromkeys(("requests", *counts)))
    whole = len(span.edges) == 2  # one bucket: the database adds up the starts as well
    buckets: dict[Any, int] = {}  # by start, as the database writes it
    totals: Table = {}
    for rows in pieces(reader, span, columns, condition):
        lines = _summed(rows, columns, names, None if whole else slot(span))
        for start, key, figures in lines:
            bucket = buckets.get(start)
            if bucket is None:
                bucket = buckets[start] = 0 if whole else span.index(_moment(start))
            some: dict[str, int] = dict(zip(names, figures, strict=True))
            if (sums := totals.get((bucket, key))) is None:
                totals[(bucket, key)] = Sums(some)
            else:
                sums.add(some)
    return totals


def _summed(
    rows: "QuerySet[Any]", columns: Sequence[str], names: Sequence[str], slot: Any
) -> Iterator[tuple[Any, Key, tuple[int, ...]]]:
    """(start of the slot, values of ``columns``, sums of ``names``: the first of requests)."""
    sums: dict[str, Any] = {f"sum_{name}": PlainSum(name) for name in names}
    # under its own name a sum would hide its column
    by: dict[str, Any] = {} if slot is None else {"slot": slot}
    by |= {f"by_{column}": F(column) for column in columns}  # in this order: by time first
    found: Iterator[tuple[Any, ...]]
    if by:
        lines = rows.order_by().annotate(**by).values(*by).annotate(**sums)
        found = lines.values_list(*by, *sums).iterator(chunk_size=2000)
    else:
        total = rows.aggregate(**sums)
        found = iter([tuple(total[name] or 0 for name in sums)])
    first, columns_at = len(by), len(by) - len(columns)
    for line in found:
        if line[first]:
            yield line[0] if columns_at else None, line[columns_at:first], line[first:]


def slot(span: Span) -> Any:
    """Stretches that no bucket parts, as wide as can be: the fewer lines leave the database."""
    minutes = {edge.minute for edge in span.edges}
    if connection.vendor != "sqlite":
        return TruncHour("start") if minutes == {0} else F("start")
    text = Cast("start", TextField())
    hour = Substr(text, 1, 13)
    if minutes == {0}:
        return hour
    late = GreaterThanOrEqual(Substr(text, 15, 2), Value("30"))
    half = Case(When(late, then=Value(":30")), default=Value(":00"))
    return Concat(hour, half) if minutes <= {0, 30} else text


class PlainSum(Sum):
    """Integers as the database gives them: SQLite's need no conversion, which costs a third."""

    def get_db_converters(self, connection: Any) -> list[Any]:
        return [] if connection.vendor == "sqlite" else super().get_db_converters(connection)


def _moment(start: str | datetime) -> datetime:
    """SQLite keeps text, or moments without a zone: both are UTC."""
    at = datetime.fromisoformat(start) if isinstance(start, str) else start
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def pieces(
    reader: Reader,
    span: Span,
    columns: Sequence[str] = (),
    condition: Q | None = None,
    *,
    sketched: bool = False,
) -> Iterator["QuerySet[Any]"]:
    """The rollup rows that make up the span, from the smallest tables that know the columns.

    ``sketched``: they must have latencies. Raises NoRollup.
    """
    mine = visible_rows(reader) & (condition or Q())
    asked = {*columns, *_columns_of(mine)}
    for days, start, end in stretches(span):
        table = _smallest(DAYS if days else QUARTERS, asked, sketched=sketched)
        yield rows_of(table).filter(mine, start__gte=start, start__lt=end)


def _smallest(tables: Sequence[Rollup], asked: set[str], *, sketched: bool) -> Rollup:
    for table in tables:
        if asked <= set(COLUMNS[table]) and (table in SKETCHED or not sketched):
            return table
    raise NoRollup(", ".join(sorted(asked)))


def _columns_of(condition: Q) -> Iterator[str]:
    for child in condition.children:
        if isinstance(child, Q):
            yield from _columns_of(child)
        elif isinstance(child, tuple) and (name := child[0].partition("__")[0]) != "pk":
            yield name


def stretches(span: Span) -> Iterator[tuple[bool, datetime, datetime]]:
    """(whole UTC days?, start, end): days in which no bucket begins or ends are read as days."""
    cut = {edge.date() for edge in span.edges if edge.time() != time()}
    start = span.start
    while start < span.end:
        days = start.date() not in cut
        end = _midnight(start.date() + DAY)
        while end < span.end and (end.date() not in cut) == days:
            end += DAY
        yield days, start, min(end, span.end)
        start = end


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), tzinfo=UTC)


def sketches(
    reader: Reader, span: Span, groups: Sequence[str], condition: Q | None = None
) -> dict[Key, Sketch]:
    """Latency sketches by group over the whole span."""
    whole = Span([span.start, span.end], "all", span.zone)
    found = sketches_by_bucket(reader, whole, groups, condition)
    return {key: sketch for (_, key), sketch in found.items()}


def sketches_by_bucket(
    reader: Reader, span: Span, groups: Sequence[str], condition: Q | None = None
) -> dict[tuple[int, Key], Sketch]:
    """Latency sketches by number of the bucket and group."""
    columns = [DIMENSIONS[name] for name in groups]
    found: dict[tuple[int, Key], list[Sketch]] = {}
    decode = msgspec.json.Decoder(Sketch).decode
    for rows in pieces(reader, span, columns, condition, sketched=True):
        text = Cast("latency", TextField())  # decoding it is most of the work: not Django's way
        lines = rows.order_by().values_list("start", text, *columns)
        for start, latency, *key in lines.iterator(chunk_size=2000):
            found.setdefault((span.index(start), tuple(key)), []).append(decode(latency))
    return {place: merged(some) for place, some in found.items()}


def refreshed_at() -> datetime | None:
    """The watermark: whatever ended before it is in the books. None: no drainer has spoken.

    A spool without a backlog whose drainer is silent for long belongs to no running gateway.
    """
    alive = Q(backlog__gt=0) | Q(seen__gte=now() - SILENT)
    mark: datetime | None = DrainMark.objects.filter(alive).aggregate(m=Min("as_of"))["m"]
    return mark


def usd(nanousd: int | None) -> str | None:
    """Nano-dollars as a decimal string of dollars; unknown stays None (D12, D15)."""
    if nanousd is None:
        return None
    text = f"{Decimal(nanousd).scaleb(-9):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def known(sums: Sums, name: str) -> int | None:
    """Tokens of a class, reported or estimated; None when no request of the group has a count.

    A sum in which only some have one is a floor: ``{name}_missing`` tells how many have none.
    """
    tokens = sums[f"{name}_reported"] + sums[f"{name}_estimated"]
    missing = sums[MISSING_OF[name]]
    return None if missing and not tokens and missing >= sums["requests"] else tokens


def known_by(names: Iterable[str]) -> list[str]:
    """The counts that ``known`` reads."""
    sums = [f"{name}_{source}" for name in names for source in ("reported", "estimated")]
    return [*sums, *dict.fromkeys(MISSING_OF[name] for name in names)]


def total(tokens: Iterable[int | None]) -> int | None:
    """The sum of what is known; None when nothing is."""
    found = [count for count in tokens if count is not None]
    return sum(found) if found else None


def cost_of(sums: Sums) -> int | None:
    """The sum of what had a price; None when nothing of what used tokens had one."""
    return None if sums["unpriced"] and not sums["cost_nanousd"] else sums["cost_nanousd"]


def columns_of(sums: Sums) -> dict[str, Any]:
    """The counts as the reports spell them. Whole and parts: known = reported + estimated."""
    row: dict[str, Any] = {name: sums[name] for name in ("requests", "errors", "client_gone")}
    for name in CLASSES:
        label = LABELS[name]
        row[label] = known(sums, name)
        row[f"{label}_reported"] = sums[f"{name}_reported"]
        row[f"{label}_estimated"] = sums[f"{name}_estimated"]
    for name in MISSING:
        row[f"{name}_missing_requests"] = sums[f"{name}_missing"]
    row["cost_usd"] = usd(cost_of(sums))
    row["cost_estimated_usd"] = usd(sums["cost_estimated_nanousd"])
    row["unpriced_requests"] = sums["unpriced"]
    row["cost_is_floor"] = sums["unpriced"] > 0
    row["tool_calls"] = sums["tool_calls"]
    row["web_search_requests"] = sums["web_searches"]
    return row


LABELS: Final[Mapping[str, str]] = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cache_read": "cache_read_input_tokens",
    "cache_write_5m": "cache_write_5m_tokens",
    "cache_write_1h": "cache_write_1h_tokens",
    "reasoning": "reasoning_tokens",
}
