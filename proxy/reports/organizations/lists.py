"""The lists of Anthropic's Admin API: keys, users, workspaces and spend limits, without secrets."""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar, Final

from django.contrib.auth import get_user_model
from django.db.models import Q, QuerySet
from django.http import Http404, HttpResponseBase
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.ledger.maintenance.export import account_id, key_id, workspace_id
from proxy.models import ApiKey, Budget, Period, Team
from proxy.money import cents
from proxy.permissions.key_validity import RELATED, Reason, ends_of, refusal
from proxy.permissions.row_permissions import Reader, visible_budgets, visible_keys, visible_teams
from proxy.reports.core.base_views import ReportView
from proxy.reports.core.query_parameters import Choice, Number, Values
from proxy.reports.core.rendering import Row, paginate
from proxy.reports.usage.budgets import state_of
from proxy.secrets import derive
from proxy.times import rfc3339

from . import openapi_schemas

Shape = type[serializers.Serializer[Any]]


def organization_id() -> str:
    """Return the organization id, a digest of Django's secret key that does not reveal the key."""
    return str(uuid.UUID(bytes=derive("organization id")[:16], version=4))


class AdminApiParameters(serializers.Serializer[Any]):
    """Parameters of the Admin API; an unknown parameter gets Anthropic's error message."""

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        for name in self.initial_data:
            if name not in self.fields:
                raise serializers.ValidationError({name[:60]: "Extra inputs are not permitted"})
        return attrs


def repeatable(choices: Sequence[str] = (), help_text: str | None = None) -> Values:
    """Return a field for a parameter that may be repeated as ``name`` or ``name[]``."""
    if choices:
        return Values(child=Choice(choices=list(choices)), help_text=help_text)
    return Values(help_text=help_text)


class MeView(ReportView):
    """Return the organization: this gateway."""

    parameters = AdminApiParameters
    answer = openapi_schemas.ORGANIZATION

    def get(self, request: Request) -> HttpResponseBase:
        self.validated_query()
        ident = organization_id()
        return Response({"id": ident, "type": "organization", "name": "Messages Bridge"})


