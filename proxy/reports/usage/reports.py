"""The reports by one dimension, each declared by its metrics, and the summary and the time series.

A report is available as JSON with the header of its time range, and as CSV and NDJSON.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from django.db.models import Q
from django.http import HttpResponseBase
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.permissions.row_permissions import Reader
from proxy.reports.core.base_views import ReportView
from proxy.reports.core.dimensions import DIMENSIONS, dimension_value
from proxy.reports.core.query_parameters import Choice, Number, TimeRangeParameters, Values
from proxy.reports.core.rendering import Row, column_names, shape_of
from proxy.reports.core.time_ranges import BUCKETS, MAX_SUM_RANGE, MINUTES, TimeRange
from proxy.times import rfc3339

from .exchange_queries import SESSION, TOOL, by_tool, top_sessions, usage_or_requests
from .metrics import (
    COST,
    INPUTS,
    LATENCIES,
    METRICS,
    OUTPUT_SPEED,
    SAVINGS,
    USAGE,
    Dollars,
    Group,
    Metric,
    count,
    counts_of,
    fields_of,
    figures,
    merge_counts,
    percent_change,
    rate,
    ratio,
    read_groups,
    rounded_percentile,
    sum_by_group,
    tokens,
)
from .rollup_queries import Counts, Key, cost_of, refreshed_at, usage

Shape = type[serializers.Serializer[Any]]
VALUE: Final = "value"


class RangeHeader(serializers.Serializer[Any]):
    """The reported time range, cut to quarter hours, and the watermark of the ledger."""

    to = serializers.CharField()
    tz = serializers.CharField()
    data_refreshed_at = serializers.CharField(allow_null=True)

    def get_fields(self) -> dict[str, Any]:
        return {"from": serializers.CharField(), **super().get_fields()}


def range_header(time_range: TimeRange) -> Row:
    """Return the response fields that describe the time range of a report."""
    return {
        "from": time_range.local(time_range.start),
        "to": time_range.local(time_range.end),
        "tz": str(time_range.zone),
        "data_refreshed_at": rfc3339(refreshed_at()),
    }


class GroupReport(ReportView):
    """A report with a row of metrics for each value of the dimension ``by``.

    The parameters, the rows and their serializers are made from the declaration.
    """

    metrics: ClassVar[Mapping[str, Metric]]
    default: ClassVar[str | None] = None
    """The dimension without the parameter ``by``; None: one row of all requests."""
    more_dimensions: ClassVar[Sequence[str]] = ()
    order: ClassVar[Any] = staticmethod(lambda one: str(one[0]))
    """A function of a pair of key and group."""
    row: ClassVar[Shape]
    row_fields: ClassVar[Mapping[str, Any]] = {}
    header_fields: ClassVar[Mapping[str, Any]] = {}
    more_parameters: ClassVar[Mapping[str, Any]] = {}
    base_parameters: ClassVar[Shape] = TimeRangeParameters

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        name = cls.__name__.removesuffix("View").removesuffix("s")
        absent: Row = {"default": cls.default} if cls.default else {"required": False}
        by = Choice(choices=sorted([*DIMENSIONS, *cls.more_dimensions]), **absent)
        cls.parameters = shape_of(
            f"{name}Parameters", {"by": by, **cls.more_parameters}, cls.base_parameters
        )
        value = serializers.JSONField(allow_null=True, help_text="The value of the dimension.")
        cls.row = shape_of(f"{name}Row", {VALUE: value, **fields_of(cls.metrics), **cls.row_fields})
        header = {
            "by": serializers.CharField(allow_null=cls.default is None),
            **cls.header_fields,
            "data": cls.row(many=True),
        }
        cls.answer = shape_of(f"{name}Answer", header, RangeHeader)

    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        rows = self.rows(query)
        if query["format"] != "json":
            name = type(self).__name__.removesuffix("View").lower()
            return self.rows_response(query, name, rows, column_names(self.row()))
        header = {**range_header(query["time_range"]), "by": query.get("by"), **self.header(query)}
        return Response({**header, "data": rows})

    def header(self, query: Row) -> Row:
        """Return the further fields of the JSON."""
        return {}

    def groups(self, query: Row) -> Mapping[Key, Group]:
        by = [query["by"]] if query.get("by") else []
        return read_groups(self.reader, query["time_range"], by, query["condition"], self.metrics)

    def rows(self, query: Row) -> list[Row]:
        ranked = sorted(self.groups(query).items(), key=self.order)
        return [self.row_of(query, key, group) for key, group in ranked]

    def row_of(self, query: Row, key: Key, group: Group) -> Row:
        value = dimension_value(query["by"], key[0]) if key else None
        return {VALUE: value, **figures(self.metrics, group)}


class LatencyView(GroupReport):
    """Return latency percentiles by one dimension, computed from histograms."""

    metrics: ClassVar = {**LATENCIES, "output_tokens_per_upstream_s": OUTPUT_SPEED}


class CacheView(GroupReport):
    """Return the share of prompt tokens read from a cache, and the saving.

    The share is read / (uncached + read + written).
    """

    metrics: ClassVar = {
        "uncached_input_tokens": METRICS["input_tokens"],
        **{
            name: METRICS[name]
            for name in ("cache_read_input_tokens", "cache_write_tokens", "cache_hit_rate")
        },
        **SAVINGS,
    }


TYPE: Final = "type"  # alias of the dimension error_type in the report on errors


class ErrorsView(GroupReport):
    """Return failed requests by one dimension.

    Requests whose client disconnected are counted separately: they are not errors. By error type,
    only requests that failed or whose client disconnected are counted.
    """

    metrics: ClassVar = {
        "requests": count("requests"),
        "errors": count("errors"),
        "error_rate": rate("errors"),
        "client_gone": count("client_gone"),
        "client_gone_rate": rate("client_gone"),
    }
    default, more_dimensions = "error_type", (TYPE,)
    order: ClassVar = staticmethod(lambda one: (-one[1].sums["errors"], str(one[0])))

    def groups(self, query: Row) -> Mapping[Key, Group]:
        """Return the groups; by error type, without the requests that succeeded.

        The type ``None`` has the failed requests without an error type, and the requests whose
        client disconnected.
        """
        by = "error_type" if query["by"] == TYPE else query["by"]
        groups = super().groups({**query, "by": by})
        if by != "error_type":
            return groups
        found = {key: group for key, group in groups.items() if key[0]}
        for key, group in groups.items():
            failed = group.sums["errors"] + group.sums["client_gone"]
            if not key[0] and failed:
                found[None,] = Group(Counts({**group.sums.counts, "requests": failed}))
        return found


FORMER_METRICS: Final = {"cost": "cost_usd"}


class MetricName(Choice):
    """The name of a figure, which is the name of its column."""

    def to_internal_value(self, data: Any) -> Any:
        return super().to_internal_value(FORMER_METRICS.get(data, data))


WEIGHTS: Final[Mapping[str, tuple[str, ...]]] = {
    metric: tuple(
        name for name in one.counts if name != "unpriced" and not name.endswith("_missing")
    )
    for metric, one in METRICS.items()
    if not metric.endswith("rate")
}
"""Metric that groups can be ranked by -> the counts whose sum it is."""


class TopParameters(TimeRangeParameters):
    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        time_range: TimeRange = attrs["time_range"]
        from_requests = attrs["by"] in (SESSION, TOOL)
        if from_requests and time_range.end - time_range.start > MAX_SUM_RANGE:
            message = f"{attrs['by']} is for {MAX_SUM_RANGE.days} days at most"
            raise serializers.ValidationError({"by": message})
        return attrs


class TopView(GroupReport):
    """Return the groups with the highest values, and all other groups as one row.

    By tool, a request counts for each tool that it called.
    """

    metrics: ClassVar = {
        "share": Metric(
            lambda group: group.share,
            kind=serializers.FloatField,
            null=True,
            text="Share of the metric's total.",
        ),
        "is_other": Metric(
            lambda group: group.is_other,
            kind=serializers.BooleanField,
            text="True for the row that sums all other groups.",
        ),
        **USAGE,
        "cost_estimated_usd": replace(
            USAGE["cost_estimated_usd"],
            null=True,
            text="The part computed from estimated tokens; null by tool or session.",
        ),
    }
    default, more_dimensions = "key", (SESSION, TOOL)
    base_parameters = TopParameters
    more_parameters: ClassVar = {
        "metric": MetricName(choices=tuple(WEIGHTS), default="cost_usd"),
        "limit": Number(min_value=1, max_value=1000, default=20),
    }
    header_fields: ClassVar = {"metric": serializers.CharField()}

    def header(self, query: Row) -> Row:
        return {"metric": query["metric"]}

    def rows(self, query: Row) -> list[Row]:
        groups, total = self._groups_and_total(query)

        def weight(sums: Counts) -> int:
            return sum(sums[name] for name in WEIGHTS[query["metric"]])

        def row(key: Key, sums: Counts, *, is_other: bool = False) -> Row:
            share = ratio(weight(sums), weight(total))
            shown = self.row_of(query, key, Group(sums, share=share, is_other=is_other))
            if query["by"] in (SESSION, TOOL):
                # single requests do not have the estimated part of the cost
                shown["cost_estimated_usd"] = None
            return shown

        ranked = sorted(groups.items(), key=lambda one: (-weight(one[1]), str(one[0])))
        first = ranked[: query["limit"]]
        named = merge_counts(sums for _, sums in first)
        other = Counts({name: one - named[name] for name, one in total.counts.items()})
        rows = [row(key, sums) for key, sums in first]
        return [*rows, row((), other, is_other=True)] if other["requests"] else rows

    def _groups_and_total(self, query: Row) -> tuple[Mapping[Key, Counts], Counts]:
        """Return the sums of all groups (by session: of the highest ones), and of all together."""
        by, time_range, condition = query["by"], query["time_range"], query["condition"]
        if by == SESSION:
            weight = WEIGHTS[query["metric"]]
            highest = top_sessions(self.reader, time_range, condition, weight, query["limit"])
            return highest, merge_counts(usage(self.reader, time_range, [], condition).values())
        if by == TOOL:
            groups = by_tool(self.reader, time_range, condition)
        else:
            groups = sum_by_group(usage(self.reader, time_range, [by], condition))
        return groups, merge_counts(groups.values())


CUT: Final = "max_tokens"  # stop reason of an answer that the limit of output tokens cut
MILLION: Final = 1_000_000


def _cost_per_request(group: Group) -> int | None:
    cost, priced = cost_of(group.sums), group.sums["requests"] - group.sums["unpriced"]
    return cost // priced if priced and cost is not None else None


def _cost_per_million_tokens(group: Group) -> int | None:
    cost, used = cost_of(group.sums), METRICS["total_tokens"].value(group)
    if not used or cost is None or group.sums["unpriced"]:
        return None
    return int(cost * MILLION // used)


def _first_byte(fraction: float) -> Metric:
    return Metric(
        lambda group: rounded_percentile(group.sketch.get("ttft_ms", {}), fraction),
        kind=serializers.FloatField,
        null=True,
        source="latency",
    )


COMPARED: Final[Mapping[str, Metric]] = {
    "requests": count("requests"),
    "input_tokens": tokens(*INPUTS, text="With cached tokens."),
    "output_tokens": tokens("output"),
    "cost_usd": COST,
    "cost_per_request_usd": Metric(
        _cost_per_request, COST.counts, Dollars, null=True, text="Of the requests with a price."
    ),
    "cost_per_million_tokens_usd": Metric(
        _cost_per_million_tokens,
        (*COST.counts, *METRICS["total_tokens"].counts),
        Dollars,
        null=True,
        text="Of all tokens; null if a request has no price.",
    ),
    "unpriced_requests": count("unpriced"),
    "ttft_p50_ms": _first_byte(0.5),
    "ttft_p95_ms": _first_byte(0.95),
    "output_tokens_per_upstream_s": OUTPUT_SPEED,
    "errors": count("errors"),
    "error_rate": rate("errors"),
    "cut_answers": Metric(lambda group: group.cut, text="Answers with the stop reason max_tokens."),
    "cut_rate": Metric(
        lambda group: ratio(group.cut, group.sums["requests"]),
        kind=serializers.FloatField,
        null=True,
    ),
}
DELTAS: Final[Mapping[str, str]] = {
    "requests_delta_pct": "requests",
    "cost_delta_pct": "cost_nanousd",
    "cost_per_request_delta_pct": "cost_per_request_nanousd",
    "cost_per_million_tokens_delta_pct": "cost_per_million_tokens_nanousd",
    "ttft_p50_delta_pct": "ttft_p50_ms",
    "output_tokens_per_upstream_s_delta_pct": "output_tokens_per_upstream_s",
    "error_rate_delta_pct": "error_rate",
    "cut_rate_delta_pct": "cut_rate",
}
"""Column with the change in percent -> the figure that it compares."""


class Compared(Group):
    """One model (or another dimension) in a time range."""

    def figures(self) -> Row:
        """Return the figures to compare; None: unknown, or there is nothing to divide by."""
        return {name.replace("_usd", "_nanousd"): one.value(self) for name, one in COMPARED.items()}


def compare(
    reader: Reader, time_range: TimeRange, by: str, condition: Q | None = None
) -> dict[Key, Compared]:
    """Return what is known of each value of the dimension ``by``, over the whole time range."""
    whole, condition = time_range.as_one_bucket, condition or Q()
    found = {
        key: Compared(group.sums, group.sketch)
        for key, group in read_groups(reader, whole, [by], condition, COMPARED).items()
    }
    cut = usage(reader, whole, [by], condition & Q(stop_reason=CUT), ["requests"])
    for (_, key), sums in cut.items():
        if key in found:  # a request may have been recorded between the two queries
            found[key].cut = sums["requests"]
    return found


def period_before(time_range: TimeRange) -> TimeRange:
    """Return the period of the same length before a range; before whole months, whole months."""
    start, end = (edge.astimezone(time_range.zone) for edge in (time_range.start, time_range.end))
    before = time_range.start - (time_range.end - time_range.start)
    if start.day == end.day == 1 and start.time() == end.time() and start.hour == 0:
        months = 12 * (end.year - start.year) + end.month - start.month
        year, month = divmod(12 * start.year + start.month - 1 - months, 12)
        before = start.replace(year=year, month=month + 1).astimezone(time_range.start.tzinfo)
    return TimeRange([before, time_range.start], "all", time_range.zone)


def deltas(now: Row, before: Row | None) -> Row:
    """Return the changes in percent; null if there was nothing before, or a figure is unknown."""
    earlier = before or {}
    return {column: percent_change(earlier.get(name), now[name]) for column, name in DELTAS.items()}


class ComparisonView(GroupReport):
    """Compare models: cost, speed, errors and cut answers, and the changes in percent.

    The changes compare with the period of the same length before the range; before whole months
    with as many whole months.
    """

    metrics, default = COMPARED, "model"
    row_fields: ClassVar = {name: serializers.FloatField(allow_null=True) for name in DELTAS}
    header_fields: ClassVar = {
        "previous_from": serializers.CharField(help_text="Start of the period of the changes.")
    }
    order: ClassVar = staticmethod(lambda one: (-one[1].sums["requests"], str(one[0])))

    def header(self, query: Row) -> Row:
        time_range = query["time_range"]
        return {"previous_from": time_range.local(period_before(time_range).start)}

    def groups(self, query: Row) -> Mapping[Key, Compared]:
        by, condition = query["by"], query["condition"]
        self.before = compare(self.reader, period_before(query["time_range"]), by, condition)
        return compare(self.reader, query["time_range"], by, condition)

    def row_of(self, query: Row, key: Key, group: Any) -> Row:
        before = self.before.get(key)
        changes = deltas(group.figures(), before.figures() if before else None)
        return super().row_of(query, key, group) | changes


class SummaryAnswer(RangeHeader):
    def get_fields(self) -> dict[str, Any]:
        change = "Change against the previous period of equal length; null if either is unknown."
        return {
            **super().get_fields(),
            **fields_of(TOTALS),
            "active_keys": serializers.IntegerField(),
            "cost_delta_pct": serializers.FloatField(allow_null=True, help_text=change),
            "requests_delta_pct": serializers.FloatField(allow_null=True),
            **fields_of(LATENCIES),
        }


TOTALS: Final = {
    **USAGE,
    "error_rate": METRICS["error_rate"],
    "cache_hit_rate": METRICS["cache_hit_rate"],
}


class SummaryView(ReportView):
    """Return the totals of a time range and the change against the previous one."""

    parameters = TimeRangeParameters
    answer = SummaryAnswer

    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        time_range, condition = query["time_range"], query["condition"]
        earlier = TimeRange(
            [time_range.start - (time_range.end - time_range.start), time_range.start],
            "all",
            time_range.zone,
        )
        now, before = (
            read_groups(self.reader, period, [], condition, metrics).get((), Group())
            for period, metrics in (
                (time_range, {**TOTALS, **LATENCIES}),
                (earlier, {"cost_usd": COST}),
            )
        )
        by_key = usage(self.reader, time_range, ["key_id"], condition, ["requests"])
        row = {
            **range_header(time_range),
            **figures({**TOTALS, **LATENCIES}, now),
            "active_keys": len({key for (_, key) in by_key if key[0] is not None}),
            "cost_delta_pct": percent_change(cost_of(before.sums), cost_of(now.sums)),
            "requests_delta_pct": percent_change(before.sums["requests"], now.sums["requests"]),
        }
        if query["format"] != "json":
            return self.rows_response(query, "summary", [row], column_names(SummaryAnswer()))
        return Response(row)


class TimeseriesParameters(TimeRangeParameters):
    metric = Values(child=MetricName(choices=list(METRICS)))
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
    answer = TimeseriesAnswer

    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        time_range, condition = query["time_range"], query["condition"]
        groups = [query["by"]] if query.get("by") else []
        metrics = {name: METRICS[name] for name in query.get("metric") or ["requests"]}
        table = usage_or_requests(self.reader, time_range, groups, condition, counts_of(metrics))
        starts = [time_range.local(edge) for edge in time_range.edges[:-1]]
        keys = sorted({key for _, key in table}, key=str) or ([()] if not groups else [])
        empty = Counts()
        rows = [
            [figures(metrics, Group(table.get((n, key), empty))) for n in range(len(starts))]
            for key in keys
        ]
        series = [
            {
                "metric": name,
                "by": dimension_value(query["by"], key[0]) if key else None,
                "points": [row[name] for row in points],
            }
            for name in metrics
            for key, points in zip(keys, rows, strict=True)
        ]
        if query["format"] != "json":
            cells = (
                {"starting_at": at, "metric": one["metric"], "by": one["by"], "value": value}
                for one in series
                for at, value in zip(starts, one["points"], strict=True)
            )
            columns = ("starting_at", "metric", "by", "value")
            return self.rows_response(query, "timeseries", cells, columns)
        header = {**range_header(time_range), "bucket": query["bucket"], "starting_at": starts}
        return Response({**header, "series": series})
