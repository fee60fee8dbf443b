"""GET /v1/organizations/usage_report/messages and /v1/organizations/cost_report."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

from django.http import HttpResponseBase
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.record.export import workspace_id
from proxy.reports.base import ReportView
from proxy.reports.parameters import Choice
from proxy.reports.spans import Span, zone_named
from proxy.reports.sums import COST_COUNTS, TOKEN_COUNTS, Sums, cost_of, known, usage
from proxy.visibility import Reader

from . import shapes
from .groups import ALL, MODELS_AS, OURS, REQUESTED, THEIRS, UPSTREAM, filters, grouped
from .windows import Window, WindowParameters, page, values

Row = dict[str, Any]

TIERS: Final = ("standard", "batch", "priority", "priority_on_demand", "flex", "flex_discount")


class UsageReportParameters(WindowParameters):
    group_by = values(list(ALL))
    account_ids = values()
    api_key_ids = values()
    service_account_ids = values()
    workspace_ids = values()
    models = values()
    service_tiers = values(TIERS)
    context_window = values(("0-200k", "200k-1M"))
    inference_geos = values(("global", "us", "not_available"))
    speeds = values(("standard", "fast"))
    models_as = Choice(choices=MODELS_AS, default=REQUESTED)


class UsageReportView(ReportView):
    """Tokens by bucket and group."""

    parameters = UsageReportParameters
    schema = shapes.WireSchema()
    answer = shapes.USAGE_REPORT

    def get(self, request: Request) -> HttpResponseBase:
        asked = self.asked()
        groups = asked.get("group_by", [])
        found = grouped(
            self.reader,
            asked["window"],
            groups,
            filters(asked),
            TOKEN_COUNTS,
            models_as=asked["models_as"],
        )
        results = {
            number: [usage_row(said, sums, groups) for said, sums in rows]
            for number, rows in found.items()
        }
        return Response(page(asked["window"], results))


def usage_row(said: Row, sums: Sums, groups: Sequence[str]) -> Row:
    """Every dimension of theirs is there, null unless grouped by; ours only when asked for."""
    return {
        **token_fields(sums),
        **dict.fromkeys(THEIRS),
        **{name: None for name in groups if name in OURS},
        **said,
    }


MISSING_FIELDS: Final = {
    "input_missing": "uncached_input_tokens",
    "output_missing": "output_tokens",
    "cache_read_missing": "cache_read_input_tokens",
    "cache_write_missing": "cache_creation",
}


def token_fields(sums: Sums) -> Row:
    """Anthropic's fields, whose types are integers: clients break on a null there.

    So what is unknown is told beside them: ``missing_requests`` is ours, and counts the requests
    without a number, by field. A 0 with as many as the row has requests is not known to be 0.
    """
    fields: Row = {
        "uncached_input_tokens": known(sums, "input") or 0,
        "cache_creation": {
            "ephemeral_5m_input_tokens": known(sums, "cache_write_5m") or 0,
            "ephemeral_1h_input_tokens": known(sums, "cache_write_1h") or 0,
        },
        "cache_read_input_tokens": known(sums, "cache_read") or 0,
        "output_tokens": known(sums, "output") or 0,
        "server_tool_use": {"web_search_requests": sums["web_searches"]},
    }
    missing = {field: sums[name] for name, field in MISSING_FIELDS.items() if sums[name]}
    return {**fields, "missing_requests": missing} if missing else fields


class CostReportParameters(WindowParameters):
    bucket_width = Choice(choices=["1d"], default="1d")
    group_by = values(["workspace_id", "description", "api_key_id", "account_id", "model", *OURS])
    models_as = Choice(choices=MODELS_AS, default=REQUESTED)

    def validate_group_by(self, value: list[str]) -> list[str]:
        alone = {"workspace_id", "description"}
        if "description" in value and not alone.issuperset(value):
            raise serializers.ValidationError("description goes with workspace_id only")
        return value


class CostReportView(ReportView):
    """Cost by day and group, in cents."""

    parameters = CostReportParameters
    schema = shapes.WireSchema()
    answer = shapes.COST_REPORT

    def get(self, request: Request) -> HttpResponseBase:
        asked = self.asked()
        window, groups, names = asked["window"], asked.get("group_by", []), asked["models_as"]
        if "description" in groups:
            results = described(self.reader, window, names, by_team="workspace_id" in groups)
        else:
            found = grouped(self.reader, window, groups, filters({}), COST_COUNTS, models_as=names)
            results = {
                number: [cost_row(cost_of(sums), said, sums) for said, sums in rows]
                for number, rows in found.items()
            }
        return Response(page(window, results))


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


def cents(nanousd: Decimal | int | None) -> str | None:
    """Nano-dollars as a decimal string of cents; unknown stays null."""
    return None if nanousd is None else f"{(Decimal(nanousd) / 10**7).normalize():f}"


def cost_row(nanousd: Decimal | int | None, said: Row, sums: Sums | None = None) -> Row:
    row = {"amount": cents(nanousd), "currency": "USD", **EMPTY_COST, **said}
    if sums is not None and sums["unpriced"]:
        row["unpriced_requests"] = sums["unpriced"]  # ours: the amount is a floor
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


def described(
    reader: Reader, window: Window, models_as: str, *, by_team: bool
) -> dict[int, list[Row]]:
    """Cost by day, model, tier and token type: as each request was priced."""
    span = Span(window.edges, window.width, zone_named("UTC"))
    model_of = "model_upstream" if models_as == UPSTREAM else "model"
    groups = [model_of, "service_tier", *(["team"] if by_team else [])]
    counts = [f"cost_{name}_nanousd" for name in TOKEN_TYPES]
    found: dict[int, list[Row]] = {}
    table = usage(reader, span, groups, counts=counts)
    for (number, key), sums in sorted(table.items(), key=lambda one: str(one[0])):
        model, tier, *team = key
        said = {"workspace_id": workspace_id(team[0])} if team else {}
        found.setdefault(number, []).extend(
            cost_row(amount, _description(name, model, tier or "standard") | said)
            for name in TOKEN_TYPES
            if (amount := sums[f"cost_{name}_nanousd"])
        )
    return found


def _description(name: str, model: str, tier: str) -> Row:
    token_type, words = TOKEN_TYPES[name]
    return {
        "description": f"{model} Usage - {words}",
        "cost_type": "tokens",
        "token_type": token_type,
        "model": model,
        "service_tier": tier,
    }
