"""Keys, teams, users, models, upstreams and prices as they are set up: for reading, never a secret.

Only who sees everything sees these: a key with the scope ``admin``, or a session with the
permission to view that table. Keys and teams of their own teams are for a session, too, whose user
leads some.
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
from proxy.visibility import visible_keys, visible_teams

from .access import IsKnown, reader_of
from .answers import Row, columns_of, page_of
from .base import ReportView
from .parameters import PageParameters


class MayReadSetup(IsKnown):
    message = "this needs a key with the scope 'admin'"

    def has_permission(self, request: Request, view: Any) -> bool:
        if not super().has_permission(request, view):
            return False
        reader = reader_of(request)
        if isinstance(request.auth, ApiKey):
            return reader.everything
        theirs = reader.everything or (view.of_teams and reader.may_report)
        return theirs and bool(request.user.has_perm(view.permission))


class ListView(ReportView):
    """All rows of one table, in a fixed order."""

    permission_classes = (MayReadSetup,)
    parameters: ClassVar[type[serializers.Serializer[Any]]] = PageParameters
    permission: ClassVar[str]
    name: ClassVar[str]
    row: ClassVar[type[serializers.Serializer[Any]]]
    of_teams: ClassVar[bool] = False
    """Whether its rows belong to teams, so that who leads one sees some."""

    def every(self) -> "QuerySet[Any]":
        """All rows that the caller sees."""
        raise NotImplementedError

    @staticmethod
    def told(one: Any) -> Row:
        """A row as it leaves."""
        raise NotImplementedError

    def get(self, request: Request) -> HttpResponseBase:
        asked = self.asked()
        rows = [self.told(one) for one in self.every()]
        if asked["format"] != "json":
            return self.rows_answer(asked, self.name, rows, columns_of(self.row()))
        shown, following = page_of(rows, asked["limit"], asked["page"])
        return Response({"data": shown, "has_more": following is not None, "next_page": following})


def described(row: type[serializers.Serializer[Any]]) -> Any:
    """Tells the schema of a list what its rows are."""
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
    id = serializers.IntegerField(help_text="As key_id in the other reports.")
    name = serializers.CharField()
    team = serializers.CharField()
    user = serializers.CharField(allow_null=True)
    prefix = serializers.CharField(help_text="The start of the secret, which is kept nowhere.")
    has_secret = serializers.BooleanField(
        help_text="false: it opens nothing until `createkey --team T --name N` gives it one."
    )
    scopes = serializers.ListField(child=serializers.CharField())
    models_allowed = serializers.ListField(child=serializers.CharField())
    limits = serializers.JSONField()
    ip_allow = serializers.ListField(child=serializers.CharField())
    options = serializers.JSONField()
    managed = serializers.BooleanField(help_text="It comes from bridge.toml.")
    created_at = serializers.CharField()
    expires_at = serializers.CharField(allow_null=True)
    revoked_at = serializers.CharField(allow_null=True)
    last_used_at = serializers.CharField(allow_null=True)


@described(KeyRow)
class KeysView(ListView):
    """Gateway keys, revoked ones too."""

    permission, name, row, of_teams = "proxy.view_apikey", "keys", KeyRow, True

    def every(self) -> "QuerySet[Any]":
        return visible_keys(self.reader).order_by("pk")

    @staticmethod
    def told(key: Any) -> Row:
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
    store = serializers.CharField(help_text="full, or metadata: no word of the conversation")
    retention_days = serializers.IntegerField()
    models_allowed = serializers.ListField(child=serializers.CharField())
    limits = serializers.JSONField()
    managed = serializers.BooleanField()
    created_at = serializers.CharField()


@described(TeamRow)
class TeamsView(ListView):
    """Teams with their rules."""

    permission, name, row, of_teams = "proxy.view_team", "teams", TeamRow, True

    def every(self) -> "QuerySet[Any]":
        return visible_teams(self.reader).order_by("name")

    @staticmethod
    def told(team: Any) -> Row:
        return {
            "name": team.name,
            "store": team.store,
            "retention_days": team.retention_days,
            "models_allowed": team.models_allowed,
            "limits": team.limits,
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


@described(UserRow)
class UsersView(ListView):
    """People with their groups."""

    permission, name, row = "auth.view_user", "users", UserRow

    def every(self) -> "QuerySet[Any]":
        return User.objects.order_by("pk").prefetch_related("groups")

    @staticmethod
    def told(user: Any) -> Row:
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
    model = serializers.CharField(help_text="Empty: the name that the client sent.")
    weight = serializers.IntegerField()


class ModelRow(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    model = serializers.CharField(help_text="What clients ask for; a name or a glob.")
    team = serializers.CharField(allow_null=True, help_text="null: every team")
    position = serializers.IntegerField(help_text="Of globs that fit, the lowest wins.")
    targets = ModelTarget(many=True)
    managed = serializers.BooleanField()


@described(ModelRow)
class ModelsView(ListView):
    """Models that have a route, and where each leads."""

    permission, name, row = "proxy.view_route", "models", ModelRow

    def every(self) -> "QuerySet[Any]":
        return Route.objects.select_related("team").prefetch_related("targets__upstream")

    @staticmethod
    def told(route: Any) -> Row:
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
    has_secret = serializers.BooleanField(help_text="Not which: neither the key nor its place.")
    when_client_leaves = serializers.CharField(help_text="abort, or drain: hear the answer out")
    connection_reuse = serializers.CharField(help_text="shared, key or never")
    allow_http = serializers.BooleanField()
    enabled = serializers.BooleanField()
    managed = serializers.BooleanField()


@described(UpstreamRow)
class UpstreamsView(ListView):
    """Servers that answer; their keys and extra fields are not shown."""

    permission, name, row = "proxy.view_upstream", "upstreams", UpstreamRow

    def every(self) -> "QuerySet[Any]":
        return Upstream.objects.order_by("name")

    @staticmethod
    def told(upstream: Any) -> Row:
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
            "allow_http": upstream.allow_http,
            "enabled": upstream.enabled,
            "managed": upstream.managed,
        }


PRICED = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")


class PriceRow(serializers.Serializer[Any]):
    """US dollars per million tokens, as decimal strings; null: charged as plain input."""

    id = serializers.IntegerField()
    upstream = serializers.CharField(allow_null=True, help_text="null: any that has the model")
    model = serializers.CharField()
    since = serializers.CharField()
    input = serializers.CharField()
    output = serializers.CharField()
    cache_read = serializers.CharField(allow_null=True)
    cache_write_5m = serializers.CharField(allow_null=True)
    cache_write_1h = serializers.CharField(allow_null=True)
    source = serializers.CharField()  # type: ignore[assignment]  # DRF takes fields off the class
    managed = serializers.BooleanField()


@described(PriceRow)
class PricesView(ListView):
    """Prices by model and day, newest first."""

    permission, name, row = "proxy.view_price", "prices", PriceRow

    def every(self) -> "QuerySet[Any]":
        return Price.objects.select_related("upstream").order_by("model", "-since", "pk")

    @staticmethod
    def told(price: Any) -> Row:
        figures = {name: getattr(price, name) for name in PRICED}
        return {
            "id": price.pk,
            "upstream": price.upstream.name if price.upstream else None,
            "model": price.model,
            "since": price.since.isoformat(),
            **{name: None if usd is None else f"{usd:f}" for name, usd in figures.items()},
            "source": price.source,
            "managed": price.managed,
        }
