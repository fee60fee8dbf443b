"""Sums straight from requests, for what no rollup knows: minutes and sessions."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from django.db import connection
from django.db.models import Case, Count, F, Q, QuerySet, Sum, TextField, Value, When
from django.db.models.functions import Cast, Coalesce, Substr, TruncMinute
from django.db.models.lookups import GreaterThan

from proxy.models import Exchange, Outcome, State
from proxy.record.rollups import LARGE_PROMPT, NO_ERROR, TOKENS
from proxy.visibility import Reader, visible_exchanges

from .spans import Span
from .sums import DIMENSIONS, SUMMED, Key, NoRollup, Sums, Table, stretches, usage


def _prompt() -> Any:
    """Tokens of the whole prompt; null where nobody said the input."""
    classes = ("cache_read_tokens", "cache_write_5m_tokens", "cache_write_1h_tokens")
    total: Any = F("input_tokens")
    for name in classes:
        total = total + Coalesce(F(name), 0)
    return total


CONTEXT_WINDOW: Final = Case(  # the rollups' own rule, for rows that no rollup can answer
    When(input_tokens=None, then=Value("")),
    When(GreaterThan(_prompt(), LARGE_PROMPT), then=Value("200k-1M")),
    default=Value("0-200k"),
)


def _aggregates() -> dict[str, Any]:
    """The same counts as the rollups have, under the same names with a mark before them."""
    sums: dict[str, Any] = {
        "requests": Count("pk"),
        "errors": Count("pk", filter=~Q(outcome__in=NO_ERROR)),
        "client_gone": Count("pk", filter=Q(outcome=Outcome.CLIENT_GONE)),
        "cost_nanousd": Sum("cost_nanousd"),
        "web_searches": Sum("web_searches"),
        "tool_calls": Sum("tool_calls"),
        "unpriced": Count(
            "pk",
            filter=Q(cost_nanousd=None)
            & (Q(input_tokens__isnull=False) | Q(output_tokens__isnull=False)),
        ),
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


def _sums(row: Mapping[str, Any]) -> Sums:
    return Sums({name: row.get(f"sum_{name}") or 0 for name in SUMMED})


def raw_usage(
    reader: Reader, start: datetime, end: datetime, columns: Sequence[str], condition: Q
) -> dict[tuple[Any, ...], Sums]:
    """Sums of one stretch by columns of Exchange (or ``context_window``)."""
    rows = _rows(reader, start, end, condition).values(*columns)
    found = rows.annotate(**_aggregates()) if columns else [rows.aggregate(**_aggregates())]
    table = {tuple(row[column] for column in columns): _sums(row) for row in found}
    return {key: sums for key, sums in table.items() if sums["requests"]}


def by_tool(reader: Reader, span: Span, condition: Q) -> dict[Key, Sums]:
    """Sums of the requests that called a tool, by its name; of two tools they count for both."""
    found: dict[Key, Sums] = {}
    rows = _rows(reader, span.start, span.end, condition & Q(tool_calls__gt=0))
    for row in rows.values("tool_names").annotate(**_aggregates()).iterator(chunk_size=2000):
        sums = _sums(row)
        for name in row["tool_names"]:
            found.setdefault((name,), Sums()).add(sums.counts)
    return found


def by_session(reader: Reader, span: Span, condition: Q) -> dict[Key, Sums]:
    """Sums by session: of whole UTC days from the rollup, of the rest from the requests."""
    found: dict[Key, Sums] = {}
    for _, start, end in stretches(span):
        part = Span([start, end], "all", span.zone)
        try:
            some = {
                key: sums for (_, key), sums in usage(reader, part, ["session"], condition).items()
            }
        except NoRollup:
            some = raw_usage(reader, start, end, ["session_id"], condition)
        for key, sums in some.items():
            found.setdefault(key, Sums()).add(sums.counts)
    return found


def raw_minutes(
    reader: Reader, start: datetime, end: datetime, columns: Sequence[str], condition: Q
) -> dict[tuple[datetime, tuple[Any, ...]], Sums]:
    """The same by UTC minute."""
    rows = _rows(reader, start, end, condition)
    grouped = rows.annotate(bucket=_minute()).values("bucket", *columns)
    return {
        (_moment(row["bucket"]), tuple(row[column] for column in columns)): _sums(row)
        for row in grouped.annotate(**_aggregates()).iterator(chunk_size=2000)
    }


def minutes(reader: Reader, span: Span, groups: Sequence[str], condition: Q) -> Table:
    """The same for the buckets of a span of minutes; ``groups`` name DIMENSIONS."""
    columns = [DIMENSIONS[name] for name in groups]
    found = raw_minutes(reader, span.start, span.end, columns, condition)
    return {(span.index(start), key): sums for (start, key), sums in found.items()}


def _minute() -> Any:
    """SQLite keeps times as text: its beginning is the minute, where truncating calls Python."""
    if connection.vendor == "sqlite":
        return Substr(Cast("created", TextField()), 1, 16)
    return TruncMinute("created")


def _moment(minute: str | datetime) -> datetime:
    if isinstance(minute, str):
        minute = datetime.fromisoformat(minute).replace(tzinfo=UTC)
    return minute
