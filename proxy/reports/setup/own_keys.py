"""Members' own keys: list, create, rotate and revoke them, within the limits of their team.

Only the session of a user may do this; a gateway key can neither create nor rotate a key here.
"""

from datetime import timedelta
from typing import Any, ClassVar

from django.core.exceptions import NON_FIELD_ERRORS
from django.core.exceptions import ValidationError as ModelInvalid
from django.db import IntegrityError
from django.db.models import QuerySet
from django.http import Http404, HttpResponseBase
from django.views.decorators.debug import sensitive_variables
from drf_spectacular.utils import extend_schema, inline_serializer
from rest_framework import serializers, status
from rest_framework.exceptions import PermissionDenied, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.decode_errors import MANAGED
from proxy.key_issuing import issue_own_key, rotate_key
from proxy.models import ApiKey, Scope, Team
from proxy.permissions.member_keys import member_limits, working_keys
from proxy.permissions.write_permissions import may_rotate, own_key_teams
from proxy.reports.core.base_views import ReportView
from proxy.reports.core.exception_handler import Conflict
from proxy.reports.core.json_bodies import BoundedJSON, validated_body
from proxy.reports.core.permissions import IsKeyOrStaff
from proxy.reports.core.query_parameters import Choice, JsonOnlyParameters, Number
from proxy.reports.core.references import Reference, id_in, parse_key_id, reference_of
from proxy.reports.core.rendering import Row
from proxy.times import rfc3339

READ_METHODS = ("get", "head", "options")
MAX_OVERLAP_H = 24 * 90
MAX_MODELS = 200


class IsSignedIn(IsKeyOrStaff):
    message = "this needs a signed-in user; a gateway key cannot make keys"

    def has_permission(self, request: Request, view: Any) -> bool:
        return super().has_permission(request, view) and not isinstance(request.auth, ApiKey)


class IdField(serializers.CharField):
    """An id in a body, alone or in a reference."""

    def to_internal_value(self, data: Any) -> Any:
        return super().to_internal_value(id_in(data))


class NewKey(serializers.Serializer[Any]):
    team = IdField(max_length=64)
    name = serializers.SlugField(max_length=64)
    expires_at = serializers.DateTimeField(required=False, allow_null=True, default=None)
    scopes = serializers.ListField(
        child=Choice(choices=Scope.values),
        min_length=1,
        max_length=len(Scope.values),
        default=["messages"],
    )
    models_allowed = serializers.ListField(
        child=serializers.CharField(max_length=200),
        max_length=MAX_MODELS,
        default=list,
        help_text="Names and globs; empty: all that the team allows its members.",
    )


class Rotation(serializers.Serializer[Any]):
    overlap_h = Number(
        min_value=0,
        max_value=MAX_OVERLAP_H,
        default=24,
        help_text="Hours for which the old secret stays valid.",
    )


class OwnKey(serializers.Serializer[Any]):
    id = serializers.CharField()
    team = Reference("team")
    name = serializers.CharField()
    prefix = serializers.CharField()
    scopes = serializers.ListField(child=serializers.CharField())
    models_allowed = serializers.ListField(child=serializers.CharField())
    expires_at = serializers.CharField(allow_null=True)
    revoked_at = serializers.CharField(allow_null=True)
    may_rotate = serializers.BooleanField()


class OwnKeyWithSecret(OwnKey):
    secret = serializers.CharField(help_text="The secret. No other response contains it.")


class OwnKeysBase(ReportView):
    permission_classes = (IsSignedIn,)
    parser_classes = (BoundedJSON,)
    parameters: ClassVar = JsonOnlyParameters

    def own_keys(self) -> "QuerySet[ApiKey]":
        keys = ApiKey.objects.filter(user__person=self.reader.user, successor=None)
        return keys.select_related("team", "user").order_by("pk")

    def own_key(self, key_id: str) -> ApiKey:
        key = self.own_keys().filter(pk=parse_key_id(key_id)).first()
        if key is None:
            raise Http404("no such key")
        return key

    def row(self, key: ApiKey) -> Row:
        working = not (key.managed or key.revoked)
        return {
            **(reference_of(key) or {}),
            "team": reference_of(key.team),
            "prefix": key.prefix,
            "scopes": key.scopes,
            "models_allowed": key.models_allowed,
            "expires_at": rfc3339(key.expires),
            "revoked_at": rfc3339(key.revoked),
            "may_rotate": working and may_rotate(self.request.user, key),
        }

    @sensitive_variables("secret")
    def secret_response(self, key: ApiKey, secret: str, code: int) -> Response:
        return Response({**self.row(key), "secret": secret}, status=code)

    def finalize_response(  # type: ignore[override]  # downloads are not DRF responses
        self, request: Request, response: Any, *args: Any, **kwargs: Any
    ) -> HttpResponseBase:
        final = super().finalize_response(request, response, *args, **kwargs)
        if request.method == "POST":  # the response may contain a secret
            final["Cache-Control"] = "no-store"
        return final