class ListParameters(AdminApiParameters):
    limit = Number(min_value=1, max_value=1000, default=20)
    after_id = serializers.CharField(
        max_length=200, default="", help_text="The `last_id` of the previous page."
    )
    before_id = serializers.CharField(
        max_length=200, default="", help_text="The `first_id` of the following page."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs.get("after_id") and attrs.get("before_id"):
            raise serializers.ValidationError({"before_id": "not together with after_id"})
        return super().validate(attrs)


class ListView(ReportView):
    """Base of the lists: ``{data, has_more, first_id, last_id}``, paged in memory."""

    parameters: ClassVar[Shape] = ListParameters
    filters: ClassVar[Mapping[str, Callable[[Row, Any], bool]]] = {}
    """Parameter -> whether a row has its value."""
    of_one: ClassVar[bool] = False
    """Whether the view returns only the row whose id is in the path."""

    def rows(self) -> list[Row]:
        raise NotImplementedError

    def get(self, request: Request, ident: str = "") -> HttpResponseBase:
        query = self.validated_query()
        if self.of_one:
            for row in self.rows():
                if row["id"] == ident:
                    return Response(row)
            raise Http404(f"no object {ident[:60]!r}")
        chosen = [
            (matches, query[name]) for name, matches in self.filters.items() if query.get(name)
        ]
        rows = [row for row in self.rows() if all(test(row, value) for test, value in chosen)]
        ids = [row["id"] for row in rows]
        start, stop = self._page_bounds(query, ids)
        page_rows = rows[start:stop]
        backwards = bool(query["before_id"])
        return Response(
            {
                "data": page_rows,
                "has_more": start > 0 if backwards else stop < len(rows),
                "first_id": page_rows[0]["id"] if page_rows else None,
                "last_id": page_rows[-1]["id"] if page_rows else None,
            }
        )

    def _page_bounds(self, query: Row, ids: Sequence[str]) -> tuple[int, int]:
        for name in ("after_id", "before_id"):
            if query[name] and query[name] not in ids:
                message = f"no object {query[name][:60]!r} in this list"
                raise serializers.ValidationError({name: message})
        if query["before_id"]:
            stop = ids.index(query["before_id"])
            return max(0, stop - query["limit"]), stop
        start = ids.index(query["after_id"]) + 1 if query["after_id"] else 0
        return start, min(len(ids), start + query["limit"])


KEY_STATES: Final = ("active", "inactive", "archived", "expired")


class KeyParameters(ListParameters):
    status = Choice(choices=KEY_STATES, required=False)
    workspace_id = serializers.CharField(max_length=200, required=False)
    created_by_user_id = serializers.CharField(max_length=200, required=False)


class KeysView(ListView):
    """List gateway keys, newest first."""

    parameters: ClassVar[Shape] = KeyParameters
    answer = openapi_schemas.list_schema(openapi_schemas.KEY)
    filters: ClassVar = {
        "status": lambda row, value: row["status"] == value,
        "workspace_id": lambda row, value: row["workspace_id"] == value,
        "created_by_user_id": lambda row, value: (row["created_by"] or {}).get("id") == value,
    }

    def rows(self) -> list[Row]:
        keys = visible_keys(self.reader).select_related(*RELATED).order_by("-pk")
        return [key_row(key) for key in keys]


class KeyView(KeysView):
    """Return one gateway key."""

    parameters, answer, of_one = AdminApiParameters, openapi_schemas.KEY, True


STATUSES: Final = {None: "active", Reason.EXPIRED: "expired"}
"""Status by the reason why the gateway rejects the key; other reasons mean ``inactive``."""


def key_row(key: ApiKey) -> Row:
    reason = refusal(ends_of(key), time.time())
    owner = account_id(key.user.get_username()) if key.user else None
    workspace = workspace_id(key.team.name)
    return {
        "id": key_id(key.pk),
        "type": "api_key",
        "name": key.name,
        "status": STATUSES.get(reason, "inactive"),
        "created_at": rfc3339(key.created, "seconds"),
        "created_by": {"id": owner, "type": "user"} if owner else None,
        "partial_key_hint": f"{key.prefix}...",
        "expires_at": rfc3339(key.expires, "seconds"),
        "principal": {"type": "user_actor", "user_id": owner} if owner else None,
        "scope": {"type": "workspace", "workspace_id": workspace},
        "workspace_id": workspace,
    }


def user_row(user: Any) -> Row:
    return {
        "id": account_id(user.get_username()),
        "type": "user",
        "email": user.email,
        "name": user.get_full_name() or user.get_username(),
        "role": "admin" if user.is_superuser else "developer" if user.is_staff else "user",
        "added_at": rfc3339(user.date_joined, "seconds"),
    }


class UserParameters(ListParameters):
    email = serializers.CharField(max_length=254, required=False)
    roles = repeatable()


class UsersView(ListView):
    """List users, in the order of their creation."""

    parameters: ClassVar[Shape] = UserParameters
    answer = openapi_schemas.list_schema(openapi_schemas.USER)
    filters: ClassVar = {
        "email": lambda row, value: row["email"].lower() == value.lower(),
        "roles": lambda row, values: row["role"] in values,
    }

    def rows(self) -> list[Row]:
        """Return the users whom the caller may see: all, or those with a key in its teams."""
        users = get_user_model()._default_manager.order_by("pk")  # noqa: SLF001  # documented by Django
        if not self.reader.everything:
            teams = Q(apikey__team__ledger_id__in=self.reader.teams)
            users = users.filter(teams).distinct()
        return [user_row(user) for user in users]


class UserView(UsersView):
    """Return one user."""

    parameters, answer, of_one = AdminApiParameters, openapi_schemas.USER, True


class WorkspaceParameters(ListParameters):
    include_archived = serializers.BooleanField(
        default=False, help_text="Without effect: teams are not archived."
    )
    include_default = serializers.BooleanField(
        default=True, help_text="Without effect: there is no default workspace."
    )
    ids = repeatable()


class WorkspacesView(ListView):
    """List teams as workspaces, newest first."""

    parameters: ClassVar[Shape] = WorkspaceParameters
    answer = openapi_schemas.list_schema(openapi_schemas.WORKSPACE)
    filters: ClassVar = {"ids": lambda row, values: row["id"] in values}

    def rows(self) -> list[Row]:
        return [workspace_row(team) for team in visible_teams(self.reader).order_by("-pk")]


class WorkspaceView(WorkspacesView):
    """Return one team as a workspace."""

    parameters, answer, of_one = AdminApiParameters, openapi_schemas.WORKSPACE, True


def workspace_row(team: Team) -> Row:
    return {
        "id": workspace_id(team.name),
        "type": "workspace",
        "name": team.name,
        "display_color": "#6C5BB9",
        "compartment_id": f"cmpt_{team.pk}",
        "data_residency": {
            "allowed_inference_geos": "unrestricted",
            "default_inference_geo": "global",
            "workspace_geo": "us",
        },
        "external_key_id": None,
        "user_profile_id": None,
        "created_at": rfc3339(team.created, "seconds"),
        "archived_at": None,
        "tags": {},
    }


class MembersView(ListView):
    """List the users who have a key in the team."""

    answer = openapi_schemas.list_schema(openapi_schemas.MEMBER)

    def rows(self) -> list[Row]:
        ident = str(self.kwargs["ident"])
        teams = [team for team in visible_teams(self.reader) if workspace_id(team.name) == ident]
        if not teams:
            raise Http404("no such workspace")
        keys = ApiKey.objects.filter(team=teams[0], user__isnull=False).select_related("user")
        names = sorted({key.user.get_username() for key in keys if key.user})
        return [
            {
                "id": account_id(name),
                "type": "workspace_member",
                "user_id": account_id(name),
                "workspace_id": ident,
                "workspace_role": "workspace_developer",
            }
            for name in names
        ]


PERIODS: Final = {Period.DAY: "daily", Period.WEEK: "weekly", Period.MONTH: "monthly"}


class LimitParameters(AdminApiParameters):
    limit = Number(min_value=1, max_value=1000, default=20)
    page = serializers.CharField(max_length=500, default="")
    scope_type = repeatable()
    period = repeatable(list(PERIODS.values()))
    workspace_id = serializers.CharField(max_length=200, required=False)
    user_ids = repeatable()


class SpendLimitsView(ReportView):
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
