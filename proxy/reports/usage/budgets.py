"""The budgets with their state, and GET /api/v1/me/: what applies to the caller."""

import re
from datetime import datetime
from decimal import Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo

from django.db.models import Q, QuerySet
from django.http import Http404, HttpResponseBase
from django.utils.timezone import now
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.models import ApiKey, Budget, Period
from proxy.money import usd
from proxy.permissions.row_permissions import Reader, visible_budgets
from proxy.reports.core.base_views import ReportView
from proxy.reports.core.permissions import IsKeyOrStaff
from proxy.reports.core.references import Reference, reference_of
from proxy.reports.core.rendering import Row
from proxy.reports.core.time_ranges import (
    TimeRange,
    ceil_quarter,
    load_zone,
    midnight,
    period_of_day,
)
from proxy.times import rfc3339

from .metrics import CountColumns, merge_counts, usage_columns
from .rollup_queries import usage

BUCKETS: Final = {Period.DAY: "1d", Period.WEEK: "1w", Period.MONTH: "1mo"}
BUDGET_ID: Final = re.compile(r"budget_([0-9]{1,18})", re.ASCII)


class BudgetState(serializers.Serializer[Any]):
    id = serializers.CharField()
    owner = serializers.CharField(help_text="team:name, key:team/name or user:name")
    models_covered = serializers.ListField(
        child=serializers.CharField(), help_text="Names or globs; empty: all models."
    )
    period = serializers.CharField()
    tz = serializers.CharField()
    hard = serializers.BooleanField()
    starting_at = serializers.CharField()
    resets_at = serializers.CharField()
    limit_usd = serializers.CharField()
    spent_usd = serializers.CharField(
        help_text="Settled requests only. A lower bound if some requests have no price."
    )
    left_usd = serializers.CharField()
    unpriced_requests = serializers.IntegerField()
    forecast_usd = serializers.CharField(
        help_text="Projected spend at the end of the period, at the current rate."
    )
    state = serializers.CharField(help_text="ok, near (80 %) or over")


def period_of(budget: Budget, at: datetime) -> tuple[datetime, datetime]:
    """Return start and end of the budget's period that contains ``at``, as UTC instants.

    Days, weeks and months are those of the budget's time zone; UTC replaces an unknown zone.
    """
    try:
        zone = ZoneInfo(budget.zone)
    except (KeyError, ValueError, OSError):
        zone = ZoneInfo("UTC")
    days = period_of_day(at.astimezone(zone).date(), BUCKETS[Period(budget.period)])
    start, end = (midnight(day, zone) for day in days)
    return start, end


def state_of(budget: Budget) -> Row:
    """Return the budget as JSON with the cost of the current period, from the usage rollups."""
    at = now()
    start, end = period_of(budget, at)
    spent, unpriced = budget.sums_of_usage(start, end, "cost_nanousd", "unpriced")
    limit = int(budget.usd * 10**9)
    elapsed = max(Decimal(str((at - start) / (end - start))), Decimal("0.000001"))
    return {
        "id": f"budget_{budget.pk}",
        "owner": owner_of(budget),
        "models_covered": budget.models_covered,
        "period": budget.period,
        "tz": budget.zone,
        "hard": budget.hard,
        "starting_at": rfc3339(start),
        "resets_at": rfc3339(end),
        "limit_usd": usd(limit),
        "spent_usd": usd(spent),
        "left_usd": usd(max(0, limit - spent)),
        "unpriced_requests": unpriced,
        "forecast_usd": usd(int(spent / elapsed)),
        "state": "over" if spent >= limit else "near" if spent * 10 >= limit * 8 else "ok",
    }


def owner_of(budget: Budget) -> str:
    if budget.team:
        return f"team:{budget.team.name}"
    return f"key:{budget.key}" if budget.key else f"user:{budget.user}"


def budgets_over(key: ApiKey | None, user: Any) -> QuerySet[Budget]:
    """Return the budgets that apply to requests with this key or of this user."""
    condition = Q(pk__in=())
    if key is not None:
        condition |= Q(key=key) | Q(team=key.team_id)
        user = user or key.user
    if user is not None:
        condition |= Q(user=user.pk)
    return Budget.objects.filter(condition).select_related("team", "key__team", "user")


class BudgetStatusView(ReportView):
    """Return one budget with its state."""

    answer = BudgetState

    def get(self, request: Request, budget_id: str) -> HttpResponseBase:
        self.validated_query()
        match = BUDGET_ID.fullmatch(budget_id)
        budget = match and visible_budgets(self.reader).filter(pk=int(match[1])).first()
        if not budget:
            raise Http404("no such budget")
        return Response(state_of(budget))


class Spent(CountColumns):
    starting_at = serializers.CharField()


class MeAnswer(serializers.Serializer[Any]):
    kind = serializers.CharField(help_text="key or user")
    id = serializers.CharField(help_text="The id of the key or the user.")
    name = serializers.CharField()
    team = Reference("team", allow_null=True)
    scopes = serializers.ListField(child=serializers.CharField())
    limits = serializers.JSONField()
    models_allowed = serializers.ListField(child=serializers.CharField())
    expires_at = serializers.CharField(allow_null=True)
    this_month = Spent()
    budgets = serializers.ListField(child=serializers.DictField())


class MeView(ReportView):
    """Return the caller: permissions, limits, usage of this month (UTC) and budgets."""

    permission_classes = (IsKeyOrStaff,)
    answer = MeAnswer

    def get(self, request: Request) -> HttpResponseBase:
        self.validated_query()
        key = request.auth if isinstance(request.auth, ApiKey) else None
        return Response(
            {**_identity(request, key), **self._month_usage(), "budgets": _budgets(request, key)}
        )

    def _month_usage(self) -> Row:
        own = Reader(user=self.reader.user, key_id=self.reader.key_id)
        utc = load_zone("UTC")
        start = midnight(now().date().replace(day=1), utc)
        time_range = TimeRange([start, ceil_quarter(now())], "all", utc)
        counts = usage_columns(merge_counts(usage(own, time_range, []).values()))
        return {"this_month": {"starting_at": time_range.local(start), **counts}}


def _identity(request: Request, key: ApiKey | None) -> Row:
    if key is None:
        name = request.user.get_username()
        return {
            "kind": "user",
            "id": name,
            "name": name,
            "team": None,
            "scopes": [],
            "limits": {},
            "models_allowed": [],
            "expires_at": None,
        }
    return {
        "kind": "key",
        **(reference_of(key) or {}),
        "team": reference_of(key.team),
        "scopes": key.scopes,
        "limits": _limits_of(key),
        "models_allowed": key.models_allowed or key.team.models_allowed,
        "expires_at": rfc3339(key.expires),
    }


def _limits_of(key: ApiKey) -> Row:
    """Return the limits of the key, or else of its team; those by model are added for each name."""
    team, own = key.team.limits, key.limits
    models = {**team.get("models", {}), **own.get("models", {})}
    return {**team, **own} | ({"models": models} if models else {})


def _budgets(request: Request, key: ApiKey | None) -> list[Row]:
    user = request.user if request.user.is_authenticated else None
    return [state_of(budget) for budget in budgets_over(key, user)]
