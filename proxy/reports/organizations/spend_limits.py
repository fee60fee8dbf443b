"""Budgets as the spend limits of Anthropic's Admin API."""

from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from django.db.models import QuerySet
from django.http import HttpResponseBase
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.ledger.maintenance.export import account_id, key_id, workspace_id
from proxy.models import ApiKey, Budget, Period
from proxy.money import cents
from proxy.permissions.row_permissions import Reader, visible_budgets
from proxy.reports.core.query_parameters import Number
from proxy.reports.core.rendering import paginate
from proxy.reports.usage.budgets import state_of
from proxy.times import rfc3339

from . import openapi_schemas
from .admin_api_views import AdminApiView
from .buckets import AdminApiParameters, repeatable

Row = dict[str, Any]

PERIODS: Final = {Period.DAY: "daily", Period.WEEK: "weekly", Period.MONTH: "monthly"}


class LimitParameters(AdminApiParameters):
    limit = Number(min_value=1, max_value=1000, default=20)
    page = serializers.CharField(max_length=500, default="")
    scope_type = repeatable()
    period = repeatable(list(PERIODS.values()))
    workspace_id = serializers.CharField(max_length=200, required=False)
    user_ids = repeatable()


class SpendLimitsView(AdminApiView):
    """List budgets as spend limits.

    The scope type ``api_key`` (a budget of one key) is not in Anthropic's API.
    """

    parameters = LimitParameters
    answer = openapi_schemas.page_schema(openapi_schemas.LIMIT)

    def rows(self) -> list[Row]:
        return [limit_row(budget) for budget in _spend_limits(self.reader)]

    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        rows = [row for row in self.rows() if _matches(row, query)]
        return Response(paginate(rows, query))


def _spend_limits(reader: Reader) -> QuerySet[Budget]:
    """Return the budgets for all models: Anthropic's limits cannot be of some models only."""
    return visible_budgets(reader).filter(models_covered=[]).order_by("pk")


def _matches(row: Row, query: Row) -> bool:
    scope = row["scope"]
    tests = (
        (query.get("scope_type"), scope["type"]),
        (query.get("period"), row["period"]),
        (query.get("user_ids"), (row.get("actor") or scope).get("user_id")),
    )
    if query.get("workspace_id") and scope.get("workspace_id") != query["workspace_id"]:
        return False
    return all(not accepted or value in accepted for accepted, value in tests)


class EffectiveView(SpendLimitsView):
    """List each limit with each actor it applies to, and the spend in the current period."""

    answer = openapi_schemas.page_schema(openapi_schemas.EFFECTIVE)

    def rows(self) -> list[Row]:
        return [row for budget in _spend_limits(self.reader) for row in effective_rows(budget)]


def effective_rows(budget: Budget) -> list[Row]:
    spent = Decimal(state_of(budget)["spent_usd"]).scaleb(9)
    limit = limit_row(budget)
    shared = {name: limit[name] for name in ("amount", "currency", "period", "scope")} | {
        "spend_limit_id": limit["id"],
        "source": limit["scope"],
        "period_to_date_spend": cents(spent),
    }
    return [{"actor": actor, **shared} for actor in actors_of(budget)]


def actors_of(budget: Budget) -> list[Row]:
    """Return the actors to which a budget applies; a team's budget applies to each team key."""
    if budget.user is not None:
        return [
            {
                "type": "user_actor",
                "user_id": account_id(budget.user.get_username()),
                "name": budget.user.get_username(),
                "email_address": budget.user.email or None,
                "deleted": False,
            }
        ]
    keys = [budget.key_id] if budget.key_id is not None else _keys_of(budget)
    return [{"type": "scoped_api_key_actor", "scoped_api_key_id": key_id(pk)} for pk in keys]


def _keys_of(budget: Budget) -> list[int]:
    keys = ApiKey.objects.filter(team=budget.team, revoked=None).order_by("pk")
    return list(keys.values_list("pk", flat=True))


def limit_row(budget: Budget) -> Row:
    created_at = rfc3339(_created_at(budget), "seconds")
    return {
        "id": f"splim_{budget.pk}",
        "type": "spend_limit",
        "amount": str(int(budget.usd * 100)),
        "currency": "USD",
        "period": PERIODS.get(Period(budget.period), budget.period),
        "scope": scope_of(budget),
        "is_enabled": True,
        "created_at": created_at,
        "updated_at": created_at,
    }


def _created_at(budget: Budget) -> datetime:
    """Return the creation time of the budget's owner, because budgets have none themselves."""
    if budget.team:
        return budget.team.created
    return budget.key.created if budget.key else budget.user.date_joined  # type: ignore[union-attr]  # a budget has exactly one owner


def scope_of(budget: Budget) -> Row:
    if budget.team:
        return {"type": "workspace", "workspace_id": workspace_id(budget.team.name)}
    if budget.key_id is not None:
        return {"type": "api_key", "api_key_id": key_id(budget.key_id)}
    return {"type": "user", "user_id": account_id(str(budget.user))}
