"""The usage and cost reports of Anthropic's Admin API: time buckets, groups, filters and rows.

The dimensions are Anthropic's and this gateway's own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any, ClassVar, Final

from django.db.models import Q
from django.http import HttpResponseBase
from django.utils.dateparse import parse_date
from django.utils.timezone import now
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.ledger.maintenance.export import workspace_id
from proxy.ledger.outcomes.extraction import EDIT_KINDS
from proxy.money import cents
from proxy.reports.core.base_views import ReportView
from proxy.reports.core.dimensions import column_values, shown_rows
from proxy.reports.core.query_parameters import Choice, Number, invalid_range
from proxy.reports.core.rendering import Row, decode_cursor, encode_cursor, paged, paginate
from proxy.reports.core.time_ranges import (
    DAY,
    InvalidTimeRange,
    TimeRange,
    load_zone,
    midnight,
    parse_instant,
)
from proxy.reports.usage.days import GROUPS as OUTCOME_GROUPS
from proxy.reports.usage.days import outcome_row, outcome_sums
from proxy.reports.usage.exchange_queries import usage_or_requests
from proxy.reports.usage.metrics import INPUTS
from proxy.reports.usage.rollup_queries import (
    COST_COUNTS,
    COUNT_NAMES,
    TOKEN_COUNTS,
    Counts,
    cost_of,
    known_tokens,
    refreshed_at,
    sum_known,
    usage,
)
from proxy.times import rfc3339

from . import openapi_schemas
from .dimensions import ANTHROPIC_DIMENSIONS, DIMENSIONS, OWN_DIMENSIONS
from .lists import AdminApiParameters, organization_id, repeatable

WIDTHS: Final = {  # width -> (length, default limit, maximum limit)
    "1d": (timedelta(days=1), 7, 31),
    "1h": (timedelta(hours=1), 24, 168),
    "1m": (timedelta(minutes=1), 60, 1440),
}


@dataclass(frozen=True, slots=True)
class Window(TimeRange):
    """One page of buckets. ``next_start`` is the start of the next page, None on the last page."""

    next_start: datetime | None = None


def bucket_start(at: datetime, length: timedelta) -> datetime:
    """Return the start of the bucket of this length, aligned to UTC, that contains ``at``."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return at - (at - epoch) % length


class WindowParameters(AdminApiParameters):
    starting_at = serializers.CharField(
        max_length=40,
        help_text="Start, inclusive: RFC 3339, rounded down to the start of a bucket.",
    )
    ending_at = serializers.CharField(
        max_length=40, default="", help_text="End, exclusive: RFC 3339. Default: now."
    )
    bucket_width = Choice(choices=list(WIDTHS), default="1d")
    limit = Number(min_value=1, required=False)
    page = serializers.CharField(max_length=500, default="")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        length, default, highest = WIDTHS[attrs["bucket_width"]]
        limit = attrs.get("limit", default)
        if limit > highest:
            message = f"at most {highest} for bucket_width {attrs['bucket_width']}, not {limit}"
            raise serializers.ValidationError({"limit": message})
        try:
            attrs["window"] = self._window(attrs, length, limit)
        except InvalidTimeRange as error:
            raise invalid_range(error) from None
        return attrs

    def _window(self, attrs: dict[str, Any], length: timedelta, limit: int) -> Window:
        utc = load_zone("UTC")
        start = bucket_start(parse_instant(attrs["starting_at"], utc, "starting_at"), length)
        end = parse_instant(attrs["ending_at"], utc, "ending_at") if attrs["ending_at"] else now()
        if end <= start:
            message = f"{rfc3339(end, 'seconds')} is not after {rfc3339(start, 'seconds')}"
            raise InvalidTimeRange(f"ending_at: must be later than starting_at: {message}")
        if attrs["page"]:
            at = datetime.fromisoformat(decode_cursor(attrs["page"], "buckets"))
            start = bucket_start(at, length)
        edges = [start]
        while edges[-1] < end and len(edges) <= limit:
            edges.append(edges[-1] + length)
        if len(edges) == 1:  # the cursor is at or after the end of the range
            edges.append(start + length)
        next_start = edges[-1] if edges[-1] < end else None
        return Window(edges, attrs["bucket_width"], utc, next_start)


REQUESTED: Final = "requested"
UPSTREAM: Final = "upstream"
MODELS_AS: Final = (REQUESTED, UPSTREAM)
"""Which model name a report shows: the client's, or the name that was sent to the upstream."""


