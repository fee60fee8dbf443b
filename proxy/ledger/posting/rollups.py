"""Update the rollup tables: usage summed by time bucket and dimensions such as team or model.

The tables are updated in the same transaction as the ledger rows, under the ledger lock.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter, itemgetter
from typing import Any, Final

import msgspec
from django.db import models

from proxy.ledger.database.bulk_sql import select, write
from proxy.ledger.usage.latency_histogram import METRICS, Histograms, bucket_of, merge_histograms
from proxy.ledger.usage.pricing import CLASSES, SOURCE_OF, Cost, cost_of, estimated_attempts_cost
from proxy.models import (
    Outcome,
    StopReasonDay,
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

from .exchange_columns import AnyRow

# The dimensions that are not columns of a ledger row.
WINDOW: Final = "context_window"
TOOL: Final = "tool"
LARGE_PROMPT: Final = 200_000  # tokens; the boundary of context windows in Anthropic's reports
DAY: Final = timedelta(days=1)

TABLES: Final[tuple[type[UsageCounts], ...]] = (
    UsageQuarterHour,
    UsageDay,
    UsageSummaryDay,
    UsageByCallerQuarterHour,
    UsageByCallerDay,
    UsageByModelQuarterHour,
    UsageByModelDay,
    UsageBySessionDay,
    UsageByToolDay,
)
Table = type[UsageCounts] | type[StopReasonDay]
ALL_TABLES: Final[tuple[Table, ...]] = (*TABLES, StopReasonDay)
QUARTER_HOURS: Final = (UsageQuarterHour, UsageByCallerQuarterHour, UsageByModelQuarterHour)
NO_ERROR: Final = (Outcome.COMPLETED, Outcome.CLIENT_GONE)
COUNTS: Final = tuple(
    field.name
    for field in UsageCounts._meta.get_fields()  # noqa: SLF001 -- Django's documented model API
    if field.name not in ("id", "start")
)
STOP_COUNTS: Final = ("requests", "requests_with_tool")
MAX_TOOLS: Final = 50  # different tools of one answer that are counted
MAX_NAME: Final = 200  # characters of a tool's name
TOKENS: Final = {name: f"{source}_source" for name, source in SOURCE_OF.items()}
"""Token class -> the column with its source (reported, estimated or missing)."""

MISSING: Final = {source: source.replace("_source", "_missing") for source in TOKENS.values()}

Line = dict[str, Any]
"""A row of a table by column."""


def _columns(table: Table) -> list[str]:
    return [field.name for field in table._meta.concrete_fields]  # noqa: SLF001 -- Django's documented model API


DIMENSIONS: Final[Mapping[Table, tuple[str, ...]]] = {
    **{
        table: tuple(n for n in _columns(table) if n not in {"id", "start", "latency", *COUNTS})
        for table in TABLES
    },
    StopReasonDay: (  # the order of its keys, which are stored
        "team", "key_id", "user", "client_name", "client_version", "model_requested",
        "stop_reason", TOOL,
    ),
}  # fmt: skip
WITH_LATENCY: Final = frozenset(table for table in TABLES if "latency" in _columns(table))
ROW_DIMENSIONS: Final = tuple(  # all dimensions that are columns of a ledger row
    dict.fromkeys(
        name for names in DIMENSIONS.values() for name in names if name not in (WINDOW, TOOL)
    )
)
SELECT_DIMENSIONS: Final = {
    table: itemgetter(*((*ROW_DIMENSIONS, WINDOW, TOOL).index(name) for name in names))
    for table, names in DIMENSIONS.items()
}
"""Functions that select a table's dimensions from a tuple of their values, which has the values of
ROW_DIMENSIONS, the context window, and a tuple of all called tools."""
_canonical = msgspec.json.Encoder().encode
_dimensions_of = attrgetter(*ROW_DIMENSIONS)


def rows_of(table: type[UsageCounts]) -> "models.Manager[Any]":
    """Return the manager of a rollup table."""
    return table._default_manager  # noqa: SLF001 -- Django's documented model API


def counts_of(table: Table) -> tuple[str, ...]:
    return STOP_COUNTS if table is StopReasonDay else COUNTS


def start_of(table: Table, created: datetime) -> datetime:
    """Return the start of the table's time bucket (quarter hour or UTC day) for this time."""
    if table in QUARTER_HOURS:
        return created.replace(minute=created.minute // 15 * 15, second=0, microsecond=0)
    return created.replace(hour=0, minute=0, second=0, microsecond=0)


def tools_of(tool_names: object) -> list[str]:
    """Return the names of the tools that an answer calls, each once; [""] if it calls none.

    ``tool_names``: the column of the ledger row.
    """
    names = tool_names if isinstance(tool_names, list) else []
    return sorted({str(name)[:MAX_NAME] for name in names[:MAX_TOOLS]}) or [""]


def context_window(row: AnyRow) -> str:
    """Return ``0-200k`` or ``200k-1M`` by the tokens of the prompt; "" if they are unknown."""
    if row.input_tokens is None:
        return ""
    prompt = row.input_tokens + (row.cache_read_tokens or 0)
    prompt += (row.cache_write_5m_tokens or 0) + (row.cache_write_1h_tokens or 0)
    return "200k-1M" if prompt > LARGE_PROMPT else "0-200k"


def _added(row: AnyRow) -> dict[str, int]:
    """Return the counts of a row. Most counts of zero are left out."""
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
    """Return the cost of a row, its parts by token class, and its part from estimated tokens."""
    usage = {name: columns[f"{name}_tokens"] for name in TOKENS}
    usage |= {source: columns[source] for source in MISSING}
    cost = cost_of(usage, columns["price"]) or Cost(0, dict.fromkeys(CLASSES, 0), 0)
    parts = dict(cost.parts)
    # Parts are rounded one by one and do not include failed attempts. The difference to the total
    # is added to the largest part, so that the sum of the parts equals the cost.
    parts[max(parts, key=parts.__getitem__)] += columns["cost_nanousd"] - sum(parts.values())
    return {
        "cost_nanousd": columns["cost_nanousd"],
        "cost_estimated_nanousd": cost.estimated + estimated_attempts_cost(columns["attempts"]),
        **{f"cost_{name}_nanousd": part for name, part in parts.items()},
    }


def _histograms_of(row: AnyRow) -> Histograms:
    it = vars(row)
    return {metric: {str(bucket_of(it[metric])): 1} for metric in METRICS if it[metric] is not None}


@dataclass(slots=True)
class Bucket:
    """The counts to add to one row of a rollup table."""

    start: datetime
    dimensions: tuple[Any, ...]
    counts: dict[str, int]
    histograms: list[Histograms] = field(default_factory=list)

    def add(self, counts: Mapping[str, int], *histograms: Histograms) -> None:
        own = self.counts
        for name, n in counts.items():
            if n:
                own[name] += n
        self.histograms += histograms


Buckets = dict[tuple[Any, ...], Bucket]  # key: start and dimensions


def add(rows: Iterable[AnyRow], sign: int = 1) -> None:
    """Add closed ledger rows to all rollups; ``sign=-1`` subtracts them before they are amended.

    The rows are first grouped by all dimensions. These groups, which are fewer than the rows, are
    then grouped by the dimensions of each table.
    """
    for table, lines in grouped(rows, sign).items():
        if lines:
            add_lines(table, lines)


def grouped(rows: Iterable[AnyRow], sign: int = 1) -> dict[Table, dict[bytes, Line]]:
    """Return the rows that closed ledger rows add to each table, by primary key."""
    finest: Buckets = {}
    for row in rows:
        group = (*_dimensions_of(row), context_window(row), tuple(tools_of(row.tool_names)))
        start = start_of(UsageQuarterHour, row.created)
        _bucket(finest, COUNTS, start, group).add(_added(row), _histograms_of(row))
    for bucket in finest.values():
        bucket.histograms = [merge_histograms(bucket.histograms, sign)]
        if sign != 1:
            bucket.counts = {name: sign * n for name, n in bucket.counts.items()}
    return {table: _group_by_table(table, finest.values()) for table in ALL_TABLES}


def _bucket(
    buckets: Buckets, counts: Iterable[str], start: datetime, group: tuple[Any, ...]
) -> Bucket:
    key = (start, *group)
    bucket = buckets.get(key)
    if bucket is None:
        bucket = buckets[key] = Bucket(start, group, dict.fromkeys(counts, 0))
    return bucket


def _group_by_table(table: Table, finest: Iterable[Bucket]) -> dict[bytes, Line]:
    """Group the buckets by the dimensions of one table; return its rows by primary key.

    In ``StopReasonDay``, a request counts once in ``requests``, at its first tool, and in
    ``requests_with_tool`` at each tool. So the sum of ``requests`` is the number of rows.
    """
    buckets = Buckets()
    names = counts_of(table)
    for one in finest:
        start, group = start_of(table, one.start), SELECT_DIMENSIONS[table](one.dimensions)
        if table is UsageByToolDay:
            *others, tools = group
            for tool in tools:
                _bucket(buckets, names, start, (*others, tool)).add(one.counts)
        elif table is StopReasonDay:
            *others, tools = group
            for place, tool in enumerate(tools):
                requests = one.counts["requests"]
                counts = {"requests": requests * (place == 0), "requests_with_tool": requests}
                _bucket(buckets, names, start, (*others, tool)).add(counts)
        else:
            _bucket(buckets, names, start, group).add(one.counts, *one.histograms)
    lines: dict[bytes, Line] = {}
    for group, bucket in buckets.items():
        line: Line = {"id": key_of_group(group), "start": bucket.start, **bucket.counts}
        line.update(zip(DIMENSIONS[table], bucket.dimensions, strict=True))
        if table in WITH_LATENCY:
            line["latency"] = merge_histograms(bucket.histograms)
        lines[line["id"]] = line
    return lines


def key_of(table: type[UsageCounts], row: AnyRow) -> bytes:
    """Return the primary key of the table's row to which this ledger row is added."""
    dimensions = (
        context_window(row) if name == WINDOW else getattr(row, name) for name in DIMENSIONS[table]
    )
    return key_of_group((start_of(table, row.created), *dimensions))


def key_of_group(group: tuple[Any, ...]) -> bytes:
    """Return the primary key of the row for a start and the values of the table's dimensions."""
    values = [group[0].isoformat(), *group[1:]]
    return hashlib.sha256(_canonical(values)).digest()[:16]


def key_of_line(table: Table, line: Mapping[str, Any]) -> bytes:
    return key_of_group((line["start"], *(line[name] for name in DIMENSIONS[table])))


def merge_line(table: Table, lines: dict[bytes, Line], line: Line) -> None:
    """Add a row of the table to the one with its key in ``lines``."""
    known = lines.setdefault(line["id"], line)
    if known is not line:
        for name in counts_of(table):
            known[name] += line[name]
        if "latency" in line:
            known["latency"] = merge_histograms([known["latency"], line["latency"]])


def add_lines(table: Table, lines: Mapping[bytes, Line]) -> None:
    """Add rows to a table. SQL adds the counts; histograms are read, merged and replaced."""
    replaced = ("latency",) if table in WITH_LATENCY else ()
    if replaced:
        for key, stored in select(table, ("id", "latency"), "id", list(lines)):
            line = lines[bytes(key)]
            line["latency"] = merge_histograms([msgspec.json.decode(stored), line["latency"]])
    write(table, lines.values(), added=counts_of(table), replaced=replaced)
