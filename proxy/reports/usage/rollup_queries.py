"""Sum the rollup tables by time bucket and group, so that reports need not read the requests."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final

import msgspec
from django.db import connection
from django.db.models import Case, F, Min, Q, QuerySet, Sum, TextField, Value, When
from django.db.models.functions import Cast, Concat, Substr, TruncHour
from django.db.models.lookups import GreaterThanOrEqual
from django.utils.timezone import now

from proxy.ledger.posting.rollups import DIMENSIONS as COLUMNS
from proxy.ledger.posting.rollups import WITH_LATENCY, rows_of
from proxy.ledger.usage.latency_histogram import Histograms, merge_histograms
from proxy.ledger.usage.pricing import SOURCE_OF
from proxy.models import (
    DrainWatermark,
    UsageByCallerDay,
    UsageByCallerQuarterHour,
    UsageByModelDay,
    UsageByModelQuarterHour,
    UsageBySessionDay,
    UsageByToolDay,
    UsageDay,
    UsageQuarterHour,
    UsageSummaryDay,
)
from proxy.models.rollups import UsageCounts
from proxy.permissions.row_permissions import Reader, visible_rows
from proxy.reports.core.dimensions import DIMENSIONS, shown
from proxy.reports.core.time_ranges import DAY, TimeRange

CLASSES: Final = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h", "reasoning")
MISSING: Final = ("input", "output", "cache_read", "cache_write", "reasoning")
TOKEN_COUNTS: Final = (
    *(f"{name}_{source}" for name in CLASSES for source in ("reported", "estimated")),
    *(f"{name}_missing" for name in MISSING),
    "web_searches",
)
COST_COUNTS: Final = ("requests", "cost_nanousd", "unpriced")
COUNT_NAMES: Final = (
    *COST_COUNTS,
    "errors",
    "client_gone",
    *TOKEN_COUNTS,
    "cost_estimated_nanousd",
    *(f"cost_{name}_nanousd" for name in CLASSES if name != "reasoning"),
    "tool_calls",
)
MISSING_OF: Final = {name: f"{source}_missing" for name, source in SOURCE_OF.items()}
"""Token class -> name of the count of requests without a value for this class."""
DRAINER_TIMEOUT: Final = timedelta(minutes=10)

COLUMN_OF: Final[Mapping[str, str]] = {**DIMENSIONS, "session": "session_id", "tool": "tool"}
"""Dimension -> column of the rollup tables and of Exchange.

