"""GET /v1/organizations/analytics/usage and /cost, whose rows are not nested in buckets."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar, Final

from django.http import HttpResponseBase
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.money import cents
from proxy.reports.core.query_parameters import Choice, Number
from proxy.reports.core.rendering import paginate
from proxy.reports.usage.metrics import INPUTS
from proxy.reports.usage.rollup_queries import (
    COST_COUNTS,
    COUNT_NAMES,
    Counts,
    cost_of,
    known_tokens,
    refreshed_at,
    sum_known,
)
from proxy.times import rfc3339

from . import openapi_schemas
from .admin_api_views import AdminApiView
from .buckets import WindowParameters, repeatable
from .group_by import DIMENSIONS, build_condition, group_usage
from .usage_report import token_fields

Row = dict[str, Any]

# Anthropic's name -> name in DIMENSIONS.
NAMES: Final[Mapping[str, str]] = {
    "actor": "api_key_id",
    "session_id": "session",
}
GROUPS: Final = (*DIMENSIONS, *NAMES)
ORDERS: Final = (
    "time",
    "requests",
    "total_tokens",
    "output_tokens",
    "uncached_input_tokens",
    "amount",
    "list_amount",
)


class AnalyticsParameters(WindowParameters):
    """Parameters of the analytics reports.

    ``limit`` counts rows here, because rows are not nested in buckets. In the other usage reports,
    it counts buckets.
    """

    time_bucket_width = Choice(choices=["1d", "1h"], default="1d")
    limit = Number(min_value=1, max_value=1000, default=20)
    group_by = repeatable(GROUPS)
    actor_ids = repeatable(help_text="Only requests of these gateway keys.")
    session_ids = repeatable()
    context_windows = repeatable(("0-200k", "200k-1M"))
    service_tiers = repeatable()
    api_key_ids = repeatable()
    workspace_ids = repeatable()
    models = repeatable()
    order_by = Choice(choices=ORDERS, default="time")
    order = Choice(choices=["asc", "desc"], default="asc")

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        fields.pop("bucket_width")
        return fields

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        # the window contains all buckets, because a page is a slice of the rows
        query = {
            **attrs,
            "bucket_width": attrs["time_bucket_width"],
            "limit": 31 if attrs["time_bucket_width"] == "1d" else 168,
            "page": "",
        }
        window = super().validate(query)["window"]
        if window.next_start is not None:
            raise serializers.ValidationError(
                {"ending_at": f"at most {query['limit']} buckets at once"}
            )
        return {**attrs, "window": window}


class AnalyticsView(AdminApiView):
    """Base of the usage and cost views: only ``figures`` differs."""

    parameters = AnalyticsParameters
    counts: ClassVar[Sequence[str]] = COUNT_NAMES

    def figures(self, sums: Counts) -> Row:
        raise NotImplementedError

    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        window = query["window"]
        names = query.get("group_by", [])
        groups = [NAMES.get(name, name) for name in names]
        rows = [
            {
                "starting_at": rfc3339(window.edges[number], "seconds"),
                "ending_at": rfc3339(window.edges[number + 1], "seconds"),
                "group": {name: _group_value(name, dimensions) for name in names},
                **self.figures(sums),
            }
            for number, found in group_usage(
                self.reader, window, groups, build_condition(query), self.counts
            ).items()
            for dimensions, sums in found
        ]
        rows.sort(
            key=lambda row: _sort_value(row, query["order_by"]), reverse=query["order"] == "desc"
        )
        refreshed = {"data_refreshed_at": rfc3339(refreshed_at(), "seconds")}
        return Response({**paginate(rows, query), **refreshed})


def _group_value(name: str, dimensions: Row) -> Any:
    """Return the value of a dimension. An actor is always a key: each request has a key."""
    value = dimensions.get(NAMES.get(name, name))
    return {"type": "api_actor", "api_key_id": value} if name == "actor" else value


def _sort_value(row: Row, name: str) -> Any:
    if name == "time":
        return row["starting_at"]
    figures = {**row.get("usage", {}), **row.get("cost", {})}
    return Decimal(figures.get(name) or 0)


class AnalyticsUsageView(AnalyticsView):
    answer = openapi_schemas.ANALYTICS_USAGE

    def figures(self, sums: Counts) -> Row:
        return {
            "usage": {
                **token_fields(sums),
                "total_tokens": sum_known(known_tokens(sums, name) for name in (*INPUTS, "output"))
                or 0,
                "requests": sums["requests"],
            }
        }


class AnalyticsCostView(AnalyticsView):
    answer = openapi_schemas.ANALYTICS_COST
    counts = COST_COUNTS

    def figures(self, sums: Counts) -> Row:
        amount = cents(cost_of(sums))
        return {
            "cost": {
                "amount": amount,
                "list_amount": amount,
                "currency": "USD",
                "requests": sums["requests"],
            }
        }