def build_condition(query: Mapping[str, Any]) -> Q:
    """Return the values of Anthropic's filters as a condition. An unknown id matches no row."""
    condition = Q()
    renamed = {"models": "model_upstream"} if query.get("models_as") == UPSTREAM else {}
    for name, (column, parse) in FILTERS.items():
        if query.get(name):
            accepted = column_values(column, map(parse, query[name]))
            condition &= Q(**{f"{renamed.get(name, column)}__in": accepted})
    for name in ("inference_geos", "service_account_ids", "speeds"):
        if query.get(name) and query[name] not in (["not_available"], ["standard"]):
            condition &= Q(pk__in=())
    return condition


def _key_number(api_id: str) -> int:
    digits = api_id.removeprefix("apikey_")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 18 else -1


def _strip_prefix(prefix: str) -> Callable[[str], str]:
    return lambda api_id: api_id.removeprefix(prefix) if api_id.startswith(prefix) else "\x00"


FILTERS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "account_ids": ("user", _strip_prefix("user_")),
    "api_key_ids": ("key_id", _key_number),
    "workspace_ids": ("team", _strip_prefix("wrkspc_")),
    "models": ("model_requested", str),
    "service_tiers": ("service_tier", lambda tier: "" if tier == "standard" else tier),
    "context_window": ("context_window", str),
    "context_windows": ("context_window", str),
    "actor_ids": ("key_id", _key_number),
    "session_ids": ("session_id", str),
}


class BucketReport(ReportView):
    """Base of the reports by bucket and group: only the counts and the rows differ.

    If ``models_as`` is "upstream", ``model`` is the name that was sent to the upstream.
    """

    counts: ClassVar[Sequence[str]]

    def row(self, dimensions: Row, sums: Counts, groups: Sequence[str]) -> Row:
        """Return the figures of a group, with its dimensions in the API's format."""
        raise NotImplementedError

    def sums(self, query: Row, groups: Sequence[str]) -> Iterator[tuple[int, Row, Counts]]:
        """Yield (bucket number, dimensions in the API's format, sums), in order."""
        of_upstream = query.get("models_as") == UPSTREAM
        renamed = {"model": "model_upstream"} if of_upstream else {}
        # Two dimensions can be formats of one value: ``account_id`` and ``user``.
        value_names = {
            name: value_name
            for name in groups
            if (value_name := DIMENSIONS[renamed.get(name, name)].name) is not None
        }
        names = list(dict.fromkeys(value_names.values()))
        table = usage_or_requests(
            self.reader, query["window"], names, build_condition(query), self.counts
        )
        for (number, key), sums in sorted(table.items(), key=lambda one: str(one[0])):
            value_of = dict(zip(names, key, strict=True))
            dimensions = {
                name: DIMENSIONS[name].format_value(value_of[value_name])
                for name, value_name in value_names.items()
            }
            yield number, dimensions, sums

    def results(self, query: Row, groups: Sequence[str]) -> Iterator[tuple[int, Row]]:
        """Yield (bucket number, row)."""
        for number, dimensions, sums in self.sums(query, groups):
            yield number, self.row(dimensions, sums, groups)

    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        window = query["window"]
        results: dict[int, list[Row]] = {}
        for number, row in self.results(query, query.get("group_by", [])):
            results.setdefault(number, []).append(row)
        rows = [
            {
                "starting_at": rfc3339(start, "seconds"),
                "ending_at": rfc3339(end, "seconds"),
                "results": results.get(number, []),
            }
            for number, (start, end) in enumerate(pairwise(window.edges))
        ]
        after = window.next_start
        return Response(paged(rows, encode_cursor(rfc3339(after), "buckets") if after else None))


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


class UsageReportView(BucketReport):
    """Return tokens by bucket and group."""

    parameters, answer = UsageReportParameters, openapi_schemas.USAGE_REPORT
    counts = TOKEN_COUNTS

    def row(self, dimensions: Row, sums: Counts, groups: Sequence[str]) -> Row:
        """Return a row of the report.

        Anthropic's dimensions are always present, with null unless they are in ``group_by``. The
        additional dimensions of this gateway are present only if they are in ``group_by``.
        """
        own = {name: None for name in groups if name in OWN_DIMENSIONS}
        return {**token_fields(sums), **dict.fromkeys(ANTHROPIC_DIMENSIONS), **own, **dimensions}


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


