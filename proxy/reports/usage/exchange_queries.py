"""Sums computed from single requests, for groups without a rollup: minutes, sessions, tools."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
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
from proxy.reports.core.time_ranges import MINUTES, TimeRange

from .rollup_queries import (
    COLUMN_OF,
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


def usage_from_requests(
    reader: Reader, start: datetime, end: datetime, columns: Sequence[str], condition: Q
) -> dict[Key, Counts]:
    """Return the sums of one time range, grouped by columns of Exchange or ``context_window``."""
    return dict(_sum_rows(_rows(reader, start, end, condition), columns, _aggregates()))


def _sum_rows(
    rows: QuerySet[Exchange], columns: Sequence[str], sums: Mapping[str, Any]
) -> Iterator[tuple[Key, Counts]]:
    grouped = rows.values(*columns).annotate(**sums) if columns else [rows.aggregate(**sums)]
    for row in grouped:
        if row["sum_requests"]:
            counts = {name: row.get(f"sum_{name}") or 0 for name in COUNT_NAMES}
            yield tuple(row[column] for column in columns), Counts(counts)


def usage_or_requests(
    reader: Reader,
    time_range: TimeRange,
    groups: Sequence[str],
    condition: Q,
    counts: Sequence[str] = COUNT_NAMES,
) -> Table:
    """Sum the rollup tables, or single requests if no rollup has the groups or the buckets."""
    if time_range.bucket != MINUTES:
        with suppress(NoRollup):
            return usage(reader, time_range, groups, condition, counts)
    columns = [COLUMN_OF[name] for name in groups]
    if time_range.bucket == MINUTES:
        rows = _rows(reader, time_range.start, time_range.end, condition)
        found = _sum_rows(rows.annotate(bucket=_minute()), ["bucket", *columns], _aggregates())
        table = {
            (time_range.index(_parse_minute(minute)), tuple(key)): sums
            for (minute, *key), sums in found
        }
    else:
        table = {
            (number, key): sums
            for number, (start, end) in enumerate(pairwise(time_range.edges))
            for key, sums in usage_from_requests(reader, start, end, columns, condition).items()
        }
    return named_table(groups, table)


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
        for key, sums in _sum_rows(rows, columns, {**_aggregates(), **costs}):
            table[bucket, key] = sums
    return named_table(groups, table)


def by_tool(reader: Reader, time_range: TimeRange, condition: Q) -> dict[Key, Counts]:
    """Return the sums by tool name. A request that called two tools counts for both tools.

    Whole UTC days come from the rollup by tool and day, parts of a day from single requests.
    """
    totals: dict[Key, Counts] = {}
    for part in _parts(time_range):
        try:
            for (_, key), sums in usage(reader, part, [TOOL], condition).items():
                totals.setdefault(key, Counts()).add(sums.counts)
        except NoRollup:
            rows = _rows(reader, part.start, part.end, condition & Q(tool_calls__gt=0))
            for (called,), sums in _sum_rows(rows, ["tool_names"], _aggregates()):
                for name in tools_of(called):
                    totals.setdefault((name,), Counts()).add(sums.counts)
    totals.pop(("",), None)  # requests that called no tool
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
    totals: dict[Key, Counts] = {}
    for part in parts:
        for (_, key), sums in usage_or_requests(reader, part, [SESSION], chosen).items():
            totals.setdefault(key, Counts()).add(sums.counts)
    return totals


def _parts(time_range: TimeRange) -> Iterator[TimeRange]:
    """Yield the parts of a time range that are whole UTC days, and the other parts."""
    for _, start, end in day_and_quarter_slices(time_range):
        yield TimeRange([start, end], "all", time_range.zone)


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
