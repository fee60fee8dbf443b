"""The lists of Anthropic's Admin API: keys, users, workspaces, spend limits. Secrets never show."""

import time
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar, Final

from django.contrib.auth import get_user_model
from django.db.models import Q, QuerySet
from django.http import Http404, HttpResponseBase
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.key_validity import RELATED, Reason, ends_of, refusal
from proxy.models import ApiKey, Budget, Period, Team
from proxy.record.export import account_id, key_id, workspace_id
from proxy.reports.answers import page_of
from proxy.reports.base import ReportView
from proxy.reports.budgets import state_of
from proxy.reports.parameters import Choice, Number
from proxy.secrets import derive
from proxy.visibility import Reader, visible_budgets, visible_keys, visible_teams

from . import shapes
from .usage_report import cents
from .windows import WireParameters, values, zulu

Row = dict[str, Any]

PERIODS: Final = {Period.DAY: "daily", Period.WEEK: "weekly", Period.MONTH: "monthly"}


def organization_id() -> str:
    """The same for as long as the installation keeps its secret key, and telling nothing of it."""
    return str(uuid.UUID(bytes=derive("organization id")[:16], version=4))


class WireView(ReportView):
    """A view of Anthropic's API: its own parameters and answers."""

    parameters = WireParameters
    schema = shapes.WireSchema()
    answer: ClassVar[shapes.Schema] = {}


class MeView(WireView):
    answer = shapes.ORGANIZATION

    def get(self, request: Request) -> HttpResponseBase:
        self.asked()
        ident = organization_id()
        return Response({"id": ident, "type": "organization", "name": "Messages Bridge"})


class ListParameters(WireParameters):
    limit = Number(min_value=1, max_value=1000, default=20)
    after_id = serializers.CharField(max_length=200, default="")
    before_id = serializers.CharField(max_length=200, default="")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs.get("after_id") and attrs.get("before_id"):
            raise serializers.ValidationError({"before_id": "not together with after_id"})
        return super().validate(attrs)


class ListView(WireView):
    """``{data, has_more, first_id, last_id}``; rows are few, so a page is cut from all of them."""

    parameters = ListParameters

    def rows(self, asked: Row) -> list[Row]:
        raise NotImplementedError

    def get(self, request: Request, **_: str) -> HttpResponseBase:
        asked = self.asked()
        rows = self.rows(asked)
        ids = [row["id"] for row in rows]
        start, stop = self._cut(asked, ids)
        shown = rows[start:stop]
        backwards = bool(asked["before_id"])
        return Response(
            {
                "data": shown,
                "has_more": start > 0 if backwards else stop < len(rows),
                "first_id": shown[0]["id"] if shown else None,
                "last_id": shown[-1]["id"] if shown else None,
            }
        )

    def _cut(self, asked: Row, ids: Sequence[str]) -> tuple[int, int]:
        for name in ("after_id", "before_id"):
            if asked[name] and asked[name] not in ids:
                told = f"no object {asked[name][:60]!r} in this list"
                raise serializers.ValidationError({name: told})
        if asked["before_id"]:
            stop = ids.index(asked["before_id"])
            return max(0, stop - asked["limit"]), stop
        start = ids.index(asked["after_id"]) + 1 if asked["after_id"] else 0
        return start, min(len(ids), start + asked["limit"])


STATES: Final = ("active", "inactive", "archived", "expired")


class KeyParameters(ListParameters):
    status = Choice(choices=STATES, required=False)
    workspace_id = serializers.CharField(max_length=200, required=False)
    created_by_user_id = serializers.CharField(max_length=200, required=False)


class KeysView(ListView):
    parameters = KeyParameters
    answer = shapes.walked(shapes.KEY)

    def rows(self, asked: Row) -> list[Row]:
        rows = [key_row(key) for key in _keys(self.reader).order_by("-pk")]
        tests: dict[str, Callable[[Row], Any]] = {
            "status": lambda row: row["status"],
            "workspace_id": lambda row: row["workspace_id"],
            "created_by_user_id": lambda row: (row["created_by"] or {}).get("id"),
        }
        for name, read in tests.items():
            if asked.get(name):
                rows = [row for row in rows if read(row) == asked[name]]
        return rows


class KeyView(WireView):
    answer = shapes.KEY

    def get(self, request: Request, ident: str) -> HttpResponseBase:
        self.asked()
        return Response(_one([key_row(key) for key in _keys(self.reader)], ident))


def _keys(reader: Reader) -> QuerySet[ApiKey]:
    return visible_keys(reader).select_related(*RELATED)


STATUSES: Final = {None: "active", Reason.EXPIRED: "expired"}
"""By the reason why the key is refused; by any other it is inactive."""


def key_row(key: ApiKey) -> Row:
    reason = refusal(ends_of(key), time.time())
    owner = account_id(key.user.get_username()) if key.user else None
    workspace = workspace_id(key.team.name)
    return {
        "id": key_id(key.pk),
        "type": "api_key",
        "name": key.name,
        "status": STATUSES.get(reason, "inactive"),
        "created_at": zulu(key.created),
        "created_by": {"id": owner, "type": "user"} if owner else None,
        "partial_key_hint": f"{key.prefix}...",
        "expires_at": zulu(key.expires) if key.expires else None,
        "principal": {"type": "user_actor", "user_id": owner} if owner else None,
        "scope": {"type": "workspace", "workspace_id": workspace},
        "workspace_id": workspace,
    }


