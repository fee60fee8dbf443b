"""Writing of what the lists show: POST to a list; GET, PATCH and DELETE of one row of it.

For people: the session of a staff user who may read the list and has the admin's permission to
write. A gateway key writes nothing, whatever its scopes: they were given for reading.
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

from proxy.audit_trail import note
from proxy.models import ApiKey, Price, Route, Team, Upstream
from proxy.reports import lists
from proxy.reports.exports import Conflict
from proxy.reports.json_bodies import BoundedJSON
from proxy.reports.lists import ListView, MayReadSetup
from proxy.reports.parameters import OnlyJson

from . import desk, shapes

READING: Final = ["get", "head", "options"]


class MaySetUp(MayReadSetup):
    """Who may read the list, and write in the admin; what of it is asked again for each row."""

    def has_permission(self, request: Request, view: Any) -> bool:
        verb = view.writing.get(request.method)
        if not verb:
            return super().has_permission(request, view)
        if isinstance(request.auth, ApiKey):
            self.message = "writing needs a signed-in user; gateway keys only read here"
            return False
        self.message = f"this needs a user who may see {view.name} and {verb} them in the admin"
        may = getattr(desk.desk_of(view.model), f"has_{verb}_permission")
        return super().has_permission(request, view) and bool(may(request))


class WritableView(ListView):
    """What lists and their rows share."""

    permission_classes = (MaySetUp,)
    parser_classes = (BoundedJSON,)
    model: ClassVar[type[models.Model]]
    shape: ClassVar[type[shapes.Shape]]
    writing: ClassVar[dict[str, str]] = {}
    """The verbs of the admin's permissions, by method."""

    def heard(self, *, partly: bool = False) -> dict[str, Any]:
        """The checked body, by the names of the model."""
        if not isinstance(self.request.data, dict):
            raise ParseError("the body is no JSON object")
        context = {"user": self.request.user}
        shape = self.shape(data=self.request.data, partial=partly, context=context)
        shape.is_valid(raise_exception=True)
        return dict(shape.validated_data)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """The admin's complaints come out under the names that the caller used."""
        try:
            yield
        except desk.Wrong as wrong:
            ours = {field.source: name for name, field in self.shape().fields.items()}
            told = {ours.get(name, name): said for name, said in wrong.complaints.items()}
            raise ValidationError(told) from None


class AddingView(WritableView):
    """A list to which a POST adds a row."""

    http_method_names = [*READING, "post"]  # noqa: RUF012  # Django's own spelling
    writing: ClassVar = {"POST": "add"}

    def post(self, request: Request) -> HttpResponseBase:
        with self.naming():
            return self.made(self.add(self.heard()))

    def add(self, values: dict[str, Any]) -> Any:
        return desk.add(self.request, self.model, values)

    def made(self, one: Any) -> Response:
        return Response(self.told(self.every().get(pk=one.pk)), status=status.HTTP_201_CREATED)


class OneView(WritableView):
    """One row: read, changed, taken away."""

    http_method_names = [*READING, "patch", "delete"]  # noqa: RUF012  # Django's own spelling
    writing: ClassVar = {"PATCH": "change", "DELETE": "delete"}
    parameters: ClassVar = OnlyJson
    lookup: ClassVar[str] = "pk"

    def found(self) -> Any:
        (name,) = self.kwargs.values()
        one = self.every().filter(**{self.lookup: name}).first()
        if one is None:
            raise Http404(f"no such row: {str(name)[:60]!r}")
        return one

    def get(self, request: Request, **_: Any) -> HttpResponseBase:
        self.asked()
        return Response(self.told(self.found()))

    def patch(self, request: Request, **_: Any) -> HttpResponseBase:
        one = self.found()
        with self.naming():
            desk.change(request, one, self.heard(partly=True))
        return self.again(one)

    def delete(self, request: Request, **_: Any) -> HttpResponseBase:
        desk.remove(request, self.found())
        return Response(status=status.HTTP_204_NO_CONTENT)

    def again(self, one: Any) -> Response:
        """The row as it is now, also when the change took it out of the caller's sight."""
        one.refresh_from_db()
        return Response(self.told(one))


def adds(shape: type[shapes.Shape], row: type[serializers.Serializer[Any]]) -> Any:
    """Tells the schema what a POST takes and answers."""
    return extend_schema_view(post=extend_schema(request=shape, responses={201: row}))


def changes(
    shape: type[shapes.Shape], row: type[serializers.Serializer[Any]], *, stays: bool = False
) -> Any:
    """Tells the schema of one row; it ``stays`` where a DELETE only ends its use."""
    gone: Any = {200: row} if stays else {204: None}
    return extend_schema_view(
        get=extend_schema(parameters=[OnlyJson], responses=row),
        patch=extend_schema(request=shape(partial=True), responses=row),
        delete=extend_schema(request=None, responses=gone),
    )


