"""Serializers of the request bodies that write configuration rows.

They check the names and types of the fields; the admin's forms check the values. A field has the
same name as in the responses.
"""

import difflib
import ipaddress
import json
from typing import Any, ClassVar, Final

from django.contrib.auth.models import Group, User
from django.db.models import QuerySet
from rest_framework import serializers

from proxy.models import ConnectionReuse, OnClientDisconnect, Scope, Store, Team, Upstream
from proxy.models.setup.upstreams import DialectName
from proxy.permissions.write_permissions import choices
from proxy.reports.core.query_parameters import Choice, Number

MAX_ITEMS: Final = 200  # maximum entries of a list


class Shape(serializers.Serializer[Any]):
    """A JSON object without unknown fields."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict):
            for name in data:
                if name not in self.fields:
                    close = difflib.get_close_matches(str(name), self.fields, 1)
                    hint = f"did you mean {close[0]!r}?" if close else f"known: {self._known()}"
                    raise serializers.ValidationError({str(name)[:60]: f"unknown field; {hint}"})
        return super().to_internal_value(data)

    def _known(self) -> str:
        return ", ".join(sorted(self.fields))


class Named(serializers.SlugRelatedField[Any]):
    """A reference to another table's row by name; a row that the caller may not use is unknown."""

    default_error_messages: ClassVar = {"does_not_exist": "there is no {value!r}"}

    def get_queryset(self) -> "QuerySet[Any]":
        rows: QuerySet[Any] = super().get_queryset()  # type: ignore[assignment]  # the subclass sets a queryset
        user = self.context.get("user")  # there is no user when the OpenAPI schema is generated
        return rows if user is None else choices(user, rows)


class Network(serializers.CharField):
    def to_internal_value(self, data: Any) -> str:
        text = super().to_internal_value(data)
        try:
            ipaddress.ip_network(text)
        except ValueError as error:
            raise serializers.ValidationError(str(error)) from None
        return text


class JsonObject(serializers.DictField):
    """A JSON object that both SQLite and PostgreSQL can store."""

    def to_internal_value(self, data: Any) -> Any:
        value = super().to_internal_value(data)
        try:
            encoded = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            # The value contains an infinity or an unpaired surrogate, or it is nested too deep.
            encoded = b"\\u0000"
        if b"\\u0000" in encoded:
            raise serializers.ValidationError("it contains values that a database cannot store")
        return value


def name_list(**options: Any) -> serializers.ListField:
    return serializers.ListField(
        child=serializers.CharField(max_length=200), required=False, max_length=MAX_ITEMS, **options
    )


def count() -> serializers.IntegerField:
    return Number(min_value=1, max_value=2**53, required=False)


class LimitsShape(Shape):
    rpm = count()
    tpm = count()
    concurrency = count()


class OptionsShape(Shape):
    strict = serializers.BooleanField(required=False)
    events = serializers.ListField(
        child=Choice(choices=("metadata", "blocks")), required=False, max_length=2
    )
    store = Choice(choices=("metadata",), required=False)


class MemberKeysShape(Shape):
    """Limits of the keys that members make for themselves; without a count, they make none."""

    count = Number(min_value=1, max_value=10_000, required=False, help_text="Keys per member.")
    days = Number(min_value=1, max_value=36_500, required=False, help_text="Longest lifetime.")
    scopes = serializers.ListField(
        child=Choice(choices=("messages", "reports")), required=False, max_length=2
    )
    models = name_list(help_text="Names and globs; empty: every model of the team.")


class KeyShape(Shape):
    team = Named(slug_field="name", queryset=Team.objects.all())
    name = serializers.SlugField(max_length=64)
    user = Named(
        slug_field="username", queryset=User.objects.all(), required=False, allow_null=True
    )
    scopes = serializers.ListField(
        child=Choice(choices=Scope.values), required=False, min_length=1, max_length=3
    )
    expires_at = serializers.DateTimeField(source="expires", required=False, allow_null=True)
    models_allowed = name_list(help_text="Globs; empty: every model of the team.")
    limits = LimitsShape(required=False)
    ip_allow = serializers.ListField(
        child=Network(max_length=50),
        required=False,
        max_length=MAX_ITEMS,
        help_text="Allowed client networks.",
    )
    options = OptionsShape(required=False)


