"""The reports made of sums: summary, timeseries, top, latency, errors, cache."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from django.http import HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.record.latency import percentile

from .answers import Row
from .base import ReportView
from .parameters import Choice, Number, SpanParameters, Values
from .raw import by_session, by_tool, minutes
from .spans import BUCKETS, MINUTES, Span
from .sums import (
    DIMENSIONS,
    Key,
    Sums,
    Table,
    columns_of,
    cost_of,
    known,
    known_by,
    sketches,
    total,
    usage,
    usd,
)
from .usage import CountColumns, SpanHead, head_of

FRACTIONS: Final = {"p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
TIMES: Final = {
    "ttft_ms": "ttft_ms",
    "total_ms": "total_ms",
    "upstream_ms": "upstream_ms",
    "overhead_ms": "gateway_overhead_ms",
}
WRITES: Final = ("cache_write_5m", "cache_write_1h")
INPUTS: Final = ("input", "cache_read", *WRITES)


def cache_hit_rate(sums: Sums) -> float | None:
    """Tokens read from a cache as a part of all prompt tokens; None without any, or unknown."""
    read, whole = known(sums, "cache_read"), total(known(sums, name) for name in INPUTS)
    return None if read is None or whole is None else ratio(read, whole)


def ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


METRICS: Final[Mapping[str, Callable[[Sums], Any]]] = {
    "requests": lambda s: s["requests"],
    "errors": lambda s: s["errors"],
    "error_rate": lambda s: ratio(s["errors"], s["requests"]),
    "input_tokens": lambda s: known(s, "input"),
    "output_tokens": lambda s: known(s, "output"),
    "cache_read_input_tokens": lambda s: known(s, "cache_read"),
    "cache_write_tokens": lambda s: total(known(s, name) for name in WRITES),
    "reasoning_tokens": lambda s: known(s, "reasoning"),
    "total_tokens": lambda s: total(known(s, name) for name in (*INPUTS, "output")),
    "cost": lambda s: usd(cost_of(s)),
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
NEEDS: Final[Mapping[str, tuple[str, ...]]] = {  # the counts that a metric is made of
    "requests": ("requests",),
    "errors": ("errors",),
    "error_rate": ("errors", "requests"),
    "cost": ("cost_nanousd", "unpriced"),
    "tool_calls": ("tool_calls",),
    **{metric: tuple(known_by(names)) for metric, names in TOKENS.items()},
}
RANKED: Final = tuple(name for name in METRICS if not name.endswith("rate"))


def merge(tables: Sequence[Sums]) -> Sums:
    total = Sums()
    for sums in tables:
        total.add(sums.counts)
    return total


def by_group(table: Table) -> dict[Key, Sums]:
    """The table without its buckets."""
    found: dict[Key, Sums] = {}
    for (_, key), sums in table.items():
        found.setdefault(key, Sums()).add(sums.counts)
    return found


def percentiles(sketch: Mapping[str, Mapping[str, int]]) -> Row:
    """Percentiles of each duration, off by 5 % at most; null where nothing was measured."""
    row: Row = {}
    for metric, label in TIMES.items():
        buckets = sketch.get(metric, {})
        row[label] = {name: _ms(percentile(buckets, part)) for name, part in FRACTIONS.items()}
        row[label]["count"] = sum(buckets.values())
    return row


def _ms(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


class Percentiles(serializers.Serializer[Any]):
    count = serializers.IntegerField(help_text="Requests that have this time.")

    def get_fields(self) -> dict[str, Any]:
        times = {name: serializers.FloatField(allow_null=True) for name in FRACTIONS}
        return super().get_fields() | times


class Latencies(serializers.Serializer[Any]):
    ttft_ms = Percentiles(help_text="Acceptance to the first content.")
    total_ms = Percentiles()
    upstream_ms = Percentiles()
    gateway_overhead_ms = Percentiles(help_text="What the gateway added before the dial.")


class SummaryAnswer(SpanHead, CountColumns, Latencies):
    error_rate = serializers.FloatField(allow_null=True)
    cache_hit_rate = serializers.FloatField(allow_null=True)
    active_keys = serializers.IntegerField()
    cost_delta_pct = serializers.FloatField(
        allow_null=True, help_text="Against the equal stretch before; null when either is unknown."
    )
    requests_delta_pct = serializers.FloatField(allow_null=True)


class SummaryView(ReportView):
    """Totals of a stretch of time, and how they differ from the equal stretch before it."""

    parameters = SpanParameters

    @extend_schema(parameters=[SpanParameters], responses=SummaryAnswer)
    def get(self, request: Request) -> HttpResponseBase:
        asked = self.asked()
        span, condition = asked["span"], asked["condition"]
        by_key = usage(self.reader, span, ["key_id"], condition, ["requests"])
        now = merge([*usage(self.reader, span, [], condition).values()])
        before = self._before(span, condition)
        times = sketches(self.reader, span, [], condition).get((), {})
        row = {
            **head_of(span),
            **columns_of(now),
            "error_rate": ratio(now["errors"], now["requests"]),
            "cache_hit_rate": cache_hit_rate(now),
            "active_keys": len({key for (_, key) in by_key if key[0] is not None}),
            "cost_delta_pct": change(cost_of(before), cost_of(now)),
            "requests_delta_pct": change(before["requests"], now["requests"]),
            **percentiles(times),
        }
        if asked["format"] != "json":
            return self.rows_answer(asked, "summary", [row])
        return Response(row)

    def _before(self, span: Span, condition: Any) -> Sums:
        earlier = Span([span.start - (span.end - span.start), span.start], "all", span.zone)
        shown = ("requests", "cost_nanousd", "unpriced")
        return merge([*usage(self.reader, earlier, [], condition, shown).values()])


def change(before: int | None, now: int | None) -> float | None:
    """Per cent; None where there is nothing to compare with."""
    return round(100 * (now - before) / before, 2) if before and now is not None else None


class TimeseriesParameters(SpanParameters):
    metric = Values(child=Choice(choices=list(METRICS)))
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


class TimeseriesAnswer(SpanHead):
    bucket = serializers.CharField()
    starting_at = serializers.ListField(child=serializers.CharField())
    series = Series(many=True)


class TimeseriesView(ReportView):
    """Up to four metrics by bucket and one dimension; empty buckets are there."""

    parameters = TimeseriesParameters

    @extend_schema(parameters=[TimeseriesParameters], responses=TimeseriesAnswer)
    def get(self, request: Request) -> HttpResponseBase:
        asked = self.asked()
        span, groups = asked["span"], [asked["by"]] if asked.get("by") else []
        metrics = asked.get("metric") or ["requests"]
        needed = [name for metric in metrics for name in NEEDS[metric]]
        if span.bucket == MINUTES:
            table = minutes(self.reader, span, groups, asked["condition"])
        else:
            table = usage(self.reader, span, groups, asked["condition"], needed)
        starts = [span.local(edge) for edge in span.edges[:-1]]
        keys = sorted({key for _, key in table}, key=str) or ([()] if not groups else [])
        empty = Sums()
        series = [
            {
                "metric": metric,
                "by": key[0] if key else None,
                "points": [METRICS[metric](table.get((n, key), empty)) for n in range(len(starts))],
            }
            for metric in metrics
            for key in keys
        ]
        if asked["format"] != "json":
            rows = (
                {"starting_at": at, "metric": one["metric"], "by": one["by"], "value": value}
                for one in series
                for at, value in zip(starts, one["points"], strict=True)
            )
            return self.rows_answer(
                asked, "timeseries", rows, ("starting_at", "metric", "by", "value")
            )
        head = head_of(span)
        return Response(
            {**head, "bucket": asked["bucket"], "starting_at": starts, "series": series}
        )


TOOL: Final = "tool"
SESSION: Final = "session"
MOST_DAYS_OF_ROWS: Final = 31
"""No rollup knows tools, and one of days knows sessions: requests of the span are looked at."""


class TopParameters(SpanParameters):
    by = Choice(choices=sorted([*DIMENSIONS, SESSION, TOOL]), default="key")
    metric = Choice(choices=RANKED, default="cost")
    limit = Number(min_value=1, max_value=1000, default=20)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        span: Span = attrs["span"]
        of_rows = attrs["by"] in (SESSION, TOOL)
        if of_rows and span.end - span.start > timedelta(days=MOST_DAYS_OF_ROWS):
            told = f"{attrs['by']} is for {MOST_DAYS_OF_ROWS} days at most"
            raise serializers.ValidationError({"by": told})
        return attrs


class TopRow(CountColumns):
    cost_estimated_usd = serializers.CharField(
        allow_null=True,
        help_text="The part that rests on estimated tokens; null by tool or session.",
    )
    value = serializers.JSONField(allow_null=True, help_text="Of the dimension.")
    share = serializers.FloatField(allow_null=True, help_text="Of the metric's sum.")
    is_other = serializers.BooleanField(help_text="All the rest in one row.")


class TopAnswer(SpanHead):
    by = serializers.CharField()
    metric = serializers.CharField()
    data = TopRow(many=True)  # type: ignore[assignment]  # DRF takes fields off the class


class TopView(ReportView):
    """Who or what weighs most, with everybody else as one row.

    By tool, a request counts for each tool that it called.
    """

    parameters = TopParameters

    @extend_schema(parameters=[TopParameters], responses=TopAnswer)
    def get(self, request: Request) -> HttpResponseBase:
        asked = self.asked()
        by, span, condition = asked["by"], asked["span"], asked["condition"]
        of_rows = {SESSION: by_session, TOOL: by_tool}.get(by)
        if of_rows is not None:
            groups = of_rows(self.reader, span, condition)
        else:
            groups = by_group(usage(self.reader, span, [by], condition))
        weigh = _weights(asked["metric"])
        ranked = sorted(groups.items(), key=lambda one: (-weigh(one[1]), str(one[0])))
        whole = sum(weigh(sums) for sums in groups.values())
        first, rest = ranked[: asked["limit"]], ranked[asked["limit"] :]
        rows = [_top_row(key[0], sums, ratio(weigh(sums), whole)) for key, sums in first]
        if rest:
            other = merge([sums for _, sums in rest])
            rows.append(_top_row(None, other, ratio(weigh(other), whole), is_other=True))
        if of_rows is not None:  # the requests do not say it of themselves
            rows = [{**row, "cost_estimated_usd": None} for row in rows]
        if asked["format"] != "json":
            return self.rows_answer(asked, "top", rows)
        head = head_of(asked["span"])
        return Response({**head, "by": by, "metric": asked["metric"], "data": rows})


def _weights(metric: str) -> Callable[[Sums], int]:
    if metric == "cost":
        return lambda sums: sums["cost_nanousd"]
    return lambda sums: METRICS[metric](sums) or 0


def _top_row(value: Any, sums: Sums, share: float | None, *, is_other: bool = False) -> Row:
    return {"value": value, "share": share, "is_other": is_other, **columns_of(sums)}
