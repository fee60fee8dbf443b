"""GET /api/v1/me/: the permissions, limits, usage and budgets of the caller (key or user)."""

from typing import Any

from django.http import HttpResponseBase
from django.utils.timezone import now
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.models import ApiKey
from proxy.permissions.row_permissions import Reader
from proxy.reports.core.base_views import ReportView
from proxy.reports.core.permissions import IsKeyOrStaff
from proxy.reports.core.references import Reference, reference_of
from proxy.reports.core.rendering import Row
from proxy.reports.core.time_ranges import TimeRange, ceil_quarter, load_zone, midnight
from proxy.times import rfc3339

from .budgets import budgets_over, state_of
from .rollup_queries import usage, usage_columns
from .usage import CountColumns, sum_table


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

    @extend_schema(responses=MeAnswer)
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
        counts = usage_columns(sum_table(usage(own, time_range, [])))
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
