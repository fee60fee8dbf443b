"""Create rows by POST to a list; read, change and delete one row by GET, PATCH and DELETE.

Writing needs the session of a staff user who may read the list and has the permission to write such
rows in the admin. A gateway key of any scope cannot write.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import models, transaction
from django.http import Http404, HttpResponseBase
from django.views.decorators.debug import sensitive_variables
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers, status
from rest_framework.exceptions import ParseError, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.models import ApiKey, Price, Route, Team, Upstream
from proxy.reports.core.exception_handler import Conflict
from proxy.reports.core.json_bodies import BoundedJSON
from proxy.reports.core.query_parameters import JsonOnlyParameters

from . import admin_form_writer, read_views
from . import serializers as setup_serializers
from .read_views import ListView, MayReadSetup

READ_METHODS: Final = ["get", "head", "options"]


class CanEditInAdmin(MayReadSetup):
    """Require the right to read the list, and for writing, the admin's permission for the model.

    The permission for the single row is checked when the row is written.
    """

    def has_permission(self, request: Request, view: Any) -> bool:
        action = view.actions.get(request.method)
        if not action:
            return super().has_permission(request, view)
        if isinstance(request.auth, ApiKey):
            self.message = "writing needs a signed-in user; gateway keys only read here"
            return False
        self.message = f"this needs a user who may see {view.name} and {action} them in the admin"
        has_permission_for = getattr(
            admin_form_writer.model_admin_for(view.model), f"has_{action}_permission"
        )
        return super().has_permission(request, view) and bool(has_permission_for(request))


class WritableView(ListView):
    """Base of the views that create, change or delete rows."""

    permission_classes = (CanEditInAdmin,)
    parser_classes = (BoundedJSON,)
    model: ClassVar[type[models.Model]]
    shape: ClassVar[type[setup_serializers.Shape]]
    actions: ClassVar[dict[str, str]] = {}
    """HTTP method -> action of the required model permission: add, change or delete."""

    def validated_body(self, *, partial: bool = False) -> dict[str, Any]:
        """Return the validated values of the request body by model field name."""
        if not isinstance(self.request.data, dict):
            raise ParseError("the body is not a JSON object")
        context = {"user": self.request.user}
        shape = self.shape(data=self.request.data, partial=partial, context=context)
        shape.is_valid(raise_exception=True)
        return dict(shape.validated_data)

    @contextmanager
    def rename_form_errors(self) -> Iterator[None]:
        """Convert FormInvalid to a ValidationError with the API's field names."""
        try:
            yield
        except admin_form_writer.FormInvalid as error:
            api_names = {field.source: name for name, field in self.shape().fields.items()}
            raise ValidationError(
                {api_names.get(name, name): messages for name, messages in error.errors.items()}
            ) from None


class CreateView(WritableView):
    """Base of the list views that accept POST, which creates a row."""

    http_method_names = [*READ_METHODS, "post"]  # noqa: RUF012  # as Django declares it
    actions: ClassVar = {"POST": "add"}

    def post(self, request: Request) -> HttpResponseBase:
        with self.rename_form_errors():
            return self.created_response(self.add(self.validated_body()))

    def add(self, values: dict[str, Any]) -> Any:
        return admin_form_writer.add(self.request, self.model, values)

    def created_response(self, row_object: Any) -> Response:
        return Response(
            self.serialize(self.get_queryset().get(pk=row_object.pk)),
            status=status.HTTP_201_CREATED,
        )


class DetailView(WritableView):
    """Base of the views of a single row: GET, PATCH and DELETE."""

    http_method_names = [*READ_METHODS, "patch", "delete"]  # noqa: RUF012  # as Django declares it
    actions: ClassVar = {"PATCH": "change", "DELETE": "delete"}
    parameters: ClassVar = JsonOnlyParameters
    lookup: ClassVar[str] = "pk"

    def get_object(self) -> Any:
        (name,) = self.kwargs.values()
        row_object = self.get_queryset().filter(**{self.lookup: name}).first()
        if row_object is None:
            raise Http404(f"no such row: {str(name)[:60]!r}")
        return row_object

    def get(self, request: Request, **_: Any) -> HttpResponseBase:
        self.validated_query()
        return Response(self.serialize(self.get_object()))

    def patch(self, request: Request, **_: Any) -> HttpResponseBase:
        row_object = self.get_object()
        with self.rename_form_errors():
            admin_form_writer.change(request, row_object, self.validated_body(partial=True))
        return self.refreshed_response(row_object)

    def delete(self, request: Request, **_: Any) -> HttpResponseBase:
        admin_form_writer.remove(request, self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)

    def refreshed_response(self, row_object: Any) -> Response:
        """Return the changed row, even if the caller may not see it any more."""
        row_object.refresh_from_db()
        return Response(self.serialize(row_object))


def create_schema(
    shape: type[setup_serializers.Shape], row: type[serializers.Serializer[Any]]
) -> Any:
    """Return a decorator that declares the body and response of a POST in the OpenAPI schema."""
    return extend_schema_view(post=extend_schema(request=shape, responses={201: row}))


def detail_schema(
    shape: type[setup_serializers.Shape],
    row: type[serializers.Serializer[Any]],
    *,
    soft_delete: bool = False,
) -> Any:
    """Return a decorator that declares the methods of a single row's view in the OpenAPI schema.

    With ``soft_delete``, DELETE only revokes or deactivates the row and returns it.
    """
    deleted: Any = {200: row} if soft_delete else {204: None}
    return extend_schema_view(
        get=extend_schema(parameters=[JsonOnlyParameters], responses=row),
        patch=extend_schema(request=shape(partial=True), responses=row),
        delete=extend_schema(request=None, responses=deleted),
    )


