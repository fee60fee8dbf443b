"""The figures of the reports: how each is computed from the sums of a group, and its field.

A report lists its metrics; the queries, the rows and the OpenAPI schema follow from the list.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any, Final, Literal

from django.db.models import Q
from rest_framework import serializers

from proxy.ledger.usage.latency_histogram import Histograms, percentile, value_of
from proxy.ledger.usage.pricing import NANOUSD_PER_TOKEN, PriceList
from proxy.money import usd
from proxy.permissions.row_permissions import Reader
from proxy.reports.core.rendering import Row
from proxy.reports.core.time_ranges import DAY, TimeRange

from .rollup_queries import (
    CLASSES,
    MISSING_OF,
    Counts,
    Key,
    Table,
    cost_of,
    known_token_counts,
    known_tokens,
    sketches,
    sum_known,
    usage,
)

WRITES: Final = ("cache_write_5m", "cache_write_1h")
CACHED: Final = ("cache_read", *WRITES)
INPUTS: Final = ("input", *CACHED)
LABELS: Final[Mapping[str, str]] = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cache_read": "cache_read_input_tokens",
    "cache_write_5m": "cache_write_5m_tokens",
    "cache_write_1h": "cache_write_1h_tokens",
    "reasoning": "reasoning_tokens",
}
"""Token class -> its column."""


@dataclass(slots=True)
class Saving:
    """The saving of one group. It can be negative, because cache writes cost more than input."""

    nanousd: Decimal = Decimal(0)
    priced: bool = False
    unpriced: bool = False


@dataclass(slots=True)
class Group:
    """What a report knows of a group in a time range: what its metrics need."""

    sums: Counts = field(default_factory=Counts)
    sketch: Histograms = field(default_factory=dict)
    saving: Saving = field(default_factory=Saving)
    cut: int = 0
    """Number of answers that ``max_tokens`` cut."""
    share: float | None = None
    is_other: bool = False


class Dollars(serializers.CharField):
    """A decimal string of US dollars; its metric is in nano-dollars."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure: its value for a group, the counts from which it is computed, and its field."""

    value: Callable[[Group], Any]
    counts: Sequence[str] = ()
    kind: type[serializers.Field[Any, Any, Any, Any]] = serializers.IntegerField
    null: bool = False
    text: str = ""
    source: Literal["counts", "latency", "savings"] = "counts"

    @property
    def field(self) -> serializers.Field[Any, Any, Any, Any]:
        return self.kind(allow_null=self.null, help_text=self.text or None)


def figures(metrics: Mapping[str, Metric], group: Group) -> Row:
    """Return the columns of a row."""
    return {
        name: usd(one.value(group)) if one.kind is Dollars else one.value(group)
        for name, one in metrics.items()
    }


def fields_of(metrics: Mapping[str, Metric]) -> dict[str, Any]:
    return {name: one.field for name, one in metrics.items()}


def counts_of(metrics: Mapping[str, Metric]) -> list[str]:
    """Return the names of the counts that the metrics need."""
    return list(dict.fromkeys(name for one in metrics.values() for name in one.counts))


def count(name: str, text: str = "") -> Metric:
    return Metric(lambda group: group.sums[name], (name,), text=text)


def tokens(*classes: str, text: str = "") -> Metric:
    """Return the metric of all known tokens of some classes; null if none has a value."""
    return Metric(
        lambda group: sum_known(known_tokens(group.sums, name) for name in classes),
        known_token_counts(classes),
        null=True,
        text=text,
    )


def rate(part: str, whole: str = "requests") -> Metric:
    return Metric(
        lambda group: ratio(group.sums[part], group.sums[whole]),
        (part, whole),
        serializers.FloatField,
        null=True,
    )


def ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


def percent_change(before: float | None, now: float | None) -> float | None:
    """Return the change in percent; None if ``before`` is 0 or a value is unknown."""
    return round(100 * (now - before) / before, 2) if before and now is not None else None


def cache_hit_rate(sums: Counts) -> float | None:
    """Return the share of prompt tokens read from a cache; None if there are none or unknown."""
    read = known_tokens(sums, "cache_read")
    whole = sum_known(known_tokens(sums, name) for name in INPUTS)
    return None if read is None or whole is None else ratio(read, whole)


