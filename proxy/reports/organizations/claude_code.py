"""GET /v1/organizations/usage_report/claude_code: one UTC day of Claude Code by key."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django.db.models import Q
from django.http import HttpResponseBase
from django.utils.dateparse import parse_date
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.ledger.outcomes.agent_tools import EDIT_KINDS
from proxy.money import cents
from proxy.reports.core.dimensions import shown_rows
from proxy.reports.core.query_parameters import Number
from proxy.reports.core.rendering import paginate
from proxy.reports.core.time_ranges import DAY, TimeRange, load_zone, midnight
from proxy.reports.usage.days import GROUPS, outcome_row, outcome_sums
from proxy.reports.usage.rollup_queries import Counts, cost_of, known_tokens, sum_known, usage
from proxy.times import rfc3339

from . import openapi_schemas
from .admin_api_views import AdminApiView, organization_id
from .buckets import AdminApiParameters

Row = dict[str, Any]

CLAUDE_CODE: Final = Q(client_name="claude-cli")
ACTOR: Final = ("team", "key")


class ClaudeCodeParameters(AdminApiParameters):
    starting_at = serializers.CharField(max_length=40, help_text="The day, in UTC.")
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

    Lines, commits and edits come from the outcome ledger. Values that the gateway cannot know are
    null: outcomes of requests whose transcripts are not stored, and unreported tokens.
    """

    parameters = ClaudeCodeParameters
    answer = openapi_schemas.CLAUDE_CODE

    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        start = query["starting_at"]
        day = TimeRange([start, start + DAY], "all", load_zone("UTC"))
        models: dict[tuple[Any, ...], list[Row]] = {}
        used = usage(self.reader, day, [*ACTOR, "model"], CLAUDE_CODE)
        for (_, (team, key, model)), sums in sorted(used.items(), key=lambda one: one[0]):
            models.setdefault((team, key), []).append(_model(model, sums))
        outcomes = outcome_sums(self.reader, start, start + DAY, ACTOR, CLAUDE_CODE)
        data = [
            _actor(start, outcome_row(dict(zip(ACTOR, key, strict=True)), row), models[key])
            for key, row in shown_rows(ACTOR, [GROUPS[name] for name in ACTOR], outcomes)
        ]
        return Response(paginate(data, query))


def _model(model: str, sums: Counts) -> Row:
    """Return the tokens and the cost of a model; the cost is null if no token is known."""
    written = [known_tokens(sums, name) for name in ("cache_write_5m", "cache_write_1h")]
    tokens = {
        "input": known_tokens(sums, "input"),
        "output": known_tokens(sums, "output"),
        "cache_read": known_tokens(sums, "cache_read"),
        "cache_creation": sum_known(written),
    }
    cost = cost_of(sums)
    is_known = bool(cost) or any(count is not None for count in tokens.values())
    return {
        "model": model,
        "tokens": tokens,
        "estimated_cost": {"amount": cents(cost) if is_known else None, "currency": "USD"},
    }


def _actor(start: datetime, row: Mapping[str, Any], models: list[Row]) -> Row:
    return {
        "date": rfc3339(start, "seconds"),
        "actor": {"type": "api_actor", "api_key_name": f"{row['team']}/{row['key']}"},
        "customer_type": "api",
        "organization_id": organization_id(),
        "subscription_type": None,
        "terminal_type": None,
        "core_metrics": {
            "num_sessions": row["sessions"],
            "lines_of_code": {"added": row["lines_added"], "removed": row["lines_removed"]},
            "commits_by_claude_code": row["commits"],
            "pull_requests_by_claude_code": row["pull_requests"],
        },
        "tool_actions": {
            f"{kind}_tool": {
                "accepted": row[f"{kind}_accepted"],
                "rejected": row[f"{kind}_rejected"],
            }
            for kind in EDIT_KINDS
        },
        "model_breakdown": models,
    }
