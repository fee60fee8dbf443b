"""The lists of Anthropic's Admin API: keys, users and workspaces, without secrets."""

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from django.contrib.auth import get_user_model
from django.db.models import Q, QuerySet
from django.http import Http404, HttpResponseBase
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.ledger.maintenance.export import account_id, key_id, workspace_id
from proxy.models import ApiKey, Team
from proxy.permissions.key_validity import RELATED, Reason, ends_of, refusal
from proxy.permissions.row_permissions import Reader, visible_keys, visible_teams
from proxy.reports.core.base_views import ReportView
from proxy.reports.core.query_parameters import Choice, Number
from proxy.secrets import derive
from proxy.times import rfc3339

from . import openapi_schemas
from .buckets import AdminApiParameters, repeatable

Row = dict[str, Any]


def organization_id() -> str:
    """Return the organization id, a digest of Django's secret key that does not reveal the key."""
    return str(uuid.UUID(bytes=derive("organization id")[:16], version=4))


class AdminApiView(ReportView):
    """Base of the Admin API's views, with their own parameters and response schemas."""

    parameters = AdminApiParameters
    schema = openapi_schemas.AdminApiSchema()
    answer: ClassVar[openapi_schemas.Schema] = {}


class MeView(AdminApiView):
    """Return the organization: this gateway."""

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


class ListView(AdminApiView):
    """Base of the lists: ``{data, has_more, first_id, last_id}``, paged in memory."""

    parameters = ListParameters

    def rows(self, query: Row) -> list[Row]:
        raise NotImplementedError

    def get(self, request: Request, **_: str) -> HttpResponseBase:
        query = self.validated_query()
        rows = self.rows(query)
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

    parameters = KeyParameters
    answer = openapi_schemas.list_schema(openapi_schemas.KEY)

    def rows(self, query: Row) -> list[Row]:
        rows = [key_row(key) for key in _keys(self.reader).order_by("-pk")]
        tests: dict[str, Callable[[Row], Any]] = {
            "status": lambda row: row["status"],
            "workspace_id": lambda row: row["workspace_id"],
            "created_by_user_id": lambda row: (row["created_by"] or {}).get("id"),
        }
        for name, get in tests.items():
            if query.get(name):
                rows = [row for row in rows if get(row) == query[name]]
        return rows


class KeyView(AdminApiView):
    """Return one gateway key."""

    answer = openapi_schemas.KEY

    def get(self, request: Request, ident: str) -> HttpResponseBase:
        self.validated_query()
        return Response(_find([key_row(key) for key in _keys(self.reader)], ident))


def _keys(reader: Reader) -> QuerySet[ApiKey]:
    return visible_keys(reader).select_related(*RELATED)


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


def users_of(reader: Reader) -> QuerySet[Any]:
    """Return the users whom the reader may see: all, or those with a key in its teams."""
    users = get_user_model()._default_manager.order_by("pk")  # noqa: SLF001  # documented by Django
    if reader.everything:
        return users.all()
    teams = Q(apikey__team__ledger_id__in=reader.teams)
    return users.filter(teams).distinct()


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

    parameters = UserParameters
    answer = openapi_schemas.list_schema(openapi_schemas.USER)

    def rows(self, query: Row) -> list[Row]:
        users = users_of(self.reader)
        if query.get("email"):
            users = users.filter(email__iexact=query["email"])
        rows = [user_row(user) for user in users]
        return [row for row in rows if not query.get("roles") or row["role"] in query["roles"]]


class UserView(AdminApiView):
    """Return one user."""

    answer = openapi_schemas.USER

    def get(self, request: Request, ident: str) -> HttpResponseBase:
        self.validated_query()
        return Response(_find([user_row(user) for user in users_of(self.reader)], ident))


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

    parameters = WorkspaceParameters
    answer = openapi_schemas.list_schema(openapi_schemas.WORKSPACE)

    def rows(self, query: Row) -> list[Row]:
        rows = [workspace_row(team) for team in visible_teams(self.reader).order_by("-pk")]
        return [row for row in rows if not query.get("ids") or row["id"] in query["ids"]]


class WorkspaceView(AdminApiView):
    """Return one team as a workspace."""

    answer = openapi_schemas.WORKSPACE

    def get(self, request: Request, ident: str) -> HttpResponseBase:
        self.validated_query()
        return Response(_find([workspace_row(team) for team in visible_teams(self.reader)], ident))


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

    def rows(self, query: Row) -> list[Row]:
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


def _find(rows: list[Row], ident: str) -> Row:
    for row in rows:
        if row["id"] == ident:
            return row
    raise Http404(f"no object {ident[:60]!r}")
