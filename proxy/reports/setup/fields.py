"""Serializer fields for relations and JSON columns of the configuration's rows."""

from typing import Any, ClassVar, Final, cast

import msgspec
from django.db.models import QuerySet
from drf_spectacular.extensions import OpenApiSerializerFieldExtension
from rest_framework import serializers

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

MAX_ITEMS: Final = 200
"""Maximum entries of a list in a body."""


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


class TypedValue(serializers.JSONField):
    """The value of a ``TypedJSON`` column. The column's validator checks it.

    A stored value of another type is shown as it is.
    """

    def __init__(self, *, kind: Any = dict[str, Any], **kwargs: Any) -> None:
        self.kind = kind
        super().__init__(**kwargs)

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, list) and len(data) > MAX_ITEMS:
            raise serializers.ValidationError(f"at most {MAX_ITEMS} entries")
        return data


NOT_IN_OPENAPI: Final = {"default", "discriminator", "propertyNames"}
"""Keywords of the schemas of msgspec that OpenAPI 3.0 lacks, or that refer to ``$defs``."""
NULL: Final = {"type": "null"}


class TypedValueSchema(OpenApiSerializerFieldExtension):  # type: ignore[no-untyped-call]  # the library has no types
    """Describe the values of a column for drf-spectacular by the type that the column declares."""

    target_class = "proxy.reports.setup.fields.TypedValue"

    def map_serializer_field(self, auto_schema: Any, direction: str) -> dict[str, Any]:
        (schema,), defs = msgspec.json.schema_components(
            [self.target.kind], schema_hook=lambda _: {"type": "string"}
        )

        def inlined(part: Any) -> Any:
            """Write JSON Schema 2020-12, which msgspec makes, as OpenAPI 3.0."""
            if isinstance(part, list):
                return [inlined(each) for each in part]
            if not isinstance(part, dict):
                return part
            if "$ref" in part:
                return inlined(defs[part["$ref"].rpartition("/")[2]])
            written = {
                name: inlined(each)
                for name, each in part.items()
                if name not in NOT_IN_OPENAPI and (name, each) != ("required", [])
            }
            for bound in ("minimum", "maximum"):
                if (exclusive := f"exclusive{bound.capitalize()}") in written:
                    written |= {bound: written[exclusive], exclusive: True}
            if (choices := written.get("anyOf")) and NULL in choices:
                written["anyOf"] = [choice for choice in choices if choice != NULL]
                written["nullable"] = True
            return written

        return cast("dict[str, Any]", inlined(schema))
