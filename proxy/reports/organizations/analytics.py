"""GET /v1/organizations/analytics/usage and /cost (no nested buckets), usage_report/claude_code."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar, Final

from django.db.models import Count, Sum
from django.http import HttpResponseBase
from django.utils.dateparse import parse_date
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.models import State
from proxy.permissions.row_permissions import visible_exchanges
from proxy.reports.core.query_parameters import Choice, Number
from proxy.reports.core.rendering import paginate
from proxy.reports.core.time_ranges import DAY, load_zone, midnight
from proxy.reports.usage.rollup_queries import (
    COST_COUNTS,
    COUNT_NAMES,
    Counts,
    cost_of,
    known_tokens,
    refreshed_at,
    sum_known,
)
from proxy.reports.usage.summary import INPUTS

from . import openapi_schemas
from .admin_api_views import AdminApiView, organization_id
from .buckets import AdminApiParameters, WindowParameters, repeatable, rfc3339
from .group_by import DIMENSIONS, build_condition, group_usage
from .usage_report import cents, token_fields

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
    actor_ids = repeatable()
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
                "starting_at": rfc3339(window.edges[number]),
                "ending_at": rfc3339(window.edges[number + 1]),
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
        page_rows, next_page = paginate(rows, query["limit"], query["page"])
        refreshed = refreshed_at()
        return Response(
            {
                "data": page_rows,
                "has_more": next_page is not None,
                "next_page": next_page,
                "data_refreshed_at": rfc3339(refreshed) if refreshed else None,
            }
        )


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


class ClaudeCodeParameters(AdminApiParameters):
    starting_at = serializers.CharField(max_length=40)
    limit = Number(min_value=1, max_value=1000, default=20)
    page = serializers.CharField(max_length=500, default="")

    def validate_starting_at(self, value: str) -> datetime:
        try:
            day = parse_date(value)
        except ValueError:
            day = None
        if day is None or not 1970 <= day.year <= 9990:
            raise serializers.ValidationError(f"{value!r} is not a UTC day; expected YYYY-MM-DD")
        return midnight(day, load_zone("UTC"))


class ClaudeCodeView(AdminApiView):
    """Return the Claude Code usage of one UTC day by key.

    Values that the gateway cannot know are null: lines, commits, edits, and unreported tokens.
    """

    parameters = ClaudeCodeParameters
    answer = openapi_schemas.CLAUDE_CODE

    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        start = query["starting_at"]
        rows = visible_exchanges(self.reader).filter(
            state=State.CLOSED,
            client_name="claude-cli",
            created__gte=start,
            created__lt=start + DAY,
        )
        actors = rows.order_by().values("team", "key_name")
        sessions = actors.annotate(n=Count("session_id", distinct=True)).order_by(
            "team", "key_name"
        )
        models = actors.values("team", "key_name", "model_requested").annotate(
            input=Sum("input_tokens"),
            out=Sum("output_tokens"),
            read=Sum("cache_read_tokens"),
            short=Sum("cache_write_5m_tokens"),
            long=Sum("cache_write_1h_tokens"),
            cost=Sum("cost_nanousd"),
        )
        used: dict[tuple[str, str], list[Row]] = {}
        for row in models.order_by("model_requested"):
            used.setdefault((row["team"], row["key_name"]), []).append(_model(row))
        data = [
            _actor(start, row, used[(row["team"], row["key_name"])]) for row in sessions.iterator()
        ]
        page_rows, next_page = paginate(data, query["limit"], query["page"])
        return Response(
            {"data": page_rows, "has_more": next_page is not None, "next_page": next_page}
        )


def _model(row: Mapping[str, Any]) -> Row:
    return {
        "model": row["model_requested"],
        "tokens": {
            "input": row["input"],
            "output": row["out"],
            "cache_read": row["read"],
            "cache_creation": sum_known([row["short"], row["long"]]),
        },
        "estimated_cost": {"amount": cents(row["cost"]), "currency": "USD"},
    }


def _actor(start: datetime, row: Mapping[str, Any], models: list[Row]) -> Row:
    tools = ("edit_tool", "multi_edit_tool", "write_tool", "notebook_edit_tool")
    return {
        "date": rfc3339(start),
        "actor": {"type": "api_actor", "api_key_name": f"{row['team']}/{row['key_name']}"},
        "customer_type": "api",
        "organization_id": organization_id(),
        "subscription_type": None,
        "terminal_type": None,
        "core_metrics": {
            "num_sessions": row["n"],
            "lines_of_code": {"added": None, "removed": None},
            "commits_by_claude_code": None,
            "pull_requests_by_claude_code": None,
        },
        "tool_actions": {name: {"accepted": None, "rejected": None} for name in tools},
        "model_breakdown": models,
    }
