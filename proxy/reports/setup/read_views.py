"""Read-only lists of keys, teams, users, models, upstreams and prices, without secrets.

Reading them needs a key with the scope ``admin``, or the session of a user who may see all rows and
has Django's view permission for the table. A team lead may also see the team and its keys.
"""

from datetime import datetime
from typing import Any, ClassVar

from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpResponseBase
from drf_spectacular.utils import extend_schema, extend_schema_view, inline_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.models import ApiKey, Price, Route, Upstream
from proxy.permissions.row_permissions import visible_keys, visible_teams
from proxy.reports.core.base_views import ReportView
from proxy.reports.core.permissions import IsKeyOrStaff, reader_of
from proxy.reports.core.query_parameters import PageParameters
from proxy.reports.core.rendering import Row, column_names, paginate


class MayReadSetup(IsKeyOrStaff):
    message = "this needs a key with the scope 'admin'"

    def has_permission(self, request: Request, view: Any) -> bool:
        if not super().has_permission(request, view):
            return False
        reader = reader_of(request)
        if isinstance(request.auth, ApiKey):
            return reader.everything
        may_read = reader.everything or (view.of_teams and reader.may_report)
        return may_read and bool(request.user.has_perm(view.permission))


class ListView(ReportView):
    """Base of the list views, which return all visible rows of one table in a fixed order."""

    permission_classes = (MayReadSetup,)
    parameters: ClassVar[type[serializers.Serializer[Any]]] = PageParameters
    permission: ClassVar[str]
    name: ClassVar[str]
    row: ClassVar[type[serializers.Serializer[Any]]]
    of_teams: ClassVar[bool] = False
    """Whether rows belong to teams. If so, the lead of a team sees the rows of the team."""

    def get_queryset(self) -> "QuerySet[Any]":
        """Return the rows of the table that the caller may see."""
        raise NotImplementedError

    @staticmethod
    def serialize(row_object: Any) -> Row:
        """Return a row of the table as a JSON object."""
        raise NotImplementedError

    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        rows = [self.serialize(row_object) for row_object in self.get_queryset()]
        if query["format"] != "json":
            return self.rows_response(query, self.name, rows, column_names(self.row()))
        page_rows, next_page = paginate(rows, query["limit"], query["page"])
        return Response(
            {"data": page_rows, "has_more": next_page is not None, "next_page": next_page}
        )


def list_schema(row: type[serializers.Serializer[Any]]) -> Any:
    """Return a decorator that declares a list view's rows in the OpenAPI schema."""
    page = inline_serializer(
        row.__name__.replace("Row", "Page"),
        {
            "data": row(many=True),
            "has_more": serializers.BooleanField(),
            "next_page": serializers.CharField(allow_null=True),
        },
    )
    return extend_schema_view(get=extend_schema(parameters=[PageParameters], responses=page))


def iso(at: datetime | None) -> str | None:
    return at.isoformat().replace("+00:00", "Z") if at else None


class KeyRow(serializers.Serializer[Any]):
    id = serializers.IntegerField(help_text="The key_id of the other reports.")
    name = serializers.CharField()
    team = serializers.CharField()
    user = serializers.CharField(allow_null=True)
    prefix = serializers.CharField(
        help_text="The start of the secret. The secret itself is not stored."
    )
    has_secret = serializers.BooleanField(
        help_text="false: the key is unusable until `createkey --team T --name N` sets a secret."
    )
    scopes = serializers.ListField(child=serializers.CharField())
    models_allowed = serializers.ListField(child=serializers.CharField())
    limits = serializers.JSONField()
    ip_allow = serializers.ListField(child=serializers.CharField())
    options = serializers.JSONField()
    managed = serializers.BooleanField(help_text="True if bridge.toml declares it.")
    created_at = serializers.CharField()
    expires_at = serializers.CharField(allow_null=True)
    revoked_at = serializers.CharField(allow_null=True)
    last_used_at = serializers.CharField(allow_null=True)


@list_schema(KeyRow)
class KeysView(ListView):
    """List gateway keys, including revoked ones."""

    permission, name, row, of_teams = "proxy.view_apikey", "keys", KeyRow, True

    def get_queryset(self) -> "QuerySet[Any]":
        return visible_keys(self.reader).order_by("pk")

    @staticmethod
    def serialize(key: Any) -> Row:
        return {
            "id": key.pk,
            "name": key.name,
            "team": key.team.name,
            "user": key.user.get_username() if key.user else None,
            "prefix": key.prefix,
            "has_secret": key.has_secret,
            "scopes": key.scopes,
            "models_allowed": key.models_allowed,
            "limits": key.limits,
            "ip_allow": key.ip_allow,
            "options": key.options,
            "managed": key.managed,
            "created_at": iso(key.created),
            "expires_at": iso(key.expires),
            "revoked_at": iso(key.revoked),
            "last_used_at": iso(key.last_used),
        }


class TeamRow(serializers.Serializer[Any]):
    name = serializers.CharField()
    store = serializers.CharField(help_text="full, or metadata: conversations are not stored")
    retention_days = serializers.IntegerField()
    models_allowed = serializers.ListField(child=serializers.CharField())
    limits = serializers.JSONField()
    member_keys = serializers.JSONField(
        help_text="Limits of the keys that members make: count, days, scopes, models."
    )
    managed = serializers.BooleanField()
    created_at = serializers.CharField()


@list_schema(TeamRow)
class TeamsView(ListView):
    """List teams with their settings."""

    permission, name, row, of_teams = "proxy.view_team", "teams", TeamRow, True

    def get_queryset(self) -> "QuerySet[Any]":
        return visible_teams(self.reader).order_by("name")

    @staticmethod
    def serialize(team: Any) -> Row:
        return {
            "name": team.name,
            "store": team.store,
            "retention_days": team.retention_days,
            "models_allowed": team.models_allowed,
            "limits": team.limits,
            "member_keys": team.member_keys,
            "managed": team.managed,
            "created_at": iso(team.created),
        }


