"""The configuration over REST: list, read, create, change and delete rows.

A key with the scope ``admin`` or ``config:write``, or for keys ``keys:write``, may read and write;
so may the session of a user who may see all rows and has Django's permission for the table. A team
lead may read and write the team and its keys.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from django.contrib.auth.models import User
from django.db import IntegrityError, models, transaction
from django.db.models import ProtectedError, QuerySet
from django.http import Http404, HttpResponseBase
from django.views.decorators.debug import sensitive_variables
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers, status
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ModelViewSet

from proxy.models import ApiKey, Budget, BudgetNotice, Price, Route, RouteTarget, Team, Upstream
from proxy.permissions.deletions import deletable_keys, delete_unused_keys, deletion_obstacle
from proxy.permissions.row_permissions import (
    Reader,
    visible_budgets,
    visible_keys,
    visible_teams,
)
from proxy.permissions.write_permissions import ADD, CHANGE, DELETE, REVOKE, has_permission
from proxy.reports.core.base_views import ReportView
from proxy.reports.core.exception_handler import Conflict
from proxy.reports.core.expansion import RESOURCES, check_format, expand_rows
from proxy.reports.core.idempotency import idempotent
from proxy.reports.core.json_bodies import BoundedJSON
from proxy.reports.core.pagination import (
    ColumnFilter,
    CursorPages,
    SortFilter,
    list_parameters,
    row_parameters,
)
from proxy.reports.core.permissions import MayReport, WritesConfig, caller_of, config_reader_of
from proxy.reports.core.query_parameters import JsonOnlyParameters
from proxy.reports.core.references import parse_key_id
from proxy.reports.core.rendering import column_names
from proxy.reports.usage.budgets import BUDGET_ID

from . import serializers as shapes

TAKEN = "another request created a row with these values at the same time"


class ConfigViewSet(ReportView, ModelViewSet[Any]):
    """Base of the viewsets of the configuration's tables."""

    permission_classes = (WritesConfig,)
    pagination_class = CursorPages
    filter_backends = (ColumnFilter, SortFilter)
    parser_classes = (BoundedJSON,)
    http_method_names = ["get", "head", "options", "post", "patch", "delete"]  # noqa: RUF012  # Django's View declares a list, too
    write_actions: ClassVar[Mapping[str, str]] = {
        "create": ADD,
        "partial_update": CHANGE,
        "destroy": DELETE,
    }
    of_teams: ClassVar[bool] = False
    """Whether rows belong to teams. If so, the lead of a team sees the rows of the team."""
    refusal: ClassVar[str] = "this needs a key with the scope 'admin' or 'config:write'"
    row_parameters: ClassVar[type[serializers.Serializer[Any]]] = JsonOnlyParameters
    resource: ClassVar[str]
    filter_columns: ClassVar[Mapping[str, str]] = {}
    sort_columns: ClassVar[Mapping[str, str]]
    ordering: ClassVar[tuple[str, ...]]
    expandable: ClassVar[Sequence[str]] = ()
    """The paths that ``expand`` allows in a row."""
    reference: ClassVar[str] = ""
    """The name of a reference to a row, if other rows refer to the rows."""
    part_models: ClassVar[tuple[type[models.Model], ...]] = ()
    """Models whose rows are parts of a row: they are written and deleted with it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.parameters = list_parameters(cls.filter_columns, cls.sort_columns, cls.expandable)
        cls.row_parameters = row_parameters(cls.expandable)
        if cls.reference:
            RESOURCES[cls.reference] = cls

    @property
    def reader(self) -> Reader:
        return config_reader_of(self.request)

    def get_object(self) -> Any:
        name = self.kwargs[self.lookup_url_kwarg or self.lookup_field]
        wanted = self.lookup_value(name)
        row = self.get_queryset().filter(**{self.lookup_field: wanted}).first()
        if row is None:
            raise Http404(f"no such row: {str(name)[:60]!r}")
        self.check_object_permissions(self.request, row)
        return row

    def lookup_value(self, name: Any) -> Any:
        """Return the value of the lookup field for the last part of the path."""
        return name

    def list(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponseBase:  # type: ignore[override]  # downloads are not DRF responses
        self.query = self.validated_query()
        rows = self.filter_queryset(self.get_queryset())
        check_format(self.query)
        if self.query["format"] != "json":
            found = self.get_serializer(rows, many=True).data
            columns = column_names(cast("Any", self.serializer_class)())
            return self.rows_response(self.query, self.resource, found, columns)
        page = self.get_serializer(self.paginate_queryset(rows), many=True).data
        return self.get_paginated_response(expand_rows(request, page, self.query.get("expand", ())))

    @idempotent
    @sensitive_variables()
    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Create a row. Only this response has the row's secret, if it has one."""
        serializer: Any = self.get_serializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        self.write(serializer)
        secret = getattr(serializer, "new_secret", None)
        body = serializer.data if secret is None else {**serializer.data, "secret": str(secret)}
        return Response(body, status=status.HTTP_201_CREATED)

    @idempotent
    def partial_update(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().partial_update(request, *args, **kwargs)

    @idempotent
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().destroy(request, *args, **kwargs)

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        query = self.validated_query(self.row_parameters)
        row = self.get_serializer(self.get_object()).data
        return Response(expand_rows(request, [row], query.get("expand", ()))[0])

    def finalize_response(  # type: ignore[override]  # downloads are not DRF responses
        self, request: Request, response: Any, *args: Any, **kwargs: Any
    ) -> HttpResponseBase:
        """Forbid storing the response to a creation, which may have a secret."""
        final = super().finalize_response(request, response, *args, **kwargs)
        if final.status_code == status.HTTP_201_CREATED:
            final["Cache-Control"] = "no-store"
        return final

    def perform_update(self, serializer: "serializers.BaseSerializer[Any]") -> None:
        self.write(serializer)

    def write(self, serializer: Any) -> None:
        """Save a validated row with its parts. The audit log records the change by its signals."""
        self.check_parts(serializer.validated_data)
        try:
            with transaction.atomic():
                row = serializer.save()
                serializer.instance = self.fresh(row)
        except IntegrityError:
            raise Conflict(TAKEN) from None

    def fresh(self, row: Any) -> Any:
        """Read a row again, with its relations, even if the caller may not see it any more."""
        rows = cast("Any", self).queryset
        return rows.get(pk=row.pk)

    def check_parts(self, values: Mapping[str, Any]) -> None:
        """Raise PermissionDenied if the caller may not replace the parts that the body contains."""

    def perform_destroy(self, instance: Any) -> None:
        """Delete a row with its parts. Raise Conflict if other rows refer to it."""
        references = []
        for relation in instance._meta.related_objects:  # noqa: SLF001 - documented by Django
            related, names = relation.related_model, relation.related_model._meta  # noqa: SLF001 - as above
            count = related.objects.filter(**{relation.field.name: instance}).count()
            if count and related not in self.part_models:
                noun = names.verbose_name if count == 1 else names.verbose_name_plural
                references.append(f"{count} {noun}")
        if references:
            raise Conflict(f"{instance} is in use by {', '.join(references)}; delete these first")
        try:
            with transaction.atomic():
                instance.delete()
        except (IntegrityError, ProtectedError):
            raise Conflict(f"another request started to use {instance} at the same time") from None


class KeyWithSecret(shapes.KeySerializer):
    secret = serializers.CharField(help_text="The secret. No other response contains it.")

    class Meta(shapes.KeySerializer.Meta):
        fields = (*shapes.KeySerializer.Meta.fields, "secret")  # type: ignore[assignment]  # one more


@extend_schema_view(
    create=extend_schema(responses={201: KeyWithSecret}),
    destroy=extend_schema(request=None, responses={200: shapes.KeySerializer}),
)
class KeyViewSet(ConfigViewSet):
    """Gateway keys, including revoked ones.

    Only the response to a POST has the secret. DELETE revokes a key, even one that bridge.toml
    declares; the row stays. DELETE of a revoked key deletes the row if the key was never used.
    """

    resource, of_teams = "keys", True
    reference, expandable = "key", ("team", "user")
    refusal = "this needs a key with the scope 'admin' or 'keys:write'"
    queryset = ApiKey.objects.select_related("team", "user")
    serializer_class = shapes.KeySerializer
    lookup_url_kwarg = "key_id"
    filter_columns: ClassVar = {"team": "team__name", "user": "user__username", "name": "name"}
    sort_columns: ClassVar = {"id": "pk", "name": "name", "created_at": "created"}
    ordering = ("pk",)
    write_actions: ClassVar = {**ConfigViewSet.write_actions, "destroy": REVOKE}

    def get_queryset(self) -> "QuerySet[ApiKey]":
        return visible_keys(self.reader)

    def lookup_value(self, name: Any) -> Any:
        return parse_key_id(name)

    @idempotent
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        key = self.get_object()
        if deletable_keys().filter(pk=key.pk).exists():
            row = self.get_serializer(key).data
            key.delete()
            return Response(row)
        key.revoke()
        return Response(self.get_serializer(self.fresh(key)).data)


class TeamViewSet(ConfigViewSet):
    """Teams with their settings.

    A team can be deleted if it has no budgets and routes, and only revoked keys that were never
    used, which are deleted with it. A team with recorded requests stays.
    """

    resource, of_teams, reference = "teams", True, "team"
    queryset = Team.objects.all()
    serializer_class = shapes.TeamSerializer
    lookup_field, lookup_url_kwarg = "name", "team"
    sort_columns: ClassVar = {"name": "name", "created_at": "created"}
    ordering = ("name",)

    def get_queryset(self) -> "QuerySet[Team]":
        return visible_teams(self.reader)

    def perform_destroy(self, instance: Any) -> None:
        if obstacle := deletion_obstacle(instance):
            raise Conflict(obstacle)
        with transaction.atomic():
            delete_unused_keys(instance)
            super().perform_destroy(instance)


@extend_schema_view(destroy=extend_schema(request=None, responses={200: shapes.UserSerializer}))
class UserViewSet(ConfigViewSet):
    """Users with their groups. A new user has no password; it is set in the admin.

    DELETE deactivates the user and the user's keys; the row stays.
    """

    resource, refusal = "users", "this needs a key with the scope 'admin'"
    reference = "user"
    queryset = User.objects.prefetch_related("groups")
    serializer_class = shapes.UserSerializer
    lookup_field, lookup_url_kwarg = "username", "user"
    filter_columns: ClassVar = {"name": "username", "group": "groups__name"}
    sort_columns: ClassVar = {"name": "username", "joined_at": "date_joined"}
    ordering = ("pk",)
    write_actions: ClassVar = {**ConfigViewSet.write_actions, "destroy": CHANGE}

    @idempotent
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        user = self.get_object()
        if user == request.user:
            raise Conflict("you cannot deactivate yourself; another superuser can do it")
        serializer = self.get_serializer(user, data={"is_active": False}, partial=True)
        serializer.is_valid(raise_exception=True)
        self.perform_update(serializer)
        return Response(serializer.data)


class RouteViewSet(ConfigViewSet):
    """Routes: requested models with their targets. A new list of targets replaces the old one."""

    resource, expandable = "models", ("team", "targets.upstream")
    queryset = Route.objects.select_related("team").prefetch_related("targets__upstream")
    serializer_class = shapes.RouteSerializer
    lookup_url_kwarg, lookup_value_converter = "route_id", "int"
    filter_columns: ClassVar = {"model": "model", "team": "team__name"}
    sort_columns: ClassVar = {"id": "pk", "model": "model", "position": "position"}
    ordering = ("position", "pk")
    part_models = (RouteTarget,)

    def check_parts(self, values: Mapping[str, Any]) -> None:
        labels = ("proxy.add_routetarget", "proxy.delete_routetarget")
        caller = caller_of(self.request)
        if "targets" in values and not all(has_permission(caller, label) for label in labels):
            raise PermissionDenied


class UpstreamViewSet(ConfigViewSet):
    """Upstreams, without their API keys and extra body fields.

    An upstream can be deleted if no route and no price refers to it.
    """

    resource, reference = "upstreams", "upstream"
    queryset = Upstream.objects.all()
    serializer_class = shapes.UpstreamSerializer
    lookup_field, lookup_url_kwarg = "name", "upstream"
    filter_columns: ClassVar = {"dialect": "dialect"}
    sort_columns: ClassVar = {"name": "name"}
    ordering = ("name",)


class PriceViewSet(ConfigViewSet):
    """Prices by model and start date, newest first.

    A price is never changed: a new price has a later start date.
    """

    resource, expandable = "prices", ("upstream",)
    queryset = Price.objects.select_related("upstream")
    serializer_class = shapes.PriceSerializer
    http_method_names = ["get", "head", "options", "post", "delete"]  # noqa: RUF012  # Django's View declares a list, too
    lookup_url_kwarg, lookup_value_converter = "price_id", "int"
    filter_columns: ClassVar = {"model": "model", "upstream": "upstream__name"}
    sort_columns: ClassVar = {"id": "pk", "model": "model", "since": "since"}
    ordering = ("model", "-since", "pk")


class ReadsBudgets(WritesConfig):
    """As the other tables, but all who may read reports read the budgets of the rows they see."""

    def has_permission(self, request: Request, view: Any) -> bool:
        is_read = view.write_actions.get(view.action) is None
        if is_read and MayReport().has_permission(request, view):
            return True
        return super().has_permission(request, view)


class BudgetViewSet(ConfigViewSet):
    """Budgets with their state. A team lead writes the budgets of the team and of its keys."""

    resource, of_teams = "budgets", True
    expandable = ("team", "key", "key.team", "user")
    permission_classes = (ReadsBudgets,)
    queryset = Budget.objects.select_related("team", "key__team", "user").prefetch_related(
        "key__retiring"
    )
    serializer_class = shapes.BudgetSerializer
    lookup_url_kwarg = "budget_id"
    filter_columns: ClassVar = {
        "team": "team__name", "key_id": "key", "user": "user__username", "period": "period",
    }  # fmt: skip
    sort_columns: ClassVar = {"id": "pk", "limit_usd": "usd"}
    ordering = ("pk",)
    part_models = (BudgetNotice,)

    def get_queryset(self) -> "QuerySet[Budget]":
        return visible_budgets(self.reader)

    def lookup_value(self, name: Any) -> Any:
        """Return the number in an id such as ``budget_12``."""
        match = BUDGET_ID.fullmatch(name)
        return int(match[1]) if match else 0
