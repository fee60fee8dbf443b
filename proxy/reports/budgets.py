"""Budgets and their state: spent, left, and where the period ends."""

import re
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo

from django.db.models import Q, QuerySet, Sum
from django.http import Http404, HttpResponseBase
from django.utils.timezone import now
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.models import ApiKey, Budget, Period, QuarterUsage
from proxy.visibility import visible_budgets

from .answers import Row, columns_of
from .base import ReportView
from .spans import DAY, midnight
from .sums import usd

IDENT: Final = re.compile(r"(?:budget_)?([0-9]{1,18})")


class BudgetState(serializers.Serializer[Any]):
    id = serializers.CharField()
    owner = serializers.CharField(help_text="team:name, key:team/name or user:name")
    period = serializers.CharField()
    tz = serializers.CharField()
    hard = serializers.BooleanField()
    starting_at = serializers.CharField()
    resets_at = serializers.CharField()
    limit_usd = serializers.CharField()
    spent_usd = serializers.CharField(
        help_text="Settled requests only; a floor if some lack a price."
    )
    left_usd = serializers.CharField()
    unpriced_requests = serializers.IntegerField()
    forecast_usd = serializers.CharField(help_text="At the pace so far, at the period's end.")
    state = serializers.CharField(help_text="ok, near (80 %) or over")


class BudgetsAnswer(serializers.Serializer[Any]):
    data = BudgetState(many=True)  # type: ignore[assignment]  # DRF takes fields off the class


def period_of(budget: Budget, at: datetime) -> tuple[datetime, datetime]:
    """The period around a moment, in the budget's zone. An unknown zone counts as UTC."""
    try:
        zone = ZoneInfo(budget.zone)
    except (KeyError, ValueError, OSError):
        zone = ZoneInfo("UTC")
    day = at.astimezone(zone).date()
    first, following = _days(day, budget.period)
    return midnight(first, zone), midnight(following, zone)


def _days(day: date, period: str) -> tuple[date, date]:
    if period == Period.DAY:
        return day, day + DAY
    if period == Period.WEEK:
        first = day - timedelta(days=day.weekday())
        return first, first + timedelta(days=7)
    first = day.replace(day=1)
    return first, (first + timedelta(days=32)).replace(day=1)


def state_of(budget: Budget) -> Row:
    """What was spent in the running period, from the rollups."""
    at = now()
    start, end = period_of(budget, at)
    rows = QuarterUsage.objects.filter(_owned(budget), start__gte=start, start__lt=end)
    sums = rows.aggregate(cost=Sum("cost_nanousd", default=0), lacking=Sum("unpriced", default=0))
    limit = int(budget.usd * 10**9)
    spent = int(sums["cost"])
    gone = max(Decimal(str((at - start) / (end - start))), Decimal("0.000001"))
    return {
        "id": f"budget_{budget.pk}",
        "owner": owner_of(budget),
        "period": budget.period,
        "tz": budget.zone,
        "hard": budget.hard,
        "starting_at": start.isoformat().replace("+00:00", "Z"),
        "resets_at": end.isoformat().replace("+00:00", "Z"),
        "limit_usd": usd(limit),
        "spent_usd": usd(spent),
        "left_usd": usd(max(0, limit - spent)),
        "unpriced_requests": int(sums["lacking"]),
        "forecast_usd": usd(int(spent / gone)),
        "state": "over" if spent >= limit else "near" if spent * 10 >= limit * 8 else "ok",
    }


def _owned(budget: Budget) -> Q:
    if budget.team:
        return Q(team=budget.team.name)
    if budget.key_id is not None:
        return Q(key_id__in=budget.key_ids)
    return Q(user=budget.user.get_username() if budget.user else "")


def owner_of(budget: Budget) -> str:
    if budget.team:
        return f"team:{budget.team.name}"
    return f"key:{budget.key}" if budget.key else f"user:{budget.user}"


def budgets_over(key: ApiKey | None, user: Any) -> QuerySet[Budget]:
    """The budgets that a request of this key, or of this user, counts against."""
    condition = Q(pk__in=())
    if key is not None:
        condition |= Q(key=key) | Q(team=key.team_id)
        user = user or key.user
    if user is not None:
        condition |= Q(user=user.pk)
    return Budget.objects.filter(condition).select_related("team", "key__team", "user")


class BudgetsView(ReportView):
    """Budgets with their state."""

    @extend_schema(responses=BudgetsAnswer)
    def get(self, request: Request) -> HttpResponseBase:
        asked = self.asked()
        rows = [state_of(budget) for budget in visible_budgets(self.reader)]
        if asked["format"] != "json":
            return self.rows_answer(asked, "budgets", rows, columns_of(BudgetState()))
        return Response({"data": rows})


class BudgetView(ReportView):
    """One budget with its state, by its id or by the number in it."""

    @extend_schema(responses=BudgetState)
    def get(self, request: Request, budget_id: str) -> HttpResponseBase:
        self.asked()
        found = IDENT.fullmatch(budget_id)
        budget = found and visible_budgets(self.reader).filter(pk=int(found[1])).first()
        if not budget:
            raise Http404("no such budget")
        return Response(state_of(budget))