Only rollups of days have sessions and tools, and Exchange has no column ``tool``.
"""


@dataclass(slots=True)
class Counts:
    """The counts (requests, errors, tokens, cost ...) of one group in one time bucket."""

    counts: dict[str, int] = field(default_factory=dict)
    """Values by name of the count. An absent count is 0, or the query did not read it."""

    def add(self, counts: Mapping[str, int]) -> None:
        totals_by_name = self.counts
        for name, count in counts.items():
            totals_by_name[name] = totals_by_name.get(name, 0) + count

    def __getitem__(self, name: str) -> int:
        return self.counts.get(name, 0)


Key = tuple[Any, ...]  # the values of the columns of ``groups``
Table = dict[tuple[int, Key], Counts]  # (bucket number, values of the group) -> sums
Rollup = type[UsageCounts]

DAYS: Final[tuple[Rollup, ...]] = (  # of two tables with the columns, the first has fewer rows
    UsageByModelDay,
    UsageByCallerDay,
    UsageSummaryDay,
    UsageDay,
    UsageBySessionDay,
    UsageByToolDay,
)
QUARTERS: Final[tuple[Rollup, ...]] = (
    UsageByModelQuarterHour,
    UsageByCallerQuarterHour,
    UsageQuarterHour,
)


class NoRollup(LookupError):
    """No rollup table has all requested columns, so the sums need a query on Exchange."""


def usage(
    reader: Reader,
    time_range: TimeRange,
    groups: Sequence[str],
    condition: Q | None = None,
    counts: Sequence[str] = COUNT_NAMES,
) -> Table:
    """Return the sums by bucket and group of the requests that this reader may see.

    ``groups`` are keys of DIMENSIONS. ``counts`` are the names of the counts to read; reading fewer
    counts makes a long report faster. Raise NoRollup, which can happen only if ``groups`` contains
    ``session`` or ``tool``. By tool, a request is in the sums of each tool that it called.
    """
    columns = [COLUMN_OF[name] for name in groups]
    names = tuple(dict.fromkeys(("requests", *counts)))
    whole = len(time_range.edges) == 2  # with one bucket, the query need not group by time
    # Start of a bucket as the database returns it -> number of the bucket.
    buckets: dict[Any, int] = {}
    totals: Table = {}
    for rows in rollup_slices(reader, time_range, columns, condition):
        result = _sum_rows(rows, columns, names, None if whole else slot_expression(time_range))
        for start, key, sums_in_order in result:
            bucket = buckets.get(start)
            if bucket is None:
                bucket = buckets[start] = 0 if whole else time_range.index(_parse_start(start))
            increment: dict[str, int] = dict(zip(names, sums_in_order, strict=True))
            if (sums := totals.get((bucket, key))) is None:
                totals[(bucket, key)] = Counts(increment)
            else:
                sums.add(increment)
    return named_table(groups, totals)


def named_table(groups: Sequence[str], table: Table) -> Table:
    """Return the table with names in place of the ids of teams, keys and users."""
    keys = shown(groups, (key for _, key in table))
    return {
        (bucket, key): sums for ((bucket, _), sums), key in zip(table.items(), keys, strict=True)
    }


def _sum_rows(
    rows: "QuerySet[Any]", columns: Sequence[str], names: Sequence[str], slot: Any
) -> Iterator[tuple[Any, Key, tuple[int, ...]]]:
    """Yield (start of the time slot, values of ``columns``, sums of the counts ``names``).

    The first of ``names`` must be ``requests``; groups without requests are left out.
    """
    sums: dict[str, Any] = {f"sum_{name}": PlainSum(name) for name in names}
    # The prefix is needed, because a sum named like its column would hide the column.
    by: dict[str, Any] = {} if slot is None else {"slot": slot}
    # Group by time first. Two dimensions may have one column: ``key`` and ``key_id``.
    by |= {f"by_{number}": F(column) for number, column in enumerate(columns)}
    found: Iterator[tuple[Any, ...]]
    if by:
        result = rows.order_by().annotate(**by).values(*by).annotate(**sums)
        found = result.values_list(*by, *sums).iterator(chunk_size=2000)
    else:
        total = rows.aggregate(**sums)
        found = iter([tuple(total[name] or 0 for name in sums)])
    first, columns_at = len(by), len(by) - len(columns)
    for row in found:
        if row[first]:
            yield row[0] if columns_at else None, row[columns_at:first], row[first:]


def slot_expression(time_range: TimeRange) -> Any:
    """Return a query expression for the widest time slot that no bucket edge divides.

    With wider slots the database returns fewer rows, which are then added up by bucket.
    """
    minutes = {edge.minute for edge in time_range.edges}
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
    """A sum of integers without Django's converters, which take a third of the time on SQLite."""

    def get_db_converters(self, connection: Any) -> list[Any]:
        return [] if connection.vendor == "sqlite" else super().get_db_converters(connection)


def _parse_start(start: str | datetime) -> datetime:
    """Return the start of a slot as a UTC datetime; SQLite returns text or a naive datetime."""
    at = datetime.fromisoformat(start) if isinstance(start, str) else start
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def rollup_slices(
    reader: Reader,
    time_range: TimeRange,
    columns: Sequence[str] = (),
    condition: Q | None = None,
    *,
    sketched: bool = False,
) -> Iterator["QuerySet[Any]"]:
    """Yield querysets of the rollup rows of the time range that this reader may see.

    Each queryset is on the smallest table with the columns of ``columns`` and ``condition``, and
    with latency sketches (histograms) if ``sketched`` is true. Raise NoRollup.
    """
    visible = visible_rows(reader) & (condition or Q())
    needed = {*columns, *_columns_of(visible)}
    for days, start, end in day_and_quarter_slices(time_range):
        table = _smallest(DAYS if days else QUARTERS, needed, sketched=sketched)
        yield rows_of(table).filter(visible, start__gte=start, start__lt=end)


