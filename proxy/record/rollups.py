"""Keeps the rollups in step with the rows, in the same transaction (the ledger is held)."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Any, Final

import msgspec
from django.db import models, transaction

from proxy.models import (
    DaySession,
    DaySummary,
    DayUsage,
    DayWhat,
    DayWho,
    Exchange,
    Outcome,
    QuarterUsage,
    QuarterWhat,
    QuarterWho,
    State,
)
from proxy.models.rollups import UsageCounts

from .latency import METRICS, Sketch, bucket_of, merged
from .pricing import CLASSES, SOURCE_OF, Cost, cost_of, estimated_in
from .rows import AnyRow
from .seals import hold_ledger
from .statements import select, write

WINDOW: Final = "context_window"  # the one dimension that is no column of a row
LARGE_PROMPT: Final = 200_000  # tokens; where Anthropic's reports split context windows
DAY: Final = timedelta(days=1)

TABLES: Final[tuple[type[UsageCounts], ...]] = (
    QuarterUsage,
    DayUsage,
    DaySummary,
    QuarterWho,
    DayWho,
    QuarterWhat,
    DayWhat,
    DaySession,
)
QUARTERS: Final = (QuarterUsage, QuarterWho, QuarterWhat)
NO_ERROR: Final = (Outcome.COMPLETED, Outcome.CLIENT_GONE)
COUNTS: Final = tuple(
    field.name
    for field in UsageCounts._meta.get_fields()  # noqa: SLF001 -- Django's documented model API
    if field.name not in ("id", "start")
)
TOKENS: Final = {name: f"{told}_source" for name, told in SOURCE_OF.items()}
"""A class of tokens -> the column that says who counted it."""

MISSING: Final = {source: source.replace("_source", "_missing") for source in TOKENS.values()}

Totals = dict[str, Any]  # the counts of one bucket, and "latency"


def _columns(table: type[UsageCounts]) -> list[Any]:
    return list(table._meta.concrete_fields)  # noqa: SLF001 -- Django's documented model API


def dimensions_of(table: type[UsageCounts]) -> tuple[str, ...]:
    known = {"id", "start", "latency", *COUNTS}
    return tuple(f.name for f in _columns(table) if f.name not in known)


DIMENSIONS: Final = {table: dimensions_of(table) for table in TABLES}
SKETCHED: Final = frozenset(
    table for table in TABLES if any(f.name == "latency" for f in _columns(table))
)
OF_ROWS: Final = tuple(  # every dimension that is a column of a row
    dict.fromkeys(name for table in TABLES for name in DIMENSIONS[table] if name != WINDOW)
)
PLACES: Final = {
    table: itemgetter(*((*OF_ROWS, WINDOW).index(name) for name in names))
    for table, names in DIMENSIONS.items()
}
"""Picks a table's dimensions out of all of them."""
COUNTED: Final = tuple(  # the columns of a row that its counts are made of
    dict.fromkeys(
        (
            "created",
            *OF_ROWS,
            *(f"{name}_tokens" for name in TOKENS),
            *TOKENS.values(),
            *METRICS,
            "cost_nanousd",
            "price",
            "attempts",  # some of which may have a charge of their own
            "web_searches",
            "tool_calls",
        )
    )
)
_canonical = msgspec.json.Encoder().encode
_dimensions_of = attrgetter(*OF_ROWS)


def rows_of(table: type[UsageCounts]) -> "models.Manager[Any]":
    return table._default_manager  # noqa: SLF001 -- Django's documented model API