class OwnKeysView(OwnKeysBase):
    """The caller's keys, and the teams in which the caller may make keys.

    Only the response to a POST has the secret.
    """

    http_method_names = [*READ_METHODS, "post"]  # noqa: RUF012  # Django's View declares a list, too

    @extend_schema(
        responses=inline_serializer(
            "OwnKeys",
            {
                "data": OwnKey(many=True),
                "teams": serializers.ListField(child=serializers.DictField()),
            },
        )
    )
    def get(self, request: Request) -> HttpResponseBase:
        self.validated_query()
        teams = [
            {
                "team": reference_of(team),
                "member_keys": team.member_keys,
                "left": max(0, member_limits(team).count - working_keys(team, request.user)),
            }
            for team in own_key_teams(request.user)
        ]
        return Response({"data": list(map(self.row, self.own_keys())), "teams": teams})

    @extend_schema(request=NewKey, responses={201: OwnKeyWithSecret})
    @sensitive_variables("secret")
    def post(self, request: Request) -> HttpResponseBase:
        given = validated_body(request, NewKey)
        teams = {team.name: team for team in own_key_teams(request.user)}
        team: Team | None = teams.get(given["team"])
        if team is None:
            known = ", ".join(sorted(teams)) or "none"
            raise ValidationError({"team": f"you may make keys in: {known}"})
        try:
            key, secret = issue_own_key(
                request.user,
                team,
                given["name"],
                expires=given["expires_at"],
                scopes=given["scopes"],
                models=given["models_allowed"],
            )
        except ModelInvalid as error:
            names = {"expires": "expires_at", NON_FIELD_ERRORS: "non_field_errors"}
            found = error.message_dict
            raise ValidationError({names.get(name, name): found[name] for name in found}) from None
        return self.secret_response(key, secret, status.HTTP_201_CREATED)


class OwnKeyView(OwnKeysBase):
    """One key of the caller. DELETE revokes it; the row stays."""

    http_method_names = [*READ_METHODS, "delete"]  # noqa: RUF012  # Django's View declares a list, too

    @extend_schema(responses=OwnKey)
    def get(self, request: Request, key_id: str) -> HttpResponseBase:
        self.validated_query()
        return Response(self.row(self.own_key(key_id)))

    @extend_schema(request=None, responses={200: OwnKey})
    def delete(self, request: Request, key_id: str) -> HttpResponseBase:
        key = self.own_key(key_id)
        key.revoke()
        return Response(self.row(key))


class OwnKeyRotationView(OwnKeysBase):
    """Give one key of the caller a new secret, which only this response contains."""

    http_method_names = ["options", "post"]  # noqa: RUF012  # Django's View declares a list, too

    @extend_schema(request=Rotation, responses=OwnKeyWithSecret)
    @sensitive_variables("secret")
    def post(self, request: Request, key_id: str) -> HttpResponseBase:
        given, key = validated_body(request, Rotation), self.own_key(key_id)
        if key.managed:
            raise Conflict(MANAGED.format(key))
        if key.revoked or not may_rotate(request.user, key):
            raise PermissionDenied("the key is revoked, or not within the limits of its team")
        try:
            secret = rotate_key(request.user, key, timedelta(hours=given["overlap_h"]))
        except IntegrityError:  # the name of the old secret has the second in which it ends
            raise Conflict("the key was rotated at the same time") from None
        return self.secret_response(key, secret, status.HTTP_200_OK)