class KeyWithSecret(read_views.KeyRow):
    secret = serializers.CharField(help_text="The secret. No other response contains it.")


@create_schema(setup_serializers.KeyShape, KeyWithSecret)
class KeysView(CreateView, read_views.KeysView):
    """Gateway keys, including revoked ones. Only the response to a POST has the secret."""

    model, shape = ApiKey, setup_serializers.KeyShape

    def add(self, values: dict[str, Any]) -> Any:
        return super().add({"scopes": ["messages"], **values})

    @sensitive_variables("response")
    def created_response(self, row_object: Any) -> Response:
        response = super().created_response(row_object)
        response.data["secret"] = str(self.request.new_secret)  # type: ignore[attr-defined]  # set by KeyAdmin.save_model
        return response

    def finalize_response(  # type: ignore[override]  # downloads are not DRF responses
        self, request: Request, response: Any, *args: Any, **kwargs: Any
    ) -> HttpResponseBase:
        final = super().finalize_response(request, response, *args, **kwargs)
        if final.status_code == status.HTTP_201_CREATED:
            final["Cache-Control"] = "no-store"
        return final


@detail_schema(setup_serializers.KeyShape, read_views.KeyRow, soft_delete=True)
class KeyView(DetailView, read_views.KeysView):
    """One key. DELETE revokes it, even if bridge.toml declares it; the row stays."""

    model, shape = ApiKey, setup_serializers.KeyShape
    actions: ClassVar = {"PATCH": "change", "DELETE": "change"}

    def delete(self, request: Request, **_: Any) -> HttpResponseBase:
        key = self.get_object()
        if not admin_form_writer.model_admin_for(ApiKey).has_revoke_permission(request, key):
            raise PermissionDenied
        key.revoke()
        return self.refreshed_response(key)


@create_schema(setup_serializers.TeamShape, read_views.TeamRow)
class TeamsView(CreateView, read_views.TeamsView):
    """Teams with their settings."""

    model, shape = Team, setup_serializers.TeamShape

    def created_response(self, row_object: Any) -> Response:
        """Return the new team, even to a lead of other teams, who may not see this one."""
        return Response(self.serialize(row_object), status=status.HTTP_201_CREATED)


@detail_schema(setup_serializers.TeamShape, read_views.TeamRow)
class TeamView(DetailView, read_views.TeamsView):
    """One team. It can be deleted if it has no keys, budgets or routes."""

    model, shape, lookup = Team, setup_serializers.TeamShape, "name"


@create_schema(setup_serializers.UserShape, read_views.UserRow)
class UsersView(CreateView, read_views.UsersView):
    """Users with their groups. A new user has no password; it is set in the admin."""

    model, shape = User, setup_serializers.UserShape

    def add(self, values: dict[str, Any]) -> Any:
        """Create the user with only a name, then set the other fields, as Django's admin does."""
        with transaction.atomic():
            first = {"username": values.pop("username"), "usable_password": "false"}
            user = super().add(first)
            return admin_form_writer.change(self.request, user, values) if values else user


@detail_schema(setup_serializers.UserShape, read_views.UserRow, soft_delete=True)
class UserView(DetailView, read_views.UsersView):
    """One user. DELETE deactivates the user and the user's keys; the row stays."""

    model, shape, lookup = User, setup_serializers.UserShape, "username"
    actions: ClassVar = {"PATCH": "change", "DELETE": "change"}

    def delete(self, request: Request, **_: Any) -> HttpResponseBase:
        user = self.get_object()
        if user == request.user:
            raise Conflict("you cannot deactivate yourself; another superuser can do it")
        admin_form_writer.change(request, user, {"is_active": False})
        return self.refreshed_response(user)


@create_schema(setup_serializers.ModelShape, read_views.ModelRow)
class ModelsView(CreateView, read_views.ModelsView):
    """Routes: requested models with their targets."""

    model, shape = Route, setup_serializers.ModelShape


@detail_schema(setup_serializers.ModelShape, read_views.ModelRow)
class ModelView(DetailView, read_views.ModelsView):
    """One route. A new list of targets replaces the old one."""

    model, shape = Route, setup_serializers.ModelShape


@create_schema(setup_serializers.UpstreamShape, read_views.UpstreamRow)
class UpstreamsView(CreateView, read_views.UpstreamsView):
    """Upstreams, without their API keys and extra body fields."""

    model, shape = Upstream, setup_serializers.UpstreamShape


@detail_schema(setup_serializers.UpstreamShape, read_views.UpstreamRow)
class UpstreamView(DetailView, read_views.UpstreamsView):
    """One upstream. It can be deleted if no route and no price refers to it."""

    model, shape, lookup = Upstream, setup_serializers.UpstreamShape, "name"


@create_schema(setup_serializers.PriceShape, read_views.PriceRow)
class PricesView(CreateView, read_views.PricesView):
    """Prices by model and start date, newest first."""

    model, shape = Price, setup_serializers.PriceShape


@detail_schema(setup_serializers.PriceShape, read_views.PriceRow)
class PriceView(DetailView, read_views.PricesView):
    """One price. Prices are not changed: a new price has a later start date."""

    http_method_names = [*READ_METHODS, "delete"]  # noqa: RUF012  # as Django declares it
    model, shape = Price, setup_serializers.PriceShape
    actions: ClassVar = {"DELETE": "delete"}