COST: Final = Metric(
    lambda group: cost_of(group.sums),
    ("cost_nanousd", "unpriced"),
    Dollars,
    null=True,
    text="Decimal string of US dollars; null: no request has a price.",
)
METRICS: Final[Mapping[str, Metric]] = {
    "requests": count("requests"),
    "errors": count("errors"),
    "error_rate": rate("errors"),
    "input_tokens": tokens("input"),
    "output_tokens": tokens("output"),
    "cache_read_input_tokens": tokens("cache_read"),
    "cache_write_tokens": tokens(*WRITES),
    "reasoning_tokens": tokens("reasoning"),
    "total_tokens": tokens(*INPUTS, "output"),
    "cost_usd": COST,
    "tool_calls": count("tool_calls"),
    "cache_hit_rate": Metric(
        lambda group: cache_hit_rate(group.sums),
        known_token_counts(INPUTS),
        serializers.FloatField,
        null=True,
    ),
}
"""Metrics that a request can name."""

TEXTS: Final = {
    "input": "Neither read from nor written to a cache.",
    "output": "Reasoning included.",
    "reasoning": "A part of output_tokens.",
}


def _token_columns(name: str) -> dict[str, Metric]:
    """Return the columns of a token class; those of cache writes share the last one."""
    label, missing = LABELS[name], MISSING_OF[name]
    columns = {
        label: tokens(name, text=TEXTS.get(name, "")),
        **{f"{label}_{one}": count(f"{name}_{one}") for one in ("reported", "estimated")},
    }
    return columns if name == WRITES[0] else {**columns, f"{missing}_requests": count(missing)}


USAGE: Final[Mapping[str, Metric]] = {
    "requests": count("requests", "Finished requests with any outcome."),
    "errors": count("errors", "Failed requests, without those whose client disconnected."),
    "client_gone": count("client_gone", "The client disconnected before the end."),
    **{column: one for name in CLASSES for column, one in _token_columns(name).items()},
    "cost_usd": COST,
    "cost_estimated_usd": Metric(
        lambda group: group.sums["cost_estimated_nanousd"],
        ("cost_estimated_nanousd",),
        Dollars,
        text="The part computed from estimated tokens.",
    ),
    "unpriced_requests": count("unpriced", "Requests that used tokens but have no price."),
    "cost_is_floor": Metric(
        lambda group: group.sums["unpriced"] > 0,
        ("unpriced",),
        serializers.BooleanField,
        text="True if some requests have no price.",
    ),
    "tool_calls": count("tool_calls"),
    "web_search_requests": count("web_searches"),
}


class CountColumns(serializers.Serializer[Any]):
    """The counts of a group. Tokens = reported + estimated, null if no request has a count.

    ``*_missing_requests`` are the requests without a count.
    """

    def get_fields(self) -> dict[str, Any]:
        return {**super().get_fields(), **fields_of(USAGE)}


def usage_columns(sums: Counts) -> Row:
    return figures(USAGE, Group(sums))


