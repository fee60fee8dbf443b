"""Serializer fields for relations and JSON columns of the configuration's rows."""

import json
from typing import Any, ClassVar, Final, get_args

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from proxy.models import Scope
from proxy.models.setup import json_field_types
from proxy.permissions.write_permissions import choices
from proxy.reports.core.permissions import caller_of

MAX_ITEMS: Final = 200  # maximum entries of a list
NAMES: Final = {"type": "array", "items": {"type": "string", "maxLength": 200}}
MODEL_LIMITS: Final = {
    "type": "object",
    "properties": {
        name: {"type": "integer", "minimum": 1} for name in ("rpm", "tpm", "concurrency")
    },
}
LIMITS: Final = {
    "type": "object",
    "properties": {
        **MODEL_LIMITS["properties"],  # type: ignore[dict-item]  # a JSON schema
        "models": {
            "type": "object",
            "description": "Further limits by a model's name or glob, at most 50.",
            "additionalProperties": MODEL_LIMITS,
        },
    },
}
MEMBER_KEYS: Final = {
    "type": "object",
    "properties": {
        "count": {"type": "integer", "minimum": 1},
        "days": {"type": "integer", "minimum": 1},
        "scopes": {
            "type": "array",
            "items": {"type": "string", "enum": list(get_args(json_field_types.MemberScope))},
        },
        "models": NAMES,
    },
}
OPTIONS: Final = {
    "type": "object",
    "properties": {
        "strict": {"type": "boolean"},
        "events": {
            "type": "array",
            "items": {"type": "string", "enum": list(get_args(json_field_types.Extra))},
        },
        "store": {"type": "string", "enum": [json_field_types.METADATA_ONLY]},
    },
}


class OfCaller:
    """A mixin for references to another table's row; a row the caller may not use is unknown."""

    context: dict[str, Any]

    def get_queryset(self) -> "QuerySet[Any]":
        rows: QuerySet[Any] = super().get_queryset()  # type: ignore[misc]  # of DRF's related fields
        request = self.context.get("request")  # none when the OpenAPI schema is generated
        return rows if request is None else choices(caller_of(request), rows)


class Named(OfCaller, serializers.SlugRelatedField[Any]):
    """A reference by name."""

    default_error_messages: ClassVar = {"does_not_exist": "there is no {value!r}"}


class Numbered(OfCaller, serializers.PrimaryKeyRelatedField[Any]):
    """A reference by id."""

    default_error_messages: ClassVar = {"does_not_exist": "there is no {pk_value!r}"}


class RelatedNames(serializers.ListField):
    """The names of the related rows of a many-to-many relation, sorted."""

    def to_representation(self, data: Any) -> list[str]:
        return sorted(super().to_representation(data.all()))


class JsonColumn(serializers.JSONField):
    """The value of a JSON column, as both SQLite and PostgreSQL can store it.

    The model's ``clean`` checks its type; a stored value of another type is shown as it is.
    """

    def to_internal_value(self, data: Any) -> Any:
        try:
            encoded = json.dumps(data, allow_nan=False, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            # The value contains an infinity or an unpaired surrogate, or it is nested too deep.
            encoded = b"\\u0000"
        if b"\\u0000" in encoded:
            raise serializers.ValidationError("it contains values that a database cannot store")
        if isinstance(data, list) and len(data) > MAX_ITEMS:
            raise serializers.ValidationError(f"at most {MAX_ITEMS} entries")
        return data


@extend_schema_field(NAMES)
class NamesColumn(JsonColumn):
    """A JSON column with a list of names."""


@extend_schema_field({**NAMES, "items": {"type": "string", "enum": list(Scope.values)}})
class ScopesColumn(JsonColumn):
    """The JSON column with the scopes of a key."""


@extend_schema_field(LIMITS)
class LimitsColumn(JsonColumn):
    """The JSON column with the limits of a key or a team."""


@extend_schema_field(OPTIONS)
class OptionsColumn(JsonColumn):
    """The JSON column with the options of a key."""


@extend_schema_field(MEMBER_KEYS)
class MemberKeysColumn(JsonColumn):
    """The JSON column with the limits of the keys that members make."""


@extend_schema_field({"type": "object", "additionalProperties": True})
class ObjectColumn(JsonColumn):
    """A JSON column with an object of any keys."""
