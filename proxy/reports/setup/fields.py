"""Serializer fields for relations and JSON columns of the configuration's rows."""

import json
from typing import Any, ClassVar, Final, get_args

from django.db.models import QuerySet
from drf_spectacular.extensions import OpenApiSerializerFieldExtension
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from proxy.models import Scope
from proxy.models.setup import json_field_types
from proxy.permissions.write_permissions import choices
from proxy.reports.core.permissions import caller_of
from proxy.reports.core.references import (
    KINDS,
    SECOND_FIELD,
    id_in,
    parse_key_id,
    reference_of,
    reference_schema,
)

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


class Linked(serializers.SlugRelatedField[Any]):
    """A reference to another table's row, by its id. A row the caller may not use is unknown.

    A row shows it as every other row does; a body has the id or the reference of a row.
    """

    default_error_messages: ClassVar = {"does_not_exist": "there is no {value!r}"}
    context: dict[str, Any]

    def to_internal_value(self, data: Any) -> Any:
        return super().to_internal_value(id_in(data))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the reference in a CSV file."""
        rows = vars(self)["queryset"]  # mypy takes the attribute for the descriptor of a manager
        return ("id", SECOND_FIELD[KINDS[rows.model]])

    def to_representation(self, obj: Any) -> Any:
        return reference_of(obj)

    def get_queryset(self) -> "QuerySet[Any]":
        rows: Any = super().get_queryset()
        request = self.context.get("request")  # none when the OpenAPI schema is generated
        return rows if request is None else choices(caller_of(request), rows)


class LinkedKey(Linked):
    """A reference to a gateway key, such as ``apikey_12``."""

    def to_internal_value(self, data: Any) -> Any:
        pk = parse_key_id(id_in(data))
        if not pk:
            self.fail("does_not_exist", value=id_in(data))
        return super().to_internal_value(pk)


class Named(Linked):
    """A reference that a row shows by its name or number alone, such as that of a group."""

    columns = ()

    def to_representation(self, obj: Any) -> Any:
        return getattr(obj, str(self.slug_field))


class LinkedSchema(OpenApiSerializerFieldExtension):  # type: ignore[no-untyped-call]  # the library has no types
    """Describe references for drf-spectacular: a row has an object, a body the id."""

    target_class = "proxy.reports.setup.fields.Linked"
    match_subclasses = True

    def map_serializer_field(self, auto_schema: Any, direction: str) -> dict[str, Any]:
        kind = KINDS.get(self.target.queryset.model)
        if kind is None:
            return {"type": "integer" if self.target.slug_field == "pk" else "string"}
        return {"type": "string"} if direction == "request" else reference_schema(kind)


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