FRACTIONS: Final = {"p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}


class Percentiles(serializers.Serializer[Any]):
    """The percentiles of a duration, exact to 5 %; null without measurements."""

    def get_fields(self) -> dict[str, Any]:
        times = {name: serializers.FloatField(allow_null=True) for name in FRACTIONS}
        measured = serializers.IntegerField(help_text="Requests with a measured value.")
        return {**times, "count": measured}


def rounded_percentile(buckets: Mapping[str, int], fraction: float) -> float | None:
    """Return a percentile in milliseconds; None without measurements."""
    ms = percentile(buckets, fraction)
    return None if ms is None else round(ms, 1)


def _percentiles(name: str, text: str = "") -> Metric:
    def value(group: Group) -> Row:
        buckets = group.sketch.get(name, {})
        times = {
            label: rounded_percentile(buckets, fraction) for label, fraction in FRACTIONS.items()
        }
        return {**times, "count": sum(buckets.values())}

    return Metric(value, kind=Percentiles, text=text, source="latency")


def _output_speed(group: Group) -> float | None:
    buckets = group.sketch.get("upstream_ms", {})
    ms = sum(value_of(int(bucket)) * requests for bucket, requests in buckets.items())
    output = known_tokens(group.sums, "output")
    return round(1000 * output / ms, 2) if ms and output is not None else None


LATENCIES: Final[Mapping[str, Metric]] = {
    "ttft_ms": _percentiles(
        "ttft_ms",
        "Time to the first byte: from the accepted request to the first content.",
    ),
    "total_ms": _percentiles("total_ms"),
    "upstream_ms": _percentiles("upstream_ms"),
    "gateway_overhead_ms": _percentiles(
        "overhead_ms", "Time in the gateway before the upstream attempt."
    ),
}
OUTPUT_SPEED: Final = Metric(
    _output_speed,
    known_token_counts(["output"]),
    serializers.FloatField,
    null=True,
    text="Output tokens / upstream time, time to first token included; within 5 %.",
    source="latency",
)


def _saved(group: Group) -> int | None:
    saving = group.saving
    is_cached = any(known_tokens(group.sums, name) is not None for name in CACHED)
    return round(saving.nanousd) if is_cached and (saving.priced or not saving.unpriced) else None


SAVINGS: Final[Mapping[str, Metric]] = {
    "saved_usd": Metric(
        _saved,
        known_token_counts(CACHED),
        Dollars,
        null=True,
        text="Saved by cache reads, minus the extra cost of cache writes, at daily prices; "
        "null: nothing has a price, or no request reports cached tokens.",
        source="savings",
    ),
    "saved_is_partial": Metric(
        lambda group: group.saving.unpriced,
        kind=serializers.BooleanField,
        text="True if some requests have no price.",
        source="savings",
    ),
}


def merge_counts(tables: Iterable[Counts]) -> Counts:
    total = Counts()
    for sums in tables:
        total.add(sums.counts)
    return total


def sum_by_group(table: Table) -> dict[Key, Counts]:
    """Return the sums by group, added up over all time buckets."""
    sums_by_group: dict[Key, Counts] = {}
    for (_, key), sums in table.items():
        sums_by_group.setdefault(key, Counts()).add(sums.counts)
    return sums_by_group


def read_groups(
    reader: Reader,
    time_range: TimeRange,
    groups: Sequence[str],
    condition: Q | None,
    metrics: Mapping[str, Metric],
) -> dict[Key, Group]:
    """Return what the metrics need for each group; only their tables are read."""
    table = usage(reader, time_range, groups, condition, counts_of(metrics))
    found = {key: Group(sums) for key, sums in sum_by_group(table).items()}
    sources = {one.source for one in metrics.values()}
    if "latency" in sources:
        for key, sketch in sketches(reader, time_range, groups, condition).items():
            if key in found:
                found[key].sketch = sketch
    if "savings" in sources:
        _add_savings(found, reader, time_range, groups, condition)
    return found


def _add_savings(
    found: Mapping[Key, Group],
    reader: Reader,
    time_range: TimeRange,
    groups: Sequence[str],
    condition: Q | None,
) -> None:
    """Add the savings by prompt caching: the cost of cached tokens against the price of input.

    The prices are those of the upstream, model and UTC day, as for the cost of a request.
    """
    edges = [time_range.start]
    while edges[-1] < time_range.end:
        midnight = datetime.combine(edges[-1].date() + DAY, time(), tzinfo=UTC)
        edges.append(min(midnight, time_range.end))
    days, names = TimeRange(edges, "1d", time_range.zone), [*groups, "upstream", "model_upstream"]
    prices = PriceList.load()
    table = usage(reader, days, names, condition, known_token_counts(CACHED))
    for (day, (*group, upstream, model)), sums in table.items():
        counts = {name: cached for name in CACHED if (cached := known_tokens(sums, name))}
        if not counts or tuple(group) not in found:
            continue
        saving = found[tuple(group)].saving
        price = prices.at(upstream, model, edges[day].date())
        if price is None:
            saving.unpriced = True
            continue
        saving.priced = True
        uncached = Decimal(price["input"])
        for name, cached in counts.items():
            cached_price = uncached if price[name] is None else Decimal(price[name])
            saving.nanousd += (uncached - cached_price) * NANOUSD_PER_TOKEN * cached