class UserRow(serializers.Serializer[Any]):
    name = serializers.CharField()
    email = serializers.CharField()
    is_active = serializers.BooleanField()
    is_staff = serializers.BooleanField()
    is_superuser = serializers.BooleanField()
    groups = serializers.ListField(child=serializers.CharField())
    joined_at = serializers.CharField()
    last_login_at = serializers.CharField(allow_null=True)


@list_schema(UserRow)
class UsersView(ListView):
    """List users with their groups."""

    permission, name, row = "auth.view_user", "users", UserRow

    def get_queryset(self) -> "QuerySet[Any]":
        return User.objects.order_by("pk").prefetch_related("groups")

    @staticmethod
    def serialize(user: Any) -> Row:
        return {
            "name": user.get_username(),
            "email": user.email,
            "is_active": user.is_active,
            "is_staff": user.is_staff,
            "is_superuser": user.is_superuser,
            "groups": sorted(group.name for group in user.groups.all()),
            "joined_at": iso(user.date_joined),
            "last_login_at": iso(user.last_login),
        }


class ModelTarget(serializers.Serializer[Any]):
    upstream = serializers.CharField()
    model = serializers.CharField(help_text="Empty: the model name of the request.")
    weight = serializers.IntegerField()


class ModelRow(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    model = serializers.CharField(help_text="The requested model: a name or a glob.")
    team = serializers.CharField(allow_null=True, help_text="null: every team")
    position = serializers.IntegerField(
        help_text="If several globs match, the lowest position is used."
    )
    targets = ModelTarget(many=True)
    managed = serializers.BooleanField()


@list_schema(ModelRow)
class ModelsView(ListView):
    """List the routes: requested models with their targets."""

    permission, name, row = "proxy.view_route", "models", ModelRow

    def get_queryset(self) -> "QuerySet[Any]":
        return Route.objects.select_related("team").prefetch_related("targets__upstream")

    @staticmethod
    def serialize(route: Any) -> Row:
        return {
            "id": route.pk,
            "model": route.model,
            "team": route.team.name if route.team else None,
            "position": route.position,
            "targets": [
                {"upstream": to.upstream.name, "model": to.model, "weight": to.weight}
                for to in route.targets.all()
            ],
            "managed": route.managed,
        }


class UpstreamRow(serializers.Serializer[Any]):
    name = serializers.CharField()
    dialect = serializers.CharField()
    base_url = serializers.CharField()
    profile = serializers.CharField()
    capabilities = serializers.JSONField()
    timeouts = serializers.JSONField()
    has_secret = serializers.BooleanField(
        help_text="Whether an API key is set. Neither the key nor its location is shown."
    )
    when_client_leaves = serializers.CharField(
        help_text="abort, or drain: read the response to its end"
    )
    connection_reuse = serializers.CharField(help_text="shared, key or never")
    connection = serializers.JSONField(help_text="proxy, TLS files and headers")
    allow_http = serializers.BooleanField()
    enabled = serializers.BooleanField()
    managed = serializers.BooleanField()


@list_schema(UpstreamRow)
class UpstreamsView(ListView):
    """List upstreams without their API keys and extra body fields."""

    permission, name, row = "proxy.view_upstream", "upstreams", UpstreamRow

    def get_queryset(self) -> "QuerySet[Any]":
        return Upstream.objects.order_by("name")

    @staticmethod
    def serialize(upstream: Any) -> Row:
        return {
            "name": upstream.name,
            "dialect": upstream.dialect,
            "base_url": upstream.base_url,
            "profile": upstream.profile,
            "capabilities": upstream.capabilities,
            "timeouts": upstream.timeouts,
            "has_secret": bool(upstream.secret),
            "when_client_leaves": upstream.when_client_leaves,
            "connection_reuse": upstream.connection_reuse,
            "connection": upstream.connection,
            "allow_http": upstream.allow_http,
            "enabled": upstream.enabled,
            "managed": upstream.managed,
        }


PRICE_FIELDS = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")


class PriceRow(serializers.Serializer[Any]):
    """US dollars per million tokens, as decimal strings; null: priced as input."""

    id = serializers.IntegerField()
    upstream = serializers.CharField(
        allow_null=True, help_text="null: every upstream with this model"
    )
    model = serializers.CharField()
    since = serializers.CharField()
    input = serializers.CharField()
    output = serializers.CharField()
    cache_read = serializers.CharField(allow_null=True)
    cache_write_5m = serializers.CharField(allow_null=True)
    cache_write_1h = serializers.CharField(allow_null=True)
    source = serializers.CharField()  # type: ignore[assignment]  # DRF removes fields from the class
    managed = serializers.BooleanField()


@list_schema(PriceRow)
class PricesView(ListView):
    """List prices by model and start date, newest first."""

    permission, name, row = "proxy.view_price", "prices", PriceRow

    def get_queryset(self) -> "QuerySet[Any]":
        return Price.objects.select_related("upstream").order_by("model", "-since", "pk")

    @staticmethod
    def serialize(price: Any) -> Row:
        amounts = {name: getattr(price, name) for name in PRICE_FIELDS}
        return {
            "id": price.pk,
            "upstream": price.upstream.name if price.upstream else None,
            "model": price.model,
            "since": price.since.isoformat(),
            **{name: None if usd is None else f"{usd:f}" for name, usd in amounts.items()},
            "source": price.source,
            "managed": price.managed,
        }
