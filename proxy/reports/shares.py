"""Latency, errors and the cache, each by one dimension."""

from typing import Any, Final

from django.http import HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.record.latency import Sketch, value_of

from .answers import Row
from .base import ReportView
from .figures import METRICS, NEEDS, Latencies, by_group, cache_hit_rate, known, percentiles, ratio
from .parameters import Choice, SpanParameters
from .savings import Saving, savings
from .sums import DIMENSIONS, Sums, sketches, usage
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
    return round(1000 * known(sums, "output") / ms, 2) if ms else None


def _by_answer(view: ReportView, asked: Row, name: str, rows: list[Row]) -> HttpResponseBase:
    if asked["format"] != "json":
        return view.rows_answer(asked, name, rows)
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
    """What failed; clients that left are counted apart, since nothing was wrong with the answer."""

    parameters = ErrorParameters

    @extend_schema(parameters=[ErrorParameters], responses=ErrorAnswer)
    def get(self, request: Request) -> HttpResponseBase:
        asked = self.asked()
        by = "error_type" if asked["by"] == TYPE else asked["by"]
        groups = by_group(usage(self.reader, asked["span"], [by], asked["condition"], ENDS))
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
        return _by_answer(self, asked, "errors", rows)


class CacheRow(serializers.Serializer[Any]):
    value = serializers.JSONField(allow_null=True)
    uncached_input_tokens = serializers.IntegerField()
    cache_read_input_tokens = serializers.IntegerField()
    cache_write_tokens = serializers.IntegerField()
    cache_hit_rate = serializers.FloatField(allow_null=True)
    saved_usd = serializers.CharField(
        allow_null=True,
        help_text="What reading saved, less what writing cost more than plain input, by each day's "
        "prices; null: none of it has a price.",
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
            {
                "value": key[0] if key else None,
                "uncached_input_tokens": known(sums, "input"),
                "cache_read_input_tokens": known(sums, "cache_read"),
                "cache_write_tokens": METRICS["cache_write_tokens"](sums),
                "cache_hit_rate": cache_hit_rate(sums),
                **saved.get(key, Saving()).columns(),
            }
            for key, sums in sorted(groups.items(), key=lambda one: str(one[0]))
        ]
        return _by_answer(self, asked, "cache", rows)
