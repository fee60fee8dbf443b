"""Sums computed from single requests, for groups without a rollup: minutes, sessions, tools."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import reduce
from itertools import pairwise
from operator import add
from typing import Any, Final

from django.db import connection
from django.db.models import (
    Case,
    Count,
    Exists,
    F,
    OuterRef,
    Q,
    QuerySet,
    Sum,
    TextField,
    Value,
    When,
)
from django.db.models.functions import Cast, Coalesce, Substr, TruncMinute
from django.db.models.lookups import GreaterThan
from rest_framework.exceptions import ValidationError

from proxy.ledger.archive.reading import archived_months, restore_hint
from proxy.ledger.posting.rollups import LARGE_PROMPT, NO_ERROR, TOKENS, tools_of
from proxy.models import Exchange, HashChainLink, Outcome, State
from proxy.models.ledger import HAS_TOKENS
from proxy.permissions.row_permissions import Reader, visible_exchanges
from proxy.reports.core.dimensions import DIMENSIONS
from proxy.reports.core.time_ranges import TimeRange

from .rollup_queries import (
    COUNT_NAMES,
    Counts,
    Key,
    NoRollup,
    Table,
    day_and_quarter_slices,
    named_table,
    rollup_slices,
    usage,
)


def _prompt_tokens() -> Any:
    """Return a query expression for all prompt tokens; null if the input is not reported."""
    cached = ("cache_read_tokens", "cache_write_5m_tokens", "cache_write_1h_tokens")
    total: Any = F("input_tokens")
    for name in cached:
        total = total + Coalesce(F(name), 0)
    return total


SESSION: Final = "session"
TOOL: Final = "tool"
CONTEXT_WINDOW: Final = Case(  # the rule must be the same as in the rollups
    When(input_tokens=None, then=Value("")),
    When(GreaterThan(_prompt_tokens(), LARGE_PROMPT), then=Value("200k-1M")),
    default=Value("0-200k"),
)


def _aggregates() -> dict[str, Any]:
    """Return aggregates over requests for the counts of the rollups, named ``sum_<count>``."""
    sums: dict[str, Any] = {
        "requests": Count("pk"),
        "errors": Count("pk", filter=~Q(outcome__in=NO_ERROR)),
        "client_gone": Count("pk", filter=Q(outcome=Outcome.CLIENT_GONE)),
        "cost_nanousd": Sum("cost_nanousd"),
        "web_searches": Sum("web_searches"),
        "tool_calls": Sum("tool_calls"),
        "unpriced": Count("pk", filter=Q(cost_nanousd=None) & HAS_TOKENS),
    }
    for name, source in TOKENS.items():
        for kind in ("reported", "estimated"):
            sums[f"{name}_{kind}"] = Sum(f"{name}_tokens", filter=Q(**{source: kind}))
    for source in dict.fromkeys(TOKENS.values()):
        name = source.replace("_source", "_missing")
        sums[name] = Count("pk", filter=Q(**{source: "missing"}))
    return {f"sum_{name}": one for name, one in sums.items()}


def _rows(reader: Reader, start: datetime, end: datetime, condition: Q) -> QuerySet[Exchange]:
    rows = visible_exchanges(reader).annotate(context_window=CONTEXT_WINDOW)
    return rows.filter(
        condition, state=State.CLOSED, created__gte=start, created__lt=end
    ).order_by()


def _sums(row: Mapping[str, Any]) -> Counts:
    return Counts({name: row.get(f"sum_{name}") or 0 for name in COUNT_NAMES})


def usage_from_requests(
    reader: Reader, start: datetime, end: datetime, columns: Sequence[str], condition: Q
) -> dict[tuple[Any, ...], Counts]:
    """Return the sums of one time range, grouped by columns of Exchange or ``context_window``."""
    rows = _rows(reader, start, end, condition)
    grouped = (
        rows.values(*columns).annotate(**_aggregates())
        if columns
        else [rows.aggregate(**_aggregates())]
    )
    totals: dict[tuple[Any, ...], Counts] = {}
    for row in grouped:
        key = tuple(row[column] for column in columns)
        totals.setdefault(key, Counts()).add(_sums(row).counts)
    return {key: sums for key, sums in totals.items() if sums["requests"]}


def usage_as_of(
    reader: Reader, time_range: TimeRange, groups: Sequence[str], condition: Q, as_of: date
) -> Table:
    """Return the sums by bucket and group as the ledger knew them at the end of a UTC day.

    A request counts if its row was recorded by then: the first link of the hash chain for it is of
    that day or an earlier one. If the row was changed afterwards, its cost of that day is not known
    any more, so it counts as a request without a price.
    Raise ValidationError for archived months, because their rows are not in the database.
    """
    if months := archived_months(time_range.start, time_range.end):
        raise ValidationError({"as_of": f"use a later from: {restore_hint(months)}"})
    links = HashChainLink.objects.filter(exchange_id=OuterRef("pk"))
    was_known = Q(Exists(links.filter(day__lte=as_of)))
    is_changed = Exists(links.filter(day__gt=as_of))
    unchanged = Q(is_changed=False)
    costs = {
        "sum_cost_nanousd": Sum("cost_nanousd", filter=unchanged),
        "sum_unpriced": Count("pk", filter=HAS_TOKENS & (Q(cost_nanousd=None) | ~unchanged)),
    }
    columns = [DIMENSIONS[name] for name in groups]
    table: Table = {}
    for bucket, (start, end) in enumerate(pairwise(time_range.edges)):
        rows = _rows(reader, start, end, condition & was_known).annotate(is_changed=is_changed)
        sums = {**_aggregates(), **costs}
        found = rows.values(*columns).annotate(**sums) if columns else [rows.aggregate(**sums)]
        for row in found:
            if row["sum_requests"]:
                table[bucket, tuple(row[column] for column in columns)] = _sums(row)
    return named_table(groups, table)


def by_tool(reader: Reader, time_range: TimeRange, condition: Q) -> dict[Key, Counts]:
    """Return the sums by tool name. A request that called two tools counts for both tools.

    Whole UTC days come from the rollup by tool and day, parts of a day from single requests.
    """

    def from_requests(part: TimeRange) -> Mapping[Key, Counts]:
        return _by_tool_from_requests(reader, part.start, part.end, condition)

    totals = _sum_parts(reader, _parts(time_range), TOOL, condition, from_requests)
    totals.pop(("",), None)  # requests that called no tool
    return totals


def _by_tool_from_requests(
    reader: Reader, start: datetime, end: datetime, condition: Q
) -> dict[Key, Counts]:
    rows = _rows(reader, start, end, condition & Q(tool_calls__gt=0))
    totals: dict[Key, Counts] = {}
    for row in rows.values("tool_names").annotate(**_aggregates()):
        sums = _sums(row)
        for name in tools_of(row["tool_names"]):
            totals.setdefault((name,), Counts()).add(sums.counts)
    return totals


def top_sessions(
    reader: Reader, time_range: TimeRange, condition: Q, weight: Sequence[str], limit: int
) -> dict[Key, Counts]:
    """Return the sums of the sessions in which the sum of the counts ``weight`` is highest.

    Whole UTC days come from the rollup by session and day, parts of a day from single requests. A
    month has many sessions, so the database ranks them, and only the highest are read whole.
    """
    parts = list(_parts(time_range))
    weights: Counter[str] = Counter()
    for part in parts:
        try:
            rows = next(rollup_slices(reader, part, ["session_id"], condition))
        except NoRollup:
            found = usage_from_requests(reader, part.start, part.end, ["session_id"], condition)
            weights.update(
                {key[0]: sum(sums[one] for one in weight) for key, sums in found.items()}
            )
            continue
        total = reduce(add, map(Sum, weight))
        ranked = rows.values("session_id").annotate(weight=total).order_by("-weight", "session_id")
        # A session in several parts may have the highest sum without being among the first of one.
        weights.update(
            dict(ranked.values_list("session_id", "weight")[: limit if len(parts) == 1 else None])
        )
    highest = sorted(weights, key=lambda name: (-weights[name], name))[:limit]
    chosen = condition & Q(session_id__in=highest)

    def from_requests(part: TimeRange) -> Mapping[Key, Counts]:
        return usage_from_requests(reader, part.start, part.end, ["session_id"], chosen)

    return _sum_parts(reader, parts, SESSION, chosen, from_requests)


def _sum_parts(
    reader: Reader,
    parts: Iterable[TimeRange],
    group: str,
    condition: Q,
    from_requests: Callable[[TimeRange], Mapping[Key, Counts]],
) -> dict[Key, Counts]:
    """Return the sums by group; ``from_requests`` is called for parts that no rollup has."""
    totals: dict[Key, Counts] = {}
    for part in parts:
        try:
            table = usage(reader, part, [group], condition)
            sums_by_key: Mapping[Key, Counts] = {key: sums for (_, key), sums in table.items()}
        except NoRollup:
            sums_by_key = from_requests(part)
        for key, sums in sums_by_key.items():
            totals.setdefault(key, Counts()).add(sums.counts)
    return totals


def _parts(time_range: TimeRange) -> Iterator[TimeRange]:
    """Yield the parts of a time range that are whole UTC days, and the other parts."""
    for _, start, end in day_and_quarter_slices(time_range):
        yield TimeRange([start, end], "all", time_range.zone)


def usage_by_minute(
    reader: Reader, start: datetime, end: datetime, columns: Sequence[str], condition: Q
) -> dict[tuple[datetime, tuple[Any, ...]], Counts]:
    """Return the sums of one time range, grouped by UTC minute and columns of Exchange."""
    rows = _rows(reader, start, end, condition).annotate(bucket=_minute())
    totals: dict[tuple[datetime, tuple[Any, ...]], Counts] = {}
    for row in rows.values("bucket", *columns).annotate(**_aggregates()):
        key = (_parse_minute(row["bucket"]), tuple(row[column] for column in columns))
        totals.setdefault(key, Counts()).add(_sums(row).counts)
    return totals


def minute_table(
    reader: Reader, time_range: TimeRange, groups: Sequence[str], condition: Q
) -> Table:
    """Return the sums by one-minute bucket and group. ``groups`` are keys of DIMENSIONS."""
    columns = [DIMENSIONS[name] for name in groups]
    totals = usage_by_minute(reader, time_range.start, time_range.end, columns, condition)
    table = {(time_range.index(start), key): sums for (start, key), sums in totals.items()}
    return named_table(groups, table)


def _minute() -> Any:
    """Return a query expression for the minute in which a request was accepted.

    On SQLite, which stores times as text, ``TruncMinute`` would call a Python function for each
    row, so the expression is a substring.
    """
    if connection.vendor == "sqlite":
        return Substr(Cast("created", TextField()), 1, 16)
    return TruncMinute("created")


def _parse_minute(minute: str | datetime) -> datetime:
    if isinstance(minute, str):
        minute = datetime.fromisoformat(minute).replace(tzinfo=UTC)
    return minute
