"""GET /api/v1/comparison/: models side by side, with the change since the previous period."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from django.db.models import Q
from django.http import HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.ledger.usage.latency_histogram import Histograms, percentile
from proxy.money import usd
from proxy.permissions.row_permissions import Reader
from proxy.reports.core.base_views import ReportView
from proxy.reports.core.dimensions import DIMENSIONS, dimension_value
from proxy.reports.core.query_parameters import Choice, TimeRangeParameters
from proxy.reports.core.rendering import Row, column_names
from proxy.reports.core.time_ranges import TimeRange

from .latency_errors_cache import output_speed
from .rollup_queries import Counts, Key, cost_of, known_tokens, sketches, sum_known, usage
from .summary import INPUTS, NEEDS, percent_change, ratio
from .usage import RangeHeader, range_header

CUT: Final = "max_tokens"  # stop reason of an answer that the limit of output tokens cut
MILLION: Final = 1_000_000
COUNTS: Final = tuple(
    dict.fromkeys(
        (*NEEDS["error_rate"], *NEEDS["cost_usd"], *NEEDS["total_tokens"], *NEEDS["output_tokens"])
    )
)


@dataclass(slots=True)
class Compared:
    """The sums of one model (or another dimension) in a time range."""

    sums: Counts = field(default_factory=Counts)
    cut: int = 0
    """Number of answers that ``max_tokens`` cut."""
    sketch: Histograms = field(default_factory=dict)

    def figures(self) -> Row:
        """Return the figures to compare; None: unknown, or there is nothing to divide by."""
        requests, cost = self.sums["requests"], cost_of(self.sums)
        tokens = sum_known(known_tokens(self.sums, name) for name in (*INPUTS, "output"))
        priced = requests - self.sums["unpriced"]
        first_byte = self.sketch.get("ttft_ms", {})
        return {
            "requests": requests,
            "input_tokens": sum_known(known_tokens(self.sums, name) for name in INPUTS),
            "output_tokens": known_tokens(self.sums, "output"),
            "cost_nanousd": cost,
            "cost_per_request_nanousd": cost // priced if priced and cost is not None else None,
            "cost_per_million_tokens_nanousd": (
                cost * MILLION // tokens
                if tokens and cost is not None and not self.sums["unpriced"]
                else None
            ),
            "ttft_p50_ms": _rounded(percentile(first_byte, 0.5)),
            "ttft_p95_ms": _rounded(percentile(first_byte, 0.95)),
            "output_tokens_per_upstream_s": output_speed(self.sums, self.sketch),
            "errors": self.sums["errors"],
            "error_rate": ratio(self.sums["errors"], requests),
            "cut_answers": self.cut,
            "cut_rate": ratio(self.cut, requests),
        }


def _rounded(ms: float | None) -> float | None:
    return None if ms is None else round(ms, 1)


def compare(
    reader: Reader, time_range: TimeRange, by: str, condition: Q | None = None
) -> dict[Key, Compared]:
    """Return the sums of each value of the dimension ``by``, over the whole time range."""
    whole = TimeRange([time_range.start, time_range.end], "all", time_range.zone)
    groups = [by] if by == "stop_reason" else [by, "stop_reason"]
    found: dict[Key, Compared] = {}
    for (_, key), sums in usage(reader, whole, groups, condition, COUNTS).items():
        one = found.setdefault(key[:1], Compared())
        one.sums.add(sums.counts)
        if key[-1] == CUT:
            one.cut += sums["requests"]
    for key, sketch in sketches(reader, whole, [by], condition).items():
        if key in found:
            found[key].sketch = sketch
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


def deltas(now: Row, before: Row | None) -> Row:
    """Return the changes in percent; null if there was nothing before, or a figure is unknown."""
    earlier = before or {}
    return {column: percent_change(earlier.get(name), now[name]) for column, name in DELTAS.items()}


class ComparisonParameters(TimeRangeParameters):
    by = Choice(choices=sorted(DIMENSIONS), default="model")


class ComparisonRow(serializers.Serializer[Any]):
    value = serializers.JSONField(allow_null=True, help_text="The value of the dimension.")
    requests = serializers.IntegerField()
    input_tokens = serializers.IntegerField(allow_null=True, help_text="With cached tokens.")
    output_tokens = serializers.IntegerField(allow_null=True)
    cost_usd = serializers.CharField(allow_null=True)
    cost_per_request_usd = serializers.CharField(
        allow_null=True, help_text="Of the requests with a price."
    )
    cost_per_million_tokens_usd = serializers.CharField(
        allow_null=True, help_text="Of all tokens; null if a request has no price."
    )
    unpriced_requests = serializers.IntegerField()
    ttft_p50_ms = serializers.FloatField(allow_null=True)
    ttft_p95_ms = serializers.FloatField(allow_null=True)
    output_tokens_per_upstream_s = serializers.FloatField(allow_null=True)
    errors = serializers.IntegerField()  # type: ignore[assignment]  # DRF removes fields from the class
    error_rate = serializers.FloatField(allow_null=True)
    cut_answers = serializers.IntegerField(help_text="Answers with the stop reason max_tokens.")
    cut_rate = serializers.FloatField(allow_null=True)

    def get_fields(self) -> dict[str, Any]:
        changes = {name: serializers.FloatField(allow_null=True) for name in DELTAS}
        return super().get_fields() | changes


class ComparisonAnswer(RangeHeader):
    by = serializers.CharField()
    previous_from = serializers.CharField(help_text="Start of the period of the changes.")
    data = ComparisonRow(many=True)  # type: ignore[assignment]  # DRF removes fields from the class


class ComparisonView(ReportView):
    """Compare models: cost, speed, errors and cut answers, and the changes in percent.

    The changes compare with the period of the same length before the range; before whole months
    with as many whole months.
    """

    parameters = ComparisonParameters

    @extend_schema(responses=ComparisonAnswer)
    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        time_range, by, condition = query["time_range"], query["by"], query["condition"]
        earlier = period_before(time_range)
        before = compare(self.reader, earlier, by, condition)
        now = compare(self.reader, time_range, by, condition)
        ranked = sorted(now.items(), key=lambda one: (-one[1].sums["requests"], str(one[0])))
        rows = [_row(dimension_value(by, key[0]), one, before.get(key)) for key, one in ranked]
        if query["format"] != "json":
            return self.rows_response(query, "comparison", rows, column_names(ComparisonRow()))
        return Response(
            {
                **range_header(time_range),
                "by": by,
                "previous_from": time_range.local(earlier.start),
                "data": rows,
            }
        )


def _row(value: Any, one: Compared, before: Compared | None) -> Row:
    figures = one.figures()
    row = {"value": value, "unpriced_requests": one.sums["unpriced"]}
    for name, figure in figures.items():
        if name.endswith("_nanousd"):
            row[f"{name.removesuffix('_nanousd')}_usd"] = usd(figure)
        else:
            row[name] = figure
    return row | deltas(figures, before.figures() if before else None)