def start_of(table: type[UsageCounts], created: datetime) -> datetime:
    if table in QUARTERS:
        return created.replace(minute=created.minute // 15 * 15, second=0, microsecond=0)
    return created.replace(hour=0, minute=0, second=0, microsecond=0)


def dimension(row: AnyRow, name: str) -> Any:
    return context_window(row) if name == WINDOW else getattr(row, name)


def context_window(row: AnyRow) -> str:
    if row.input_tokens is None:
        return ""
    prompt = row.input_tokens + (row.cache_read_tokens or 0)
    prompt += (row.cache_write_5m_tokens or 0) + (row.cache_write_1h_tokens or 0)
    return "200k-1M" if prompt > LARGE_PROMPT else "0-200k"


def counts_of(row: AnyRow) -> Totals:
    """What one closed row adds to each of its buckets."""
    return {**dict.fromkeys(COUNTS, 0), **_added(row), "latency": _sketch(row)}


def _added(row: AnyRow) -> dict[str, int]:
    """The counts that are not 0, as far as that is known without looking."""
    it = vars(row)
    counts: dict[str, int] = {"requests": 1}
    if it["outcome"] not in NO_ERROR:
        counts["errors"] = 1
    elif it["outcome"] == Outcome.CLIENT_GONE:
        counts["client_gone"] = 1
    for name, source in TOKENS.items():
        if count := it[f"{name}_tokens"]:
            counts[f"{name}_{it[source]}"] = count
    for source, missing in MISSING.items():
        if it[source] == "missing":
            counts[missing] = 1
    if it["cost_nanousd"]:
        counts |= _costs(it)
    elif it["cost_nanousd"] is None:
        used_tokens = it["input_tokens"] is not None or it["output_tokens"] is not None
        counts["unpriced"] = int(used_tokens)
    counts["web_searches"] = it["web_searches"] or 0
    counts["tool_calls"] = it["tool_calls"]
    return counts


def _costs(columns: Mapping[str, Any]) -> dict[str, int]:
    """The cost, by class of token, and the part that rests on estimates."""
    usage = {name: columns[f"{name}_tokens"] for name in TOKENS}
    usage |= {source: columns[source] for source in MISSING}
    cost = cost_of(usage, columns["price"]) or Cost(0, dict.fromkeys(CLASSES, 0), 0)
    parts = dict(cost.parts)
    # Parts are rounded one by one, and failed attempts have no parts: the largest part takes what
    # is left, so that they are the whole.
    parts[max(parts, key=parts.__getitem__)] += columns["cost_nanousd"] - sum(parts.values())
    return {
        "cost_nanousd": columns["cost_nanousd"],
        "cost_estimated_nanousd": cost.estimated + estimated_in(columns["attempts"]),
        **{f"cost_{name}_nanousd": part for name, part in parts.items()},
    }


def _sketch(row: AnyRow) -> Sketch:
    it = vars(row)
    return {metric: {str(bucket_of(it[metric])): 1} for metric in METRICS if it[metric] is not None}


@dataclass(slots=True)
class Bucket:
    """What some rows add to one row of a rollup."""

    start: datetime
    dimensions: tuple[Any, ...]
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    sketches: list[Sketch] = field(default_factory=list)

    def take(self, counts: Mapping[str, int], *sketches: Sketch) -> None:
        own = self.counts
        for name, n in counts.items():
            if n:
                own[name] += n
        self.sketches += sketches


Buckets = dict[tuple[Any, ...], Bucket]  # by start and dimensions


def add(rows: Iterable[AnyRow], sign: int = 1) -> None:
    """Add closed rows to the rollups, or take them out (``sign=-1``) before they are amended.

    They are added up by everything that any table knows of them first: from there on it is
    buckets that are added up, and there are fewer of them.
    """
    finest: Buckets = {}
    for row in rows:
        group = (*_dimensions_of(row), context_window(row))
        start = start_of(QuarterUsage, row.created)
        _bucket(finest, start, group).take(_added(row), _sketch(row))
    for bucket in finest.values():
        bucket.sketches = [merged(bucket.sketches, sign)]
    for table in TABLES:
        if finest:
            _write(table, _summed(table, finest.values()), sign)


def _bucket(buckets: Buckets, start: datetime, group: tuple[Any, ...]) -> Bucket:
    key = (start, *group)
    bucket = buckets.get(key)
    if bucket is None:
        bucket = buckets[key] = Bucket(start, group)
    return bucket


def _summed(table: type[UsageCounts], finest: Iterable[Bucket]) -> dict[bytes, Bucket]:
    """By key, what the buckets add up to in this table."""
    group_of, buckets = PLACES[table], Buckets()
    for one in finest:
        bucket = _bucket(buckets, start_of(table, one.start), group_of(one.dimensions))
        bucket.take(one.counts, *one.sketches)
    return {_key(group): bucket for group, bucket in buckets.items()}


def _key(group: tuple[Any, ...]) -> bytes:
    plain = [group[0].isoformat(), *group[1:]]
    return hashlib.sha256(_canonical(plain)).digest()[:16]


def _write(table: type[UsageCounts], buckets: Mapping[bytes, Bucket], sign: int) -> None:
    """Let the database add: only the sketches must be read to be changed."""
    sketched = table in SKETCHED
    before = _sketches(table, list(buckets)) if sketched else {}
    lines = []
    for key, bucket in buckets.items():
        counts = bucket.counts
        if sign != 1:
            counts = {name: sign * n for name, n in counts.items()}
        line = {"id": key, "start": bucket.start, **counts}
        line.update(zip(DIMENSIONS[table], bucket.dimensions, strict=True))
        if sketched:
            line["latency"] = merged([before.get(key, {}), *bucket.sketches])
        lines.append(line)
    write(table, lines, added=COUNTS, replaced=("latency",) if sketched else ())


def _sketches(table: type[UsageCounts], keys: list[bytes]) -> Mapping[bytes, Sketch]:
    found = select(table, ("id", "latency"), "id", keys)
    return {bytes(key): msgspec.json.decode(sketch) for key, sketch in found}


def rebuild(since: datetime, until: datetime) -> int:
    """Make the rollups of whole UTC days from the rows again; the number of rows read."""
    return sum(rebuilt for _, rebuilt in rebuild_days(since, until))


def rebuild_days(since: datetime, until: datetime) -> Iterator[tuple[datetime, int]]:
    """The same, day by day: each is done in a transaction of its own when it is told."""
    day = start_of(DayUsage, since)
    while day < until:
        with transaction.atomic():
            hold_ledger()
            rebuilt = _rebuild_day(day)
        yield day, rebuilt
        day += DAY


def recorded() -> tuple[datetime, datetime] | None:
    """From the first closed row to after the last one; None: there is none."""
    rows = Exchange.objects.filter(state=State.CLOSED)
    ends = rows.aggregate(first=models.Min("created"), last=models.Max("created"))
    return (ends["first"], ends["last"] + timedelta(seconds=1)) if ends["first"] else None


def _rebuild_day(day: datetime) -> int:
    for table in TABLES:
        rows_of(table).filter(start__gte=day, start__lt=day + DAY).delete()
    rows = (
        Exchange.objects.filter(state=State.CLOSED, created__gte=day, created__lt=day + DAY)
        .only(*COUNTED)
        .iterator(chunk_size=2000)
    )
    seen = 0
    while batch := list(islice(rows, 2000)):
        add(batch)
        seen += len(batch)
    return seen