def users_of(reader: Reader) -> QuerySet[Any]:
    """Everybody, or those who have a key in the reader's teams."""
    users = get_user_model()._default_manager.order_by("pk")  # noqa: SLF001  # Django's own API
    if reader.everything:
        return users.all()
    teams = Q(apikey__team__name__in=reader.teams)
    return users.filter(teams).distinct()


def user_row(user: Any) -> Row:
    return {
        "id": account_id(user.get_username()),
        "type": "user",
        "email": user.email,
        "name": user.get_full_name() or user.get_username(),
        "role": "admin" if user.is_superuser else "developer" if user.is_staff else "user",
        "added_at": zulu(user.date_joined),
    }


class UserParameters(ListParameters):
    email = serializers.CharField(max_length=254, required=False)
    roles = values()


class UsersView(ListView):
    parameters = UserParameters
    answer = shapes.walked(shapes.USER)

    def rows(self, asked: Row) -> list[Row]:
        users = users_of(self.reader)
        if asked.get("email"):
            users = users.filter(email__iexact=asked["email"])
        rows = [user_row(user) for user in users]
        return [row for row in rows if not asked.get("roles") or row["role"] in asked["roles"]]


class UserView(WireView):
    answer = shapes.USER

    def get(self, request: Request, ident: str) -> HttpResponseBase:
        self.asked()
        return Response(_one([user_row(user) for user in users_of(self.reader)], ident))


class WorkspaceParameters(ListParameters):
    include_archived = serializers.BooleanField(default=False)  # teams are never archived
    include_default = serializers.BooleanField(default=True)
    ids = values()


class WorkspacesView(ListView):
    parameters = WorkspaceParameters
    answer = shapes.walked(shapes.WORKSPACE)

    def rows(self, asked: Row) -> list[Row]:
        rows = [workspace_row(team) for team in visible_teams(self.reader).order_by("-pk")]
        return [row for row in rows if not asked.get("ids") or row["id"] in asked["ids"]]


class WorkspaceView(WireView):
    answer = shapes.WORKSPACE

    def get(self, request: Request, ident: str) -> HttpResponseBase:
        self.asked()
        return Response(_one([workspace_row(team) for team in visible_teams(self.reader)], ident))


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
        "created_at": zulu(team.created),
        "archived_at": None,
        "tags": {},
    }


class MembersView(ListView):
    """Who has a key in the team."""

    answer = shapes.walked(shapes.MEMBER)

    def rows(self, asked: Row) -> list[Row]:
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


class LimitParameters(WireParameters):
    limit = Number(min_value=1, max_value=1000, default=20)
    page = serializers.CharField(max_length=500, default="")
    scope_type = values()
    period = values(list(PERIODS.values()))
    workspace_id = serializers.CharField(max_length=200, required=False)
    user_ids = values()


class SpendLimitsView(WireView):
    """Budgets in Anthropic's words. A limit of one key is ours: its scope type is ``api_key``."""

    parameters = LimitParameters
    answer = shapes.turned(shapes.LIMIT)

    def rows(self) -> list[Row]:
        return [limit_row(budget) for budget in visible_budgets(self.reader).order_by("pk")]

    def get(self, request: Request) -> HttpResponseBase:
        asked = self.asked()
        rows = [row for row in self.rows() if _is_asked(row, asked)]
        shown, following = page_of(rows, asked["limit"], asked["page"])
        return Response({"data": shown, "has_more": following is not None, "next_page": following})


def _is_asked(row: Row, asked: Row) -> bool:
    scope = row["scope"]
    tests = (
        (asked.get("scope_type"), scope["type"]),
        (asked.get("period"), row["period"]),
        (asked.get("user_ids"), (row.get("actor") or scope).get("user_id")),
    )
    if asked.get("workspace_id") and scope.get("workspace_id") != asked["workspace_id"]:
        return False
    return all(not wanted or found in wanted for wanted, found in tests)


class EffectiveView(SpendLimitsView):
    """Each limit with each actor it holds for, and what of it was spent in the running period."""

    answer = shapes.turned(shapes.EFFECTIVE)

    def rows(self) -> list[Row]:
        return [
            row
            for budget in visible_budgets(self.reader).order_by("pk")
            for row in effective_rows(budget)
        ]


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
    """A team's limit holds for each of its keys."""
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
    since = zulu(_since(budget))
    return {
        "id": f"splim_{budget.pk}",
        "type": "spend_limit",
        "amount": str(int(budget.usd * 100)),
        "currency": "USD",
        "period": PERIODS.get(Period(budget.period), budget.period),
        "scope": scope_of(budget),
        "is_enabled": True,
        "created_at": since,
        "updated_at": since,
    }


def _since(budget: Budget) -> datetime:
    """Budgets carry no date of their own; their owner's is the earliest they can have."""
    if budget.team:
        return budget.team.created
    return budget.key.created if budget.key else budget.user.date_joined  # type: ignore[union-attr]  # exactly one owner


def scope_of(budget: Budget) -> Row:
    if budget.team:
        return {"type": "workspace", "workspace_id": workspace_id(budget.team.name)}
    if budget.key_id is not None:
        return {"type": "api_key", "api_key_id": key_id(budget.key_id)}
    return {"type": "user", "user_id": account_id(str(budget.user))}


def _one(rows: list[Row], ident: str) -> Row:
    for row in rows:
        if row["id"] == ident:
            return row
    raise Http404(f"no object {ident[:60]!r}")
