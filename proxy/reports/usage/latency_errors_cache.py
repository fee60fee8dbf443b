"""The reports on latency, errors and prompt caching, each grouped by at most one dimension."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.http import HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.ledger.usage.latency_histogram import Histograms, value_of
from proxy.reports.core.base_views import ReportView
from proxy.reports.core.dimensions import DIMENSIONS, dimension_value
from proxy.reports.core.query_parameters import Choice, TimeRangeParameters
from proxy.reports.core.rendering import Row, column_names

from .cache_savings import Saving, savings
from .rollup_queries import Counts, Key, known_tokens, sketches, usage
from .summary import METRICS, NEEDS, Latencies, cache_hit_rate, percentiles, ratio, sum_by_group
from .usage import RangeHeader, range_header


class ByParameters(TimeRangeParameters):
    """Parameters of a report that is grouped by one dimension or by none."""

    by = Choice(choices=sorted(DIMENSIONS), required=False)


class LatencyRow(Latencies):
    value = serializers.JSONField(allow_null=True)
    output_tokens_per_upstream_s = serializers.FloatField(
        allow_null=True,
        help_text="Output tokens / upstream time, time to first token included; within 5 %.",
    )


class LatencyAnswer(RangeHeader):
    by = serializers.CharField(allow_null=True)
    data = LatencyRow(many=True)  # type: ignore[assignment]  # DRF removes fields from the class


class LatencyView(ReportView):
    """Return latency percentiles by one dimension, computed from histograms."""

    parameters = ByParameters

    @extend_schema(responses=LatencyAnswer)
    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        groups = [query["by"]] if query.get("by") else []
        time_range, condition = query["time_range"], query["condition"]
        found = sketches(self.reader, time_range, groups, condition)
        sums_by_key = sum_by_group(
            usage(self.reader, time_range, groups, condition, NEEDS["output_tokens"])
        )
        rows = [
            {
                "value": dimension_value(query["by"], key[0]) if key else None,
                **percentiles(sketch),
                "output_tokens_per_upstream_s": output_speed(
                    sums_by_key.get(key, Counts()), sketch
                ),
            }
            for key, sketch in sorted(found.items(), key=lambda one: str(one[0]))
        ]
        return _response(self, query, "latency", rows)


def output_speed(sums: Counts, sketch: Histograms) -> float | None:
    """Return the output tokens per second of upstream time; None if either is unknown."""
    buckets = sketch.get("upstream_ms", {})
    ms = sum(value_of(int(bucket)) * requests for bucket, requests in buckets.items())
    output = known_tokens(sums, "output")
    return round(1000 * output / ms, 2) if ms and output is not None else None


def _response(
    view: ReportView, query: Row, name: str, rows: list[Row], columns: Sequence[str] = ()
) -> HttpResponseBase:
    if query["format"] != "json":
        return view.rows_response(query, name, rows, columns)
    return Response({**range_header(query["time_range"]), "by": query.get("by"), "data": rows})


ERROR_COUNTS: Final = ("requests", "errors", "client_gone")


TYPE: Final = "type"  # alias of the dimension error_type in this report


class ErrorParameters(TimeRangeParameters):
    by = Choice(choices=sorted([*DIMENSIONS, TYPE]), default="error_type")


class ErrorRow(serializers.Serializer[Any]):
    value = serializers.JSONField(allow_null=True)
    requests = serializers.IntegerField()
    errors = serializers.IntegerField()  # type: ignore[assignment]  # DRF removes fields from the class
    error_rate = serializers.FloatField(allow_null=True)
    client_gone = serializers.IntegerField()
    client_gone_rate = serializers.FloatField(allow_null=True)


class ErrorAnswer(RangeHeader):
    by = serializers.CharField()
    data = ErrorRow(many=True)  # type: ignore[assignment]  # DRF removes fields from the class


class ErrorsView(ReportView):
    """Return failed requests by one dimension.

    Requests whose client disconnected are counted separately: they are not errors. By error type,
    only requests that failed or whose client disconnected are counted.
    """

    parameters = ErrorParameters

    @extend_schema(responses=ErrorAnswer)
    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        by = "error_type" if query["by"] == TYPE else query["by"]
        groups = sum_by_group(
            usage(self.reader, query["time_range"], [by], query["condition"], ERROR_COUNTS)
        )
        if by == "error_type":
            groups = _failed_groups(groups)
        rows = [
            {
                "value": dimension_value(by, key[0]),
                "requests": sums["requests"],
                "errors": sums["errors"],
                "error_rate": ratio(sums["errors"], sums["requests"]),
                "client_gone": sums["client_gone"],
                "client_gone_rate": ratio(sums["client_gone"], sums["requests"]),
            }
            for key, sums in sorted(
                groups.items(), key=lambda one: (-one[1]["errors"], str(one[0]))
            )
        ]
        return _response(self, query, "errors", rows, column_names(ErrorRow()))


def _failed_groups(groups: Mapping[Key, Counts]) -> dict[Key, Counts]:
    """Return the sums by error type, without the requests that succeeded.

    The group ``None`` has the failed requests without an error type, and the requests whose client
    disconnected.
    """
    found = {key: sums for key, sums in groups.items() if key[0]}
    for key, sums in groups.items():
        failed = sums["errors"] + sums["client_gone"]
        if not key[0] and failed:
            found[None,] = Counts({**sums.counts, "requests": failed})
    return found


class CacheRow(serializers.Serializer[Any]):
    value = serializers.JSONField(allow_null=True)
    uncached_input_tokens = serializers.IntegerField(allow_null=True)
    cache_read_input_tokens = serializers.IntegerField(allow_null=True)
    cache_write_tokens = serializers.IntegerField(allow_null=True)
    cache_hit_rate = serializers.FloatField(allow_null=True)
    saved_usd = serializers.CharField(
        allow_null=True,
        help_text="Saved by cache reads, minus the extra cost of cache writes, at daily prices; "
        "null: nothing has a price, or no request reports cached tokens.",
    )
    saved_is_partial = serializers.BooleanField(help_text="True if some requests have no price.")


class CacheAnswer(RangeHeader):
    by = serializers.CharField(allow_null=True)
    data = CacheRow(many=True)  # type: ignore[assignment]  # DRF removes fields from the class


class CacheView(ReportView):
    """Return the share of prompt tokens read from a cache, and the saving.

    The share is read / (uncached + read + written).
    """

    parameters = ByParameters

    @extend_schema(responses=CacheAnswer)
    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        names = [query["by"]] if query.get("by") else []
        time_range, condition = query["time_range"], query["condition"]
        groups = sum_by_group(
            usage(self.reader, time_range, names, condition, NEEDS["cache_hit_rate"])
        )
        saved = savings(self.reader, time_range, names, condition)
        rows = [
            _cache_row(
                dimension_value(query["by"], key[0]) if key else None,
                sums,
                saved.get(key, Saving()),
            )
            for key, sums in sorted(groups.items(), key=lambda one: str(one[0]))
        ]
        return _response(self, query, "cache", rows)


def _cache_row(value: Any, sums: Counts, saving: Saving) -> Row:
    read, written = known_tokens(sums, "cache_read"), METRICS["cache_write_tokens"](sums)
    row = {
        "value": value,
        "uncached_input_tokens": known_tokens(sums, "input"),
        "cache_read_input_tokens": read,
        "cache_write_tokens": written,
        "cache_hit_rate": cache_hit_rate(sums),
        **saving.columns(),
    }
    return {**row, "saved_usd": None} if read is None and written is None else row