class CostReportView(BucketReport):
    """Return cost by day and group, in cents."""

    parameters, answer = CostReportParameters, openapi_schemas.COST_REPORT
    counts = COST_COUNTS

    def row(self, dimensions: Row, sums: Counts, groups: Sequence[str]) -> Row:
        row = cost_row(cost_of(sums), dimensions)
        # This is an additional field: the amount is a lower bound.
        return row | ({"unpriced_requests": sums["unpriced"]} if sums["unpriced"] else {})

    def results(self, query: Row, groups: Sequence[str]) -> Iterator[tuple[int, Row]]:
        """Yield the rows; by ``description``, of each model, service tier and token type."""
        if "description" not in groups:
            yield from super().results(query, groups)
            return
        model_of = "model_upstream" if query["models_as"] == UPSTREAM else "model"
        names = [model_of, "service_tier", *(["team"] if "workspace_id" in groups else [])]
        counts = [f"cost_{name}_nanousd" for name in TOKEN_TYPES]
        table = usage(self.reader, query["window"], names, counts=counts)
        for (number, (model, tier, *team)), sums in sorted(
            table.items(), key=lambda one: str(one[0])
        ):
            for name, (token_type, label) in TOKEN_TYPES.items():
                if amount := sums[f"cost_{name}_nanousd"]:
                    description = {
                        "description": f"{model} Usage - {label}",
                        "cost_type": "tokens",
                        "token_type": token_type,
                        "model": model,
                        "service_tier": tier or "standard",
                    }
                    workspace = {"workspace_id": workspace_id(team[0])} if team else {}
                    yield number, cost_row(amount, description | workspace)


def cost_row(nanousd: int | None, dimensions: Row) -> Row:
    return {
        "amount": cents(nanousd),
        "currency": "USD",
        **dict.fromkeys(openapi_schemas.COST_DIMENSIONS),
        **dimensions,
    }


# Anthropic's name -> name in DIMENSIONS.
ANALYTICS_NAMES: Final[Mapping[str, str]] = {
    "actor": "api_key_id",
    "session_id": "session",
}
ANALYTICS_GROUPS: Final = (*DIMENSIONS, *ANALYTICS_NAMES)
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
    group_by = repeatable(ANALYTICS_GROUPS)
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


class AnalyticsReport(BucketReport):
    """Base of the reports whose rows are not nested in buckets."""

    parameters = AnalyticsParameters

    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        edges, names = query["window"].edges, query.get("group_by", [])
        groups = [ANALYTICS_NAMES.get(name, name) for name in names]
        rows = [
            {
                "starting_at": rfc3339(edges[number], "seconds"),
                "ending_at": rfc3339(edges[number + 1], "seconds"),
                "group": {name: _group_value(name, dimensions) for name in names},
                **self.row(dimensions, sums, groups),
            }
            for number, dimensions, sums in self.sums(query, groups)
        ]
        rows.sort(
            key=lambda row: _sort_value(row, query["order_by"]), reverse=query["order"] == "desc"
        )
        refreshed = {"data_refreshed_at": rfc3339(refreshed_at(), "seconds")}
        return Response({**paginate(rows, query), **refreshed})


def _group_value(name: str, dimensions: Row) -> Any:
    """Return the value of a dimension. An actor is always a key: each request has a key."""
    value = dimensions.get(ANALYTICS_NAMES.get(name, name))
    return {"type": "api_actor", "api_key_id": value} if name == "actor" else value


def _sort_value(row: Row, name: str) -> Any:
    if name == "time":
        return row["starting_at"]
    figures = {**row.get("usage", {}), **row.get("cost", {})}
    return Decimal(figures.get(name) or 0)


class AnalyticsUsageView(AnalyticsReport):
    """Return tokens by bucket and group, as a list of rows."""

    answer = openapi_schemas.ANALYTICS_USAGE
    counts = COUNT_NAMES

    def row(self, dimensions: Row, sums: Counts, groups: Sequence[str]) -> Row:
        return {
            "usage": {
                **token_fields(sums),
                "total_tokens": sum_known(known_tokens(sums, name) for name in (*INPUTS, "output"))
                or 0,
                "requests": sums["requests"],
            }
        }


class AnalyticsCostView(AnalyticsReport):
    """Return cost by bucket and group, as a list of rows."""

    answer = openapi_schemas.ANALYTICS_COST
    counts = COST_COUNTS

    def row(self, dimensions: Row, sums: Counts, groups: Sequence[str]) -> Row:
        amount = cents(cost_of(sums))
        return {
            "cost": {
                "amount": amount,
                "list_amount": amount,
                "currency": "USD",
                "requests": sums["requests"],
            }
        }


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


class ClaudeCodeView(ReportView):
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
            for key, row in shown_rows(ACTOR, [OUTCOME_GROUPS[name] for name in ACTOR], outcomes)
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