class KeyMade(lists.KeyRow):
    secret = serializers.CharField(help_text="Here and nowhere else, this once.")


@adds(shapes.KeyShape, KeyMade)
class KeysView(AddingView, lists.KeysView):
    """Gateway keys, revoked ones too. A POST answers the new key's secret, this once."""

    model, shape = ApiKey, shapes.KeyShape

    def add(self, values: dict[str, Any]) -> Any:
        return super().add({"scopes": ["messages"], **values})

    @sensitive_variables("answer")
    def made(self, one: Any) -> Response:
        answer = super().made(one)
        answer.data["secret"] = str(self.request.new_secret)  # type: ignore[attr-defined]  # KeyAdmin's
        return answer

    def finalize_response(  # type: ignore[override]  # as in ReportView
        self, request: Request, response: Any, *args: Any, **kwargs: Any
    ) -> HttpResponseBase:
        answer = super().finalize_response(request, response, *args, **kwargs)
        if answer.status_code == status.HTTP_201_CREATED:
            answer["Cache-Control"] = "no-store"
        return answer


@changes(shapes.KeyShape, lists.KeyRow, stays=True)
class KeyView(OneView, lists.KeysView):
    """One key. DELETE revokes it, also against bridge.toml; its requests keep its name."""

    model, shape = ApiKey, shapes.KeyShape
    writing: ClassVar = {"PATCH": "change", "DELETE": "change"}

    def delete(self, request: Request, **_: Any) -> HttpResponseBase:
        key = self.found()
        if not desk.desk_of(ApiKey).has_revoke_permission(request, key):
            raise PermissionDenied
        if key.revoke():
            note(request.user, key, "Revoked.")
        return self.again(key)


@adds(shapes.TeamShape, lists.TeamRow)
class TeamsView(AddingView, lists.TeamsView):
    """Teams with their rules."""

    model, shape = Team, shapes.TeamShape

    def made(self, one: Any) -> Response:
        """Also where the caller leads other teams than the new one."""
        return Response(self.told(one), status=status.HTTP_201_CREATED)


@changes(shapes.TeamShape, lists.TeamRow)
class TeamView(OneView, lists.TeamsView):
    """One team. It can be deleted while it has no keys, budgets or routes."""

    model, shape, lookup = Team, shapes.TeamShape, "name"


@adds(shapes.UserShape, lists.UserRow)
class UsersView(AddingView, lists.UsersView):
    """People with their groups. A new one has no password: that is given in the admin."""

    model, shape = User, shapes.UserShape

    def add(self, values: dict[str, Any]) -> Any:
        """As in the admin: first the name, then all else."""
        with transaction.atomic():
            first = {"username": values.pop("username"), "usable_password": "false"}
            user = super().add(first)
            return desk.change(self.request, user, values) if values else user


@changes(shapes.UserShape, lists.UserRow, stays=True)
class UserView(OneView, lists.UsersView):
    """One user. DELETE deactivates them, and with them their keys; the log keeps their name."""

    model, shape, lookup = User, shapes.UserShape, "username"
    writing: ClassVar = {"PATCH": "change", "DELETE": "change"}

    def delete(self, request: Request, **_: Any) -> HttpResponseBase:
        user = self.found()
        if user == request.user:
            raise Conflict("that is you; let another superuser do it")
        desk.change(request, user, {"is_active": False})
        return self.again(user)


@adds(shapes.ModelShape, lists.ModelRow)
class ModelsView(AddingView, lists.ModelsView):
    """Models that have a route, and where each leads."""

    model, shape = Route, shapes.ModelShape


@changes(shapes.ModelShape, lists.ModelRow)
class ModelView(OneView, lists.ModelsView):
    """One route. New targets replace the old ones."""

    model, shape = Route, shapes.ModelShape


@adds(shapes.UpstreamShape, lists.UpstreamRow)
class UpstreamsView(AddingView, lists.UpstreamsView):
    """Servers that answer; their keys and extra fields are not shown."""

    model, shape = Upstream, shapes.UpstreamShape


@changes(shapes.UpstreamShape, lists.UpstreamRow)
class UpstreamView(OneView, lists.UpstreamsView):
    """One server. It can be deleted when no route and no price names it."""

    model, shape, lookup = Upstream, shapes.UpstreamShape, "name"


@adds(shapes.PriceShape, lists.PriceRow)
class PricesView(AddingView, lists.PricesView):
    """Prices by model and day, newest first. A POST adds a price from a day on."""

    model, shape = Price, shapes.PriceShape


@changes(shapes.PriceShape, lists.PriceRow)
class PriceView(OneView, lists.PricesView):
    """One price, which is never changed: a new one gets a new day."""

    http_method_names = [*READING, "delete"]  # noqa: RUF012  # Django's own spelling
    model, shape = Price, shapes.PriceShape
    writing: ClassVar = {"DELETE": "delete"}
