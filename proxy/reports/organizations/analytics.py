"""GET /v1/organizations/analytics/usage and /cost (flat rows), and usage_report/claude_code."""

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
from proxy.reports.answers import page_of
from proxy.reports.figures import INPUTS
from proxy.reports.parameters import Choice, Number
from proxy.reports.spans import DAY, midnight, zone_named
from proxy.reports.sums import COST_COUNTS, SUMMED, Sums, cost_of, known, refreshed_at, total
from proxy.visibility import visible_exchanges

from . import shapes
from .groups import ALL, filters, grouped
from .lists import WireView, organization_id
from .usage_report import cents, token_fields
from .windows import WindowParameters, WireParameters, values, zulu

Row = dict[str, Any]

NAMES: Final[Mapping[str, str]] = {"actor": "api_key_id", "session_id": "session"}  # theirs -> ours
GROUPS: Final = (*ALL, *NAMES)
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
    """As the usage report, by ``time_bucket_width``; rows are flat, so the limit counts rows."""

    time_bucket_width = Choice(choices=["1d", "1h"], default="1d")
    limit = Number(min_value=1, max_value=1000, default=20)
    group_by = values(GROUPS)
    actor_ids = values()
    session_ids = values()
    context_windows = values(("0-200k", "200k-1M"))
    service_tiers = values()
    api_key_ids = values()
    workspace_ids = values()
    models = values()
    order_by = Choice(choices=ORDERS, default="time")
    order = Choice(choices=["asc", "desc"], default="asc")

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        fields.pop("bucket_width")
        return fields

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        # all buckets at once: pages are cut from the rows
        asked = {
            **attrs,
            "bucket_width": attrs["time_bucket_width"],
            "limit": 31 if attrs["time_bucket_width"] == "1d" else 168,
            "page": "",
        }
        window = super().validate(asked)["window"]
        if window.following is not None:
            raise serializers.ValidationError(
                {"ending_at": f"at most {asked['limit']} buckets at once"}
            )
        return {**attrs, "window": window}


class AnalyticsView(WireView):
    """Shared by usage and cost: only the figures of a row differ."""

    parameters = AnalyticsParameters
    counts: ClassVar[Sequence[str]] = SUMMED

    def figures(self, sums: Sums) -> Row:
        raise NotImplementedError

    def get(self, request: Request) -> HttpResponseBase:
        asked = self.asked()
        window = asked["window"]
        names = asked.get("group_by", [])
        groups = [NAMES.get(name, name) for name in names]
        rows = [
            {
                "starting_at": zulu(window.edges[number]),
                "ending_at": zulu(window.edges[number + 1]),
                "group": {name: _said(name, said) for name in names},
                **self.figures(sums),
            }
            for number, found in grouped(
                self.reader, window, groups, filters(asked), self.counts
            ).items()
            for said, sums in found
        ]
        rows.sort(key=lambda row: _rank(row, asked["order_by"]), reverse=asked["order"] == "desc")
        shown, following = page_of(rows, asked["limit"], asked["page"])
        fresh = refreshed_at()
        return Response(
            {
                "data": shown,
                "has_more": following is not None,
                "next_page": following,
                "data_refreshed_at": zulu(fresh) if fresh else None,
            }
        )


def _said(name: str, said: Row) -> Any:
    """Every request here is made with a key, so the actor is one."""
    value = said.get(NAMES.get(name, name))
    return {"type": "api_actor", "api_key_id": value} if name == "actor" else value


def _rank(row: Row, name: str) -> Any:
    if name == "time":
        return row["starting_at"]
    figures = {**row.get("usage", {}), **row.get("cost", {})}
    return Decimal(figures.get(name) or 0)


class AnalyticsUsageView(AnalyticsView):
    answer = shapes.ANALYTICS_USAGE

    def figures(self, sums: Sums) -> Row:
        return {
            "usage": {
                **token_fields(sums),
                "total_tokens": total(known(sums, name) for name in (*INPUTS, "output")) or 0,
                "requests": sums["requests"],
            }
        }


class AnalyticsCostView(AnalyticsView):
    answer = shapes.ANALYTICS_COST
    counts = COST_COUNTS

    def figures(self, sums: Sums) -> Row:
        amount = cents(cost_of(sums))
        return {
            "cost": {
                "amount": amount,
                "list_amount": amount,
                "currency": "USD",
                "requests": sums["requests"],
            }
        }


class ClaudeCodeParameters(WireParameters):
    starting_at = serializers.CharField(max_length=40)
    limit = Number(min_value=1, max_value=1000, default=20)
    page = serializers.CharField(max_length=500, default="")

    def validate_starting_at(self, value: str) -> datetime:
        try:
            day = parse_date(value)
        except ValueError:
            day = None
        if day is None or not 1970 <= day.year <= 9990:
            raise serializers.ValidationError(f"{value!r} is no UTC day; expected YYYY-MM-DD")
        return midnight(day, zone_named("UTC"))


class ClaudeCodeView(WireView):
    """One UTC day of Claude Code by key.

    Null is what nobody here knows: lines, commits, edits, and tokens that were not reported.
    """

    parameters = ClaudeCodeParameters
    answer = shapes.CLAUDE_CODE

    def get(self, request: Request) -> HttpResponseBase:
        asked = self.asked()
        start = asked["starting_at"]
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
            fresh=Sum("input_tokens"),
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
        shown, following = page_of(data, asked["limit"], asked["page"])
        return Response({"data": shown, "has_more": following is not None, "next_page": following})


def _model(row: Mapping[str, Any]) -> Row:
    return {
        "model": row["model_requested"],
        "tokens": {
            "input": row["fresh"],
            "output": row["out"],
            "cache_read": row["read"],
            "cache_creation": total([row["short"], row["long"]]),
        },
        "estimated_cost": {"amount": cents(row["cost"]), "currency": "USD"},
    }


def _actor(start: datetime, row: Mapping[str, Any], models: list[Row]) -> Row:
    tools = ("edit_tool", "multi_edit_tool", "write_tool", "notebook_edit_tool")
    return {
        "date": zulu(start),
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
