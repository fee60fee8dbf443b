"""GET /api/v1/stop_reasons/: why answers ended, by model, client version, tool, team or user."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Final

from django.db.models import Q, Sum
from django.http import HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.models import StopReasonDay
from proxy.permissions.row_permissions import Reader, visible_rows
from proxy.reports.core.base_views import ReportView
from proxy.reports.core.dimensions import dimension_value, order_of, shown_rows
from proxy.reports.core.permissions import IsKeyOrStaff
from proxy.reports.core.query_parameters import Choice, Values
from proxy.reports.core.rendering import Row, encode_cursor
from proxy.times import rfc3339

from .outcomes import DayPage, DayParameters, offset_of
from .rollup_queries import refreshed_at

DIMENSIONS: Final[Mapping[str, str]] = {
    "day": "start",
    "team": "team",
    "user": "user",
    "client": "client_name",
    "client_version": "client_version",
    "model": "model_requested",
    "tool": "tool",
}
"""Name of the dimension in the API -> its column in ``StopReasonDay``."""
FILTERS: Final[Mapping[str, str]] = {
    **{name: column for name, column in DIMENSIONS.items() if name != "day"},
    "stop_reason": "stop_reason",
}


def stop_reason_rows(
    reader: Reader,
    start: datetime,
    end: datetime,
    groups: Sequence[str],
    condition: Q | None = None,
    *,
    at_each_tool: bool = False,
) -> Iterator[Row]:
    """Yield the requests of each group and stop reason, of the UTC days in this time range.

    The groups are in order, and in each the most frequent stop reason is first. ``at_each_tool``:
    count a request at each tool that its answer calls, not only once.
    """
    columns = [DIMENSIONS[name] for name in groups]
    rows = StopReasonDay.objects.filter(
        visible_rows(reader), condition or Q(), start__gte=start, start__lt=end
    )
    count = "requests_with_tool" if at_each_tool or "tool" in groups else "requests"
    sums = rows.order_by().values(*columns, "stop_reason").annotate(sum_requests=Sum(count))
    by_name = map(order_of, groups, columns)
    found = sums.filter(sum_requests__gt=0).order_by(
        *by_name, *columns, "-sum_requests", "stop_reason"
    )
    named = shown_rows(groups, columns, found.iterator(chunk_size=2000))
    for key, of_group in groupby(named, itemgetter(0)):
        reasons = [row for _, row in of_group]
        total = sum(row["sum_requests"] for row in reasons)
        dimensions = {name: _value(name, each) for name, each in zip(groups, key, strict=True)}
        for row in reasons:
            yield {
                **dimensions,
                "stop_reason": row["stop_reason"] or None,
                "requests": row["sum_requests"],
                "share": round(row["sum_requests"] / total, 6),
            }


def _value(name: str, value: Any) -> Any:
    return f"{value:%Y-%m-%d}" if name == "day" else dimension_value(name, value) or None


class StopReasonParameters(DayParameters):
    """A range of UTC days, filters and dimensions. The default dimension is the model."""

    filters = FILTERS
    group_by = Values(child=Choice(choices=sorted(DIMENSIONS)))

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "group_by" not in self.initial_data:
            attrs["group_by"] = ["model"]
        return super().validate(attrs)


class StopReasonRow(serializers.Serializer[Any]):
    """One stop reason of a group. Of the dimensions, only those in ``group_by`` are present."""

    stop_reason = serializers.CharField(
        allow_null=True, help_text="Null: the request has no complete answer."
    )
    requests = serializers.IntegerField(
        help_text="Finished requests; by tool, each is counted at every tool that its answer calls."
    )
    share = serializers.FloatField(help_text="Part of the requests of its group, from 0 to 1.")

    def get_fields(self) -> dict[str, Any]:
        texts = {"tool": "Null: the answer calls no tool."}
        dimensions = {
            name: serializers.CharField(
                required=False, allow_null=True, help_text=texts.get(name, "Null: unknown.")
            )
            for name in DIMENSIONS
        }
        return {**dimensions, **super().get_fields()}


class StopReasonPage(DayPage):
    data = StopReasonRow(many=True)  # type: ignore[assignment]  # DRF removes fields from the class


class StopReasonsView(ReportView):
    """Return why answers ended: the requests of each stop reason, by up to four dimensions.

    A caller without the permission to report gets the figures of its own requests.
    """

    parameters = StopReasonParameters
    permission_classes = (IsKeyOrStaff,)

    @extend_schema(parameters=[StopReasonParameters], responses=StopReasonPage)
    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        groups = query["group_by"]
        rows = stop_reason_rows(
            self.reader,
            query["start"],
            query["end"],
            groups,
            query["condition"],
            at_each_tool=bool(query.get("tool")),
        )
        if query["format"] != "json":
            columns = [*groups, "stop_reason", "requests", "share"]
            return self.rows_response(query, "stop_reasons", rows, columns)
        first, limit = offset_of(query["page"]), query["limit"]
        page = list(islice(rows, first, first + limit + 1))
        refreshed, has_more = refreshed_at(), len(page) > limit
        return Response(
            {
                "from": rfc3339(query["start"]),
                "to": rfc3339(query["end"]),
                "tz": "UTC",
                "data_refreshed_at": rfc3339(refreshed),
                "data": page[:limit],
                "has_more": has_more,
                "next_page": encode_cursor(first + limit) if has_more else None,
            }
        )
