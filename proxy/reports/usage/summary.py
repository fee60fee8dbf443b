"""The reports "summary", "timeseries" and "top", and the metrics that several reports use."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from django.http import HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.ledger.usage.latency_histogram import percentile
from proxy.money import usd
from proxy.reports.core.base_views import ReportView
from proxy.reports.core.dimensions import DIMENSIONS, dimension_value
from proxy.reports.core.query_parameters import Choice, Number, TimeRangeParameters, Values
from proxy.reports.core.rendering import Row
from proxy.reports.core.time_ranges import BUCKETS, MAX_SUM_RANGE, MINUTES, TimeRange

from .exchange_queries import SESSION, TOOL, by_tool, minute_table, top_sessions
from .rollup_queries import (
    Counts,
    Key,
    Table,
    cost_of,
    known_token_counts,
    known_tokens,
    sketches,
    sum_known,
    usage,
    usage_columns,
)
from .usage import CountColumns, RangeHeader, range_header

FRACTIONS: Final = {"p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
TIMES: Final = {
    "ttft_ms": "ttft_ms",
    "total_ms": "total_ms",
    "upstream_ms": "upstream_ms",
    "overhead_ms": "gateway_overhead_ms",
}
WRITES: Final = ("cache_write_5m", "cache_write_1h")
INPUTS: Final = ("input", "cache_read", *WRITES)


def cache_hit_rate(sums: Counts) -> float | None:
    """Return the share of prompt tokens read from a cache; None if there are none or unknown."""
    read, whole = (
        known_tokens(sums, "cache_read"),
        sum_known(known_tokens(sums, name) for name in INPUTS),
    )
    return None if read is None or whole is None else ratio(read, whole)


def ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


METRICS: Final[Mapping[str, Callable[[Counts], Any]]] = {
    "requests": lambda s: s["requests"],
    "errors": lambda s: s["errors"],
    "error_rate": lambda s: ratio(s["errors"], s["requests"]),
    "input_tokens": lambda s: known_tokens(s, "input"),
    "output_tokens": lambda s: known_tokens(s, "output"),
    "cache_read_input_tokens": lambda s: known_tokens(s, "cache_read"),
    "cache_write_tokens": lambda s: sum_known(known_tokens(s, name) for name in WRITES),
    "reasoning_tokens": lambda s: known_tokens(s, "reasoning"),
    "total_tokens": lambda s: sum_known(known_tokens(s, name) for name in (*INPUTS, "output")),
    "cost_usd": lambda s: usd(cost_of(s)),
    "tool_calls": lambda s: s["tool_calls"],
    "cache_hit_rate": cache_hit_rate,
}
TOKENS: Final = {
    "input_tokens": ("input",),
    "output_tokens": ("output",),
    "cache_read_input_tokens": ("cache_read",),
    "cache_write_tokens": WRITES,
    "reasoning_tokens": ("reasoning",),
    "total_tokens": (*INPUTS, "output"),
    "cache_hit_rate": INPUTS,
}
NEEDS: Final[Mapping[str, tuple[str, ...]]] = {  # metric -> the counts from which it is computed
    "requests": ("requests",),
    "errors": ("errors",),
    "error_rate": ("errors", "requests"),
    "cost_usd": ("cost_nanousd", "unpriced"),
    "tool_calls": ("tool_calls",),
    **{metric: tuple(known_token_counts(names)) for metric, names in TOKENS.items()},
}
FORMER_METRICS: Final = {"cost": "cost_usd"}
WEIGHTS: Final[Mapping[str, tuple[str, ...]]] = {
    metric: tuple(name for name in counts if name != "unpriced" and not name.endswith("_missing"))
    for metric, counts in NEEDS.items()
    if not metric.endswith("rate")
}
"""Metric that groups can be ranked by -> the counts whose sum it is."""


def merge_counts(tables: Sequence[Counts]) -> Counts:
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


def percentiles(sketch: Mapping[str, Mapping[str, int]]) -> Row:
    """Return the percentiles of each duration, exact to 5 %; null without measurements."""
    row: Row = {}
    for metric, label in TIMES.items():
        buckets = sketch.get(metric, {})
        row[label] = {name: _ms(percentile(buckets, part)) for name, part in FRACTIONS.items()}
        row[label]["count"] = sum(buckets.values())
    return row


def _ms(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


class Percentiles(serializers.Serializer[Any]):
    count = serializers.IntegerField(help_text="Requests with a measured value.")

    def get_fields(self) -> dict[str, Any]:
        times = {name: serializers.FloatField(allow_null=True) for name in FRACTIONS}
        return super().get_fields() | times


class Latencies(serializers.Serializer[Any]):
    ttft_ms = Percentiles(
        help_text="Time to the first byte: from the accepted request to the first content."
    )
    total_ms = Percentiles()
    upstream_ms = Percentiles()
    gateway_overhead_ms = Percentiles(help_text="Time in the gateway before the upstream attempt.")


class SummaryAnswer(RangeHeader, CountColumns, Latencies):
    error_rate = serializers.FloatField(allow_null=True)
    cache_hit_rate = serializers.FloatField(allow_null=True)
    active_keys = serializers.IntegerField()
    cost_delta_pct = serializers.FloatField(
        allow_null=True,
        help_text="Change against the previous period of equal length; null if either is unknown.",
    )
    requests_delta_pct = serializers.FloatField(allow_null=True)


class SummaryView(ReportView):
    """Return the totals of a time range and the change against the previous one."""

    parameters = TimeRangeParameters

    @extend_schema(responses=SummaryAnswer)
    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        time_range, condition = query["time_range"], query["condition"]
        by_key = usage(self.reader, time_range, ["key_id"], condition, ["requests"])
        now = merge_counts([*usage(self.reader, time_range, [], condition).values()])
        before = self._before(time_range, condition)
        times = sketches(self.reader, time_range, [], condition).get((), {})
        row = {
            **range_header(time_range),
            **usage_columns(now),
            "error_rate": ratio(now["errors"], now["requests"]),
            "cache_hit_rate": cache_hit_rate(now),
            "active_keys": len({key for (_, key) in by_key if key[0] is not None}),
            "cost_delta_pct": percent_change(cost_of(before), cost_of(now)),
            "requests_delta_pct": percent_change(before["requests"], now["requests"]),
            **percentiles(times),
        }
        if query["format"] != "json":
            return self.rows_response(query, "summary", [row])
        return Response(row)

    def _before(self, time_range: TimeRange, condition: Any) -> Counts:
        earlier = TimeRange(
            [time_range.start - (time_range.end - time_range.start), time_range.start],
            "all",
            time_range.zone,
        )
        counts = ("requests", "cost_nanousd", "unpriced")
        return merge_counts([*usage(self.reader, earlier, [], condition, counts).values()])


def percent_change(before: float | None, now: float | None) -> float | None:
    """Return the change in percent; None if ``before`` is 0 or a value is unknown."""
    return round(100 * (now - before) / before, 2) if before and now is not None else None


class Metric(Choice):
    """The name of a figure, which is the name of its column."""

    def to_internal_value(self, data: Any) -> Any:
        return super().to_internal_value(FORMER_METRICS.get(data, data))


class TimeseriesParameters(TimeRangeParameters):
    metric = Values(child=Metric(choices=list(METRICS)))
    bucket = Choice(choices=(MINUTES, *BUCKETS), default="1d")
    by = Choice(choices=sorted(DIMENSIONS), required=False)

    def validate_metric(self, value: list[str]) -> list[str]:
        if len(value) > 4:
            raise serializers.ValidationError("at most 4 at once")
        return list(dict.fromkeys(value))


class Series(serializers.Serializer[Any]):
    metric = serializers.CharField()
    by = serializers.JSONField(allow_null=True, help_text="The value of the dimension.")
    points = serializers.ListField(child=serializers.JSONField(allow_null=True))


class TimeseriesAnswer(RangeHeader):
    bucket = serializers.CharField()
    starting_at = serializers.ListField(child=serializers.CharField())
    series = Series(many=True)


class TimeseriesView(ReportView):
    """Return up to four metrics by bucket and one dimension. Empty buckets are included."""

    parameters = TimeseriesParameters

    @extend_schema(responses=TimeseriesAnswer)
    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        time_range, groups = query["time_range"], [query["by"]] if query.get("by") else []
        metrics = query.get("metric") or ["requests"]
        needed = [name for metric in metrics for name in NEEDS[metric]]
        if time_range.bucket == MINUTES:
            table = minute_table(self.reader, time_range, groups, query["condition"])
        else:
            table = usage(self.reader, time_range, groups, query["condition"], needed)
        starts = [time_range.local(edge) for edge in time_range.edges[:-1]]
        keys = sorted({key for _, key in table}, key=str) or ([()] if not groups else [])
        empty = Counts()
        series = [
            {
                "metric": metric,
                "by": dimension_value(query["by"], key[0]) if key else None,
                "points": [METRICS[metric](table.get((n, key), empty)) for n in range(len(starts))],
            }
            for metric in metrics
            for key in keys
        ]
        if query["format"] != "json":
            rows = (
                {"starting_at": at, "metric": one["metric"], "by": one["by"], "value": value}
                for one in series
                for at, value in zip(starts, one["points"], strict=True)
            )
            return self.rows_response(
                query, "timeseries", rows, ("starting_at", "metric", "by", "value")
            )
        header = range_header(time_range)
        return Response(
            {**header, "bucket": query["bucket"], "starting_at": starts, "series": series}
        )


class TopParameters(TimeRangeParameters):
    by = Choice(choices=sorted([*DIMENSIONS, SESSION, TOOL]), default="key")
    metric = Metric(choices=tuple(WEIGHTS), default="cost_usd")
    limit = Number(min_value=1, max_value=1000, default=20)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        time_range: TimeRange = attrs["time_range"]
        from_requests = attrs["by"] in (SESSION, TOOL)
        if from_requests and time_range.end - time_range.start > MAX_SUM_RANGE:
            message = f"{attrs['by']} is for {MAX_SUM_RANGE.days} days at most"
            raise serializers.ValidationError({"by": message})
        return attrs


class TopRow(CountColumns):
    cost_estimated_usd = serializers.CharField(
        allow_null=True,
        help_text="The part computed from estimated tokens; null by tool or session.",
    )
    value = serializers.JSONField(allow_null=True, help_text="The value of the dimension.")
    share = serializers.FloatField(allow_null=True, help_text="Share of the metric's total.")
    is_other = serializers.BooleanField(help_text="True for the row that sums all other groups.")


class TopAnswer(RangeHeader):
    by = serializers.CharField()
    metric = serializers.CharField()
    data = TopRow(many=True)  # type: ignore[assignment]  # DRF removes fields from the class


class TopView(ReportView):
    """Return the groups with the highest values, and all other groups as one row.

    By tool, a request counts for each tool that it called.
    """

    parameters = TopParameters

    @extend_schema(responses=TopAnswer)
    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        by = query["by"]
        groups, total = self._groups_and_total(query)

        def weight(sums: Counts) -> int:
            return sum(sums[name] for name in WEIGHTS[query["metric"]])

        ranked = sorted(groups.items(), key=lambda one: (-weight(one[1]), str(one[0])))
        first = ranked[: query["limit"]]
        rows = [
            _top_row(dimension_value(by, key[0]), sums, ratio(weight(sums), weight(total)))
            for key, sums in first
        ]
        other = _difference(total, merge_counts([sums for _, sums in first]))
        if other["requests"]:
            rows.append(_top_row(None, other, ratio(weight(other), weight(total)), is_other=True))
        if by in (SESSION, TOOL):  # single requests do not have the estimated part of the cost
            rows = [{**row, "cost_estimated_usd": None} for row in rows]
        if query["format"] != "json":
            return self.rows_response(query, "top", rows)
        header = range_header(query["time_range"])
        return Response({**header, "by": by, "metric": query["metric"], "data": rows})

    def _groups_and_total(self, query: Mapping[str, Any]) -> tuple[dict[Key, Counts], Counts]:
        """Return the sums of all groups (by session: of the highest ones), and of all together."""
        by, time_range, condition = query["by"], query["time_range"], query["condition"]
        if by == SESSION:
            weight = WEIGHTS[query["metric"]]
            highest = top_sessions(self.reader, time_range, condition, weight, query["limit"])
            whole = TimeRange([time_range.start, time_range.end], "all", time_range.zone)
            total = usage(self.reader, whole, [], condition)
            return highest, merge_counts(list(total.values()))
        if by == TOOL:
            groups = by_tool(self.reader, time_range, condition)
        else:
            groups = sum_by_group(usage(self.reader, time_range, [by], condition))
        return groups, merge_counts(list(groups.values()))


def _difference(whole: Counts, part: Counts) -> Counts:
    return Counts({name: count - part[name] for name, count in whole.counts.items()})


def _top_row(value: Any, sums: Counts, share: float | None, *, is_other: bool = False) -> Row:
    return {"value": value, "share": share, "is_other": is_other, **usage_columns(sums)}