class TeamShape(Shape):
    name = serializers.SlugField(max_length=64)
    store = Choice(choices=Store.values, required=False)
    retention_days = Number(min_value=1, max_value=36_500, required=False)
    models_allowed = name_list(help_text="Globs; empty: every model that has a route.")
    limits = LimitsShape(required=False)
    member_keys = MemberKeysShape(required=False)


class UserShape(Shape):
    """A user, who signs in through the provider or gets a password in the admin."""

    name = serializers.CharField(source="username", max_length=150)
    email = serializers.EmailField(required=False, allow_blank=True, max_length=254)
    is_active = serializers.BooleanField(required=False)
    is_staff = serializers.BooleanField(required=False)
    is_superuser = serializers.BooleanField(required=False)
    groups = serializers.ListField(
        child=Named(slug_field="name", queryset=Group.objects.all()),
        required=False,
        max_length=MAX_ITEMS,
    )


class TargetShape(Shape):
    upstream = Named(slug_field="name", queryset=Upstream.objects.all())
    model = serializers.CharField(max_length=200, required=False, allow_blank=True)
    weight = Number(min_value=1, max_value=1_000_000, required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Require ``upstream`` even in a PATCH, because a PATCH replaces all targets of a route."""
        if "upstream" not in attrs:
            raise serializers.ValidationError({"upstream": "This field is required."})
        return attrs


class ModelShape(Shape):
    model = serializers.CharField(max_length=200, help_text="A name or a glob.")
    team = Named(slug_field="name", queryset=Team.objects.all(), required=False, allow_null=True)
    position = Number(min_value=0, max_value=2**31 - 1, required=False)
    targets = serializers.ListField(child=TargetShape(), min_length=1, max_length=MAX_ITEMS)

    def validate_targets(self, targets: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Add the position to each target: the gateway tries targets in the order of the list."""
        return [{**target, "position": number} for number, target in enumerate(targets)]


class ReferenceShape(Shape):
    env = serializers.CharField(
        max_length=200, required=False, help_text="Name of an environment variable."
    )
    file = serializers.CharField(max_length=1000, required=False, help_text="Path of a file.")


class UpstreamShape(Shape):
    name = serializers.SlugField(max_length=64)
    dialect = Choice(choices=DialectName.values)
    base_url = serializers.CharField(max_length=500)
    api_key = serializers.CharField(
        source="new_secret",
        required=False,
        max_length=4096,
        help_text="Stored encrypted for this base URL and never returned.",
    )
    api_key_from = ReferenceShape(source="secret", required=False)
    profile = serializers.CharField(max_length=32, required=False)
    capabilities = JsonObject(required=False)
    timeouts = JsonObject(required=False)
    extra_body = JsonObject(required=False)
    when_client_leaves = Choice(choices=OnClientDisconnect.values, required=False)
    connection_reuse = Choice(choices=ConnectionReuse.values, required=False)
    connection = JsonObject(required=False)
    allow_http = serializers.BooleanField(required=False)
    enabled = serializers.BooleanField(required=False)


def usd(**options: Any) -> serializers.DecimalField:
    return serializers.DecimalField(max_digits=14, decimal_places=6, min_value=0, **options)


class PriceShape(Shape):
    """US dollars per million tokens from a date on; null: priced as input."""

    upstream = Named(
        slug_field="name",
        queryset=Upstream.objects.all(),
        required=False,
        allow_null=True,
        help_text="null: every upstream with this model",
    )
    model = serializers.CharField(max_length=200)
    since = serializers.DateField()
    input = usd()
    output = usd()
    cache_read = usd(required=False, allow_null=True)
    cache_write_5m = usd(required=False, allow_null=True)
    cache_write_1h = usd(required=False, allow_null=True)
    source = serializers.CharField(  # type: ignore[assignment]  # DRF removes fields from the class
        max_length=300, required=False, allow_blank=True
    )