def _smallest(tables: Sequence[Rollup], needed: set[str], *, sketched: bool) -> Rollup:
    for table in tables:
        if needed <= set(COLUMNS[table]) and (table in WITH_LATENCY or not sketched):
            return table
    raise NoRollup(", ".join(sorted(needed)))


def _columns_of(condition: Q) -> Iterator[str]:
    for child in condition.children:
        if isinstance(child, Q):
            yield from _columns_of(child)
        elif isinstance(child, tuple) and (name := child[0].partition("__")[0]) != "pk":
            yield name


def day_and_quarter_slices(time_range: TimeRange) -> Iterator[tuple[bool, datetime, datetime]]:
    """Yield (is_whole_days, start, end) for consecutive parts of the time range.

    A part of whole days consists of UTC days without a bucket edge inside, and is read from the
    daily rollups. The other parts are read from the quarter-hour rollups.
    """
    cut = {edge.date() for edge in time_range.edges if edge.time() != time()}
    start = time_range.start
    while start < time_range.end:
        days = start.date() not in cut
        end = _midnight(start.date() + DAY)
        while end < time_range.end and (end.date() not in cut) == days:
            end += DAY
        yield days, start, min(end, time_range.end)
        start = end


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), tzinfo=UTC)


def sketches(
    reader: Reader, time_range: TimeRange, groups: Sequence[str], condition: Q | None = None
) -> dict[Key, Histograms]:
    """Return the latency histograms by group, merged over the whole time range."""
    found = sketches_by_bucket(reader, time_range.as_one_bucket, groups, condition)
    return {key: sketch for (_, key), sketch in found.items()}


def sketches_by_bucket(
    reader: Reader, time_range: TimeRange, groups: Sequence[str], condition: Q | None = None
) -> dict[tuple[int, Key], Histograms]:
    """Return the latency histograms by (bucket number, group)."""
    columns = [DIMENSIONS[name] for name in groups]
    found: dict[tuple[int, Key], list[Histograms]] = {}
    decode = msgspec.json.Decoder(Histograms).decode
    for rows in rollup_slices(reader, time_range, columns, condition, sketched=True):
        text = Cast("latency", TextField())  # JSON text: msgspec decodes it faster than Django
        result = rows.order_by().values_list("start", text, *columns)
        for start, latency, *key in result.iterator(chunk_size=2000):
            found.setdefault((time_range.index(start), tuple(key)), []).append(decode(latency))
    keys = shown(groups, (key for _, key in found))
    return {
        (bucket, key): merge_histograms(sketch)
        for ((bucket, _), sketch), key in zip(found.items(), keys, strict=True)
    }


def refreshed_at() -> datetime | None:
    """Return the watermark: all requests that ended before this time are in the ledger.

    Drainers are the threads that post journal records to the ledger. The result is None if no
    drainer has reported. A drainer without a backlog that has not reported for ``DRAINER_TIMEOUT``
    belongs to a stopped gateway and is ignored.
    """
    alive = Q(backlog__gt=0) | Q(seen__gte=now() - DRAINER_TIMEOUT)
    mark: datetime | None = DrainWatermark.objects.filter(alive).aggregate(m=Min("as_of"))["m"]
    return mark


def known_tokens(sums: Counts, name: str) -> int | None:
    """Return the reported and estimated tokens of a class; None if no request has a value.

    The sum is a lower bound if some requests have no value; ``{name}_missing`` counts these.
    """
    tokens = sums[f"{name}_reported"] + sums[f"{name}_estimated"]
    missing = sums[MISSING_OF[name]]
    return None if missing and not tokens and missing >= sums["requests"] else tokens


def known_token_counts(names: Iterable[str]) -> list[str]:
    """Return the names of the counts that ``known_tokens`` needs for these token classes."""
    sums = [f"{name}_{source}" for name in names for source in ("reported", "estimated")]
    return [*sums, *dict.fromkeys(MISSING_OF[name] for name in names)]


def sum_known(tokens: Iterable[int | None]) -> int | None:
    """Return the sum of the values that are not None; None if there are none."""
    found = [count for count in tokens if count is not None]
    return sum(found) if found else None


def cost_of(sums: Counts) -> int | None:
    """Return the cost of the priced requests; None if only unpriced requests used tokens."""
    return None if sums["unpriced"] and not sums["cost_nanousd"] else sums["cost_nanousd"]
