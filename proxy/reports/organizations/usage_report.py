"""GET /v1/organizations/usage_report/messages and /v1/organizations/cost_report."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

from django.http import HttpResponseBase
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.ledger.maintenance.export import workspace_id
from proxy.money import cents
from proxy.permissions.row_permissions import Reader
from proxy.reports.core.base_views import ReportView
from proxy.reports.core.query_parameters import Choice
from proxy.reports.core.time_ranges import TimeRange, load_zone
from proxy.reports.usage.rollup_queries import (
    COST_COUNTS,
    TOKEN_COUNTS,
    Counts,
    cost_of,
    known_tokens,
    usage,
)

from . import openapi_schemas
from .buckets import Window, WindowParameters, bucket_page, repeatable
from .group_by import (
    ANTHROPIC_DIMENSIONS,
    DIMENSIONS,
    MODELS_AS,
    OWN_DIMENSIONS,
    REQUESTED,
    UPSTREAM,
    build_condition,
    group_usage,
)

Row = dict[str, Any]

TIERS: Final = ("standard", "batch", "priority", "priority_on_demand", "flex", "flex_discount")


class UsageReportParameters(WindowParameters):
    group_by = repeatable(list(DIMENSIONS))
    account_ids = repeatable(help_text="Only requests of these users.")
    api_key_ids = repeatable()
    service_account_ids = repeatable(help_text="The gateway has no service accounts.")
    workspace_ids = repeatable(help_text="Only requests of these teams.")
    models = repeatable()
    service_tiers = repeatable(TIERS)
    context_window = repeatable(("0-200k", "200k-1M"))
    inference_geos = repeatable(("global", "us", "not_available"))
    speeds = repeatable(("standard", "fast"))
    models_as = Choice(
        choices=MODELS_AS,
        default=REQUESTED,
        help_text="The name of a model: as the client requested it, or as it was sent upstream.",
    )


class UsageReportView(ReportView):
    """Return tokens by bucket and group."""

    parameters = UsageReportParameters
    schema = openapi_schemas.AdminApiSchema()
    answer = openapi_schemas.USAGE_REPORT

    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        groups = query.get("group_by", [])
        sums_by_bucket = group_usage(
            self.reader,
            query["window"],
            groups,
            build_condition(query),
            TOKEN_COUNTS,
            models_as=query["models_as"],
        )
        results = {
            number: [usage_row(dimensions, sums, groups) for dimensions, sums in rows]
            for number, rows in sums_by_bucket.items()
        }
        return Response(bucket_page(query["window"], results))


def usage_row(dimensions: Row, sums: Counts, groups: Sequence[str]) -> Row:
    """Return a row of the report.

    Anthropic's dimensions are always present, with null unless they are in ``group_by``. The
    additional dimensions of this gateway are present only if they are in ``group_by``.
    """
    return {
        **token_fields(sums),
        **dict.fromkeys(ANTHROPIC_DIMENSIONS),
        **{name: None for name in groups if name in OWN_DIMENSIONS},
        **dimensions,
    }


MISSING_FIELDS: Final = {
    "input_missing": "uncached_input_tokens",
    "output_missing": "output_tokens",
    "cache_read_missing": "cache_read_input_tokens",
    "cache_write_missing": "cache_creation",
}


def token_fields(sums: Counts) -> Row:
    """Return Anthropic's token fields.

    Their type is integer, and clients fail on null, so an unknown count is 0. The additional field
    ``missing_requests`` has, for each such field, the number of requests without a count.
    """
    fields: Row = {
        "uncached_input_tokens": known_tokens(sums, "input") or 0,
        "cache_creation": {
            "ephemeral_5m_input_tokens": known_tokens(sums, "cache_write_5m") or 0,
            "ephemeral_1h_input_tokens": known_tokens(sums, "cache_write_1h") or 0,
        },
        "cache_read_input_tokens": known_tokens(sums, "cache_read") or 0,
        "output_tokens": known_tokens(sums, "output") or 0,
        "server_tool_use": {"web_search_requests": sums["web_searches"]},
    }
    missing = {field: sums[name] for name, field in MISSING_FIELDS.items() if sums[name]}
    return {**fields, "missing_requests": missing} if missing else fields


class CostReportParameters(WindowParameters):
    bucket_width = Choice(choices=["1d"], default="1d")
    group_by = repeatable(
        ["workspace_id", "description", "api_key_id", "account_id", "model", *OWN_DIMENSIONS]
    )
    models_as = Choice(choices=MODELS_AS, default=REQUESTED)

    def validate_group_by(self, value: list[str]) -> list[str]:
        allowed = {"workspace_id", "description"}
        if "description" in value and not allowed.issuperset(value):
            raise serializers.ValidationError("description can be combined with workspace_id only")
        return value


class CostReportView(ReportView):
    """Return cost by day and group, in cents."""

    parameters = CostReportParameters
    schema = openapi_schemas.AdminApiSchema()
    answer = openapi_schemas.COST_REPORT

    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        window, groups, names = query["window"], query.get("group_by", []), query["models_as"]
        if "description" in groups:
            results = cost_by_token_type(
                self.reader, window, names, by_team="workspace_id" in groups
            )
        else:
            sums_by_bucket = group_usage(
                self.reader, window, groups, build_condition({}), COST_COUNTS, models_as=names
            )
            results = {
                number: [cost_row(cost_of(sums), dimensions, sums) for dimensions, sums in rows]
                for number, rows in sums_by_bucket.items()
            }
        return Response(bucket_page(window, results))


EMPTY_COST: Final[Row] = dict.fromkeys(
    (
        "description",
        "cost_type",
        "token_type",
        "model",
        "service_tier",
        "context_window",
        "inference_geo",
        "workspace_id",
    )
)


def cost_row(nanousd: Decimal | int | None, dimensions: Row, sums: Counts | None = None) -> Row:
    row = {"amount": cents(nanousd), "currency": "USD", **EMPTY_COST, **dimensions}
    if sums is not None and sums["unpriced"]:
        # This is an additional field: the amount is a lower bound.
        row["unpriced_requests"] = sums["unpriced"]
    return row


TOKEN_TYPES: Final = {
    "input": ("uncached_input_tokens", "Input Tokens"),
    "output": ("output_tokens", "Output Tokens"),
    "cache_read": ("cache_read_input_tokens", "Input Tokens, Cache Hit"),
    "cache_write_5m": (
        "cache_creation.ephemeral_5m_input_tokens",
        "Input Tokens, Cache Write (5m)",
    ),
    "cache_write_1h": (
        "cache_creation.ephemeral_1h_input_tokens",
        "Input Tokens, Cache Write (1h)",
    ),
}


def cost_by_token_type(
    reader: Reader, window: Window, models_as: str, *, by_team: bool
) -> dict[int, list[Row]]:
    """Return, by bucket number (day), rows with the cost by model, service tier and token type."""
    time_range = TimeRange(window.edges, window.width, load_zone("UTC"))
    model_of = "model_upstream" if models_as == UPSTREAM else "model"
    groups = [model_of, "service_tier", *(["team"] if by_team else [])]
    counts = [f"cost_{name}_nanousd" for name in TOKEN_TYPES]
    results: dict[int, list[Row]] = {}
    table = usage(reader, time_range, groups, counts=counts)
    for (number, key), sums in sorted(table.items(), key=lambda one: str(one[0])):
        model, tier, *team = key
        dimensions = {"workspace_id": workspace_id(team[0])} if team else {}
        results.setdefault(number, []).extend(
            cost_row(amount, _description(name, model, tier or "standard") | dimensions)
            for name in TOKEN_TYPES
            if (amount := sums[f"cost_{name}_nanousd"])
        )
    return results


def _description(name: str, model: str, tier: str) -> Row:
    token_type, label = TOKEN_TYPES[name]
    return {
        "description": f"{model} Usage - {label}",
        "cost_type": "tokens",
        "token_type": token_type,
        "model": model,
        "service_tier": tier,
    }
