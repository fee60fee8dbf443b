"""The report on budgets: amount spent, amount left, and end of the current period."""

import re
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo

from django.db.models import Q, QuerySet
from django.http import Http404, HttpResponseBase
from django.utils.timezone import now
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.models import ApiKey, Budget, Period
from proxy.money import usd
from proxy.permissions.row_permissions import visible_budgets
from proxy.reports.core.base_views import ReportView
from proxy.reports.core.rendering import Row
from proxy.reports.core.time_ranges import DAY, midnight
from proxy.times import rfc3339

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
    day = at.astimezone(zone).date()
    first, next_first = _days(day, budget.period)
    return midnight(first, zone), midnight(next_first, zone)


def _days(day: date, period: str) -> tuple[date, date]:
    if period == Period.DAY:
        return day, day + DAY
    if period == Period.WEEK:
        first = day - timedelta(days=day.weekday())
        return first, first + timedelta(days=7)
    first = day.replace(day=1)
    return first, (first + timedelta(days=32)).replace(day=1)


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

    @extend_schema(responses=BudgetState)
    def get(self, request: Request, budget_id: str) -> HttpResponseBase:
        self.validated_query()
        match = BUDGET_ID.fullmatch(budget_id)
        budget = match and visible_budgets(self.reader).filter(pk=int(match[1])).first()
        if not budget:
            raise Http404("no such budget")
        return Response(state_of(budget))
