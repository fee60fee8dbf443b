"""Latency, errors and the cache, each by one dimension."""

from typing import Any, Final

from django.http import HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from .answers import Row
from .base import ReportView
from .figures import METRICS, NEEDS, Latencies, by_group, cache_hit_rate, known, percentiles, ratio
from .parameters import Choice, SpanParameters
from .sums import DIMENSIONS, sketches, usage
from .usage import SpanHead, head_of


class ByParameters(SpanParameters):
    """One dimension, or none for the whole."""

    by = Choice(choices=sorted(DIMENSIONS), required=False)


class LatencyRow(Latencies):
    value = serializers.JSONField(allow_null=True)


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
        found = sketches(self.reader, asked["span"], groups, asked["condition"])
        rows = [
            {"value": key[0] if key else None, **percentiles(sketch)}
            for key, sketch in sorted(found.items(), key=lambda one: str(one[0]))
        ]
        return _by_answer(self, asked, "latency", rows)


def _by_answer(view: ReportView, asked: Row, name: str, rows: list[Row]) -> HttpResponseBase:
    if asked["format"] != "json":
        return view.rows_answer(asked, name, rows)
    return Response({**head_of(asked["span"]), "by": asked.get("by"), "data": rows})


ENDS: Final = ("requests", "errors", "client_gone")


class ErrorParameters(SpanParameters):
    by = Choice(choices=sorted(DIMENSIONS), default="error_type")


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
        groups = by_group(
            usage(self.reader, asked["span"], [asked["by"]], asked["condition"], ENDS)
        )
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


class CacheAnswer(SpanHead):
    by = serializers.CharField(allow_null=True)
    data = CacheRow(many=True)  # type: ignore[assignment]  # DRF takes fields off the class


class CacheView(ReportView):
    """How much of the prompts came from a cache: read / (uncached + read + written)."""

    parameters = ByParameters

    @extend_schema(parameters=[ByParameters], responses=CacheAnswer)
    def get(self, request: Request) -> HttpResponseBase:
        asked = self.asked()
        names = [asked["by"]] if asked.get("by") else []
        groups = by_group(
            usage(self.reader, asked["span"], names, asked["condition"], NEEDS["cache_hit_rate"])
        )
        rows = [
            {
                "value": key[0] if key else None,
                "uncached_input_tokens": known(sums, "input"),
                "cache_read_input_tokens": known(sums, "cache_read"),
                "cache_write_tokens": METRICS["cache_write_tokens"](sums),
                "cache_hit_rate": cache_hit_rate(sums),
            }
            for key, sums in sorted(groups.items(), key=lambda one: str(one[0]))
        ]
        return _by_answer(self, asked, "cache", rows)
