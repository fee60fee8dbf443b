"""Latency, errors and the cache, each by one dimension."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.http import HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.record.latency import Sketch, value_of

from .answers import Row, columns_of
from .base import ReportView
from .figures import METRICS, NEEDS, Latencies, by_group, cache_hit_rate, percentiles, ratio
from .parameters import Choice, SpanParameters
from .savings import Saving, savings
from .sums import DIMENSIONS, Key, Sums, known, sketches, usage
from .usage import SpanHead, head_of


class ByParameters(SpanParameters):
    """One dimension, or none for the whole."""

    by = Choice(choices=sorted(DIMENSIONS), required=False)


class LatencyRow(Latencies):
    value = serializers.JSONField(allow_null=True)
    output_tokens_per_upstream_s = serializers.FloatField(
        allow_null=True,
        help_text="Of all output, by the time that upstreams took, first token included; to 5 %.",
    )


class LatencyAnswer(SpanHead):
    by = serializers.CharField(allow_null=True)
    data = LatencyRow(many=True)  # type: ignore[assignment]  # DRF takes fields off the class


class LatencyView(ReportView):
    """Percentiles by one dimension, from counts by bucket: never an average of percentiles."""

    parameters = ByParameters

    @extend_schema(parameters=[ByParameters], responses=LatencyAnswer)
    def get(self, request: Request) -> HttpResponseBase:
        asked = self.asked()
        groups = [asked["by"]] if asked.get("by") else []
        span, condition = asked["span"], asked["condition"]
        found = sketches(self.reader, span, groups, condition)
        said = by_group(usage(self.reader, span, groups, condition, NEEDS["output_tokens"]))
        rows = [
            {
                "value": key[0] if key else None,
                **percentiles(sketch),
                "output_tokens_per_upstream_s": _speed(said.get(key, Sums()), sketch),
            }
            for key, sketch in sorted(found.items(), key=lambda one: str(one[0]))
        ]
        return _by_answer(self, asked, "latency", rows)


def _speed(sums: Sums, sketch: Sketch) -> float | None:
    buckets = sketch.get("upstream_ms", {})
    ms = sum(value_of(int(bucket)) * requests for bucket, requests in buckets.items())
    output = known(sums, "output")
    return round(1000 * output / ms, 2) if ms and output is not None else None


def _by_answer(
    view: ReportView, asked: Row, name: str, rows: list[Row], columns: Sequence[str] = ()
) -> HttpResponseBase:
    if asked["format"] != "json":
        return view.rows_answer(asked, name, rows, columns)
    return Response({**head_of(asked["span"]), "by": asked.get("by"), "data": rows})


ENDS: Final = ("requests", "errors", "client_gone")


TYPE: Final = "type"  # in this report it can only be the error's


class ErrorParameters(SpanParameters):
    by = Choice(choices=sorted([*DIMENSIONS, TYPE]), default="error_type")


class ErrorRow(serializers.Serializer[Any]):
    value = serializers.JSONField(allow_null=True)
    requests = serializers.IntegerField()
    errors = serializers.IntegerField()  # type: ignore[assignment]  # DRF takes fields off the class
    error_rate = serializers.FloatField(allow_null=True)
    client_gone = serializers.IntegerField()
    client_gone_rate = serializers.FloatField(allow_null=True)


class ErrorAnswer(SpanHead):
    by = serializers.CharField()
    data = ErrorRow(many=True)  # type: ignore[assignment]  # DRF takes fields off the class


class ErrorsView(ReportView):
    """What failed; clients that left are counted apart, since nothing was wrong with the answer.

    By error type, only requests that failed or whose client left are counted.
    """

    parameters = ErrorParameters

    @extend_schema(parameters=[ErrorParameters], responses=ErrorAnswer)
    def get(self, request: Request) -> HttpResponseBase:
        asked = self.asked()
        by = "error_type" if asked["by"] == TYPE else asked["by"]
        groups = by_group(usage(self.reader, asked["span"], [by], asked["condition"], ENDS))
        if by == "error_type":
            groups = _faulty(groups)
        rows = [
            {
                "value": key[0],
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
        return _by_answer(self, asked, "errors", rows, columns_of(ErrorRow()))


def _faulty(groups: Mapping[Key, Sums]) -> dict[Key, Sums]:
    """The groups by error type, without requests that ended well: these have no type.

    Under None is what failed without one, and the clients that left.
    """
    found = {key: sums for key, sums in groups.items() if key[0]}
    for key, sums in groups.items():
        failed = sums["errors"] + sums["client_gone"]
        if not key[0] and failed:
            found[None,] = Sums({**sums.counts, "requests": failed})
    return found


class CacheRow(serializers.Serializer[Any]):
    value = serializers.JSONField(allow_null=True)
    uncached_input_tokens = serializers.IntegerField(allow_null=True)
    cache_read_input_tokens = serializers.IntegerField(allow_null=True)
    cache_write_tokens = serializers.IntegerField(allow_null=True)
    cache_hit_rate = serializers.FloatField(allow_null=True)
    saved_usd = serializers.CharField(
        allow_null=True,
        help_text="What reading saved, less what writing cost more than plain input, by each day's "
        "prices; null: none of it has a price, or nobody reported what was cached.",
    )
    saved_is_partial = serializers.BooleanField(help_text="True when some of it has no price.")


class CacheAnswer(SpanHead):
    by = serializers.CharField(allow_null=True)
    data = CacheRow(many=True)  # type: ignore[assignment]  # DRF takes fields off the class


class CacheView(ReportView):
    """How much of the prompts came from a cache, read / (uncached + read + written), and saved."""

    parameters = ByParameters

    @extend_schema(parameters=[ByParameters], responses=CacheAnswer)
    def get(self, request: Request) -> HttpResponseBase:
        asked = self.asked()
        names = [asked["by"]] if asked.get("by") else []
        span, condition = asked["span"], asked["condition"]
        groups = by_group(usage(self.reader, span, names, condition, NEEDS["cache_hit_rate"]))
        saved = savings(self.reader, span, names, condition)
        rows = [
            _cache_row(key[0] if key else None, sums, saved.get(key, Saving()))
            for key, sums in sorted(groups.items(), key=lambda one: str(one[0]))
        ]
        return _by_answer(self, asked, "cache", rows)


def _cache_row(value: Any, sums: Sums, saving: Saving) -> Row:
    read, written = known(sums, "cache_read"), METRICS["cache_write_tokens"](sums)
    row = {
        "value": value,
        "uncached_input_tokens": known(sums, "input"),
        "cache_read_input_tokens": read,
        "cache_write_tokens": written,
        "cache_hit_rate": cache_hit_rate(sums),
        **saving.columns(),
    }
    return {**row, "saved_usd": None} if read is None and written is None else row
