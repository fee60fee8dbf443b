"""GET /api/v1/me/: what an ordinary key may know of itself."""

from datetime import datetime
from typing import Any

from django.http import HttpResponseBase
from django.utils.timezone import now
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.models import ApiKey
from proxy.visibility import Reader

from .access import IsKnown
from .answers import Row
from .base import ReportView
from .budgets import budgets_over, state_of
from .spans import Span, ceil_quarter, midnight, zone_named
from .sums import columns_of, usage
from .usage import CountColumns, total_of


class Spent(CountColumns):
    starting_at = serializers.CharField()


class MeAnswer(serializers.Serializer[Any]):
    kind = serializers.CharField(help_text="key or user")
    name = serializers.CharField()
    team = serializers.CharField(allow_null=True)
    scopes = serializers.ListField(child=serializers.CharField())
    limits = serializers.JSONField()
    models_allowed = serializers.ListField(child=serializers.CharField())
    expires_at = serializers.CharField(allow_null=True)
    this_month = Spent()
    budgets = serializers.ListField(child=serializers.DictField())


class MeView(ReportView):
    """The caller: rights, limits, own use of this month (UTC) and the budgets that hold for it."""

    permission_classes = (IsKnown,)

    @extend_schema(responses=MeAnswer)
    def get(self, request: Request) -> HttpResponseBase:
        self.asked()
        key = request.auth if isinstance(request.auth, ApiKey) else None
        return Response({**_about(request, key), **self._use(), "budgets": _budgets(request, key)})

    def _use(self) -> Row:
        own = Reader(user=self.reader.user, key_id=self.reader.key_id)
        utc = zone_named("UTC")
        start = midnight(now().date().replace(day=1), utc)
        span = Span([start, ceil_quarter(now())], "all", utc)
        counts = columns_of(total_of(usage(own, span, [])))
        return {"this_month": {"starting_at": span.local(start), **counts}}


def _about(request: Request, key: ApiKey | None) -> Row:
    if key is None:
        name = request.user.get_username()
        return {
            "kind": "user",
            "name": name,
            "team": None,
            "scopes": [],
            "limits": {},
            "models_allowed": [],
            "expires_at": None,
        }
    return {
        "kind": "key",
        "name": key.name,
        "team": key.team.name,
        "scopes": key.scopes,
        "limits": {**key.team.limits, **key.limits},
        "models_allowed": key.models_allowed or key.team.models_allowed,
        "expires_at": _iso(key.expires),
    }


def _iso(at: datetime | None) -> str | None:
    return at.isoformat().replace("+00:00", "Z") if at else None


def _budgets(request: Request, key: ApiKey | None) -> list[Row]:
    user = request.user if request.user.is_authenticated else None
    return [state_of(budget) for budget in budgets_over(key, user)]
