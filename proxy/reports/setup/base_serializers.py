"""Base serializers of the configuration's rows: checks of names, types, values and permissions.

The serializers check the names and types of the fields. The models check the values
(``full_clean``), and ``proxy.permissions.write_permissions`` checks what the caller may write; the
admin's forms use the same two.
"""

import copy
import difflib
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from django.core.exceptions import ValidationError as ModelInvalid
from django.db import models
from rest_framework import serializers

from proxy.models.setup.columns import TypedJSON
from proxy.permissions.write_permissions import ADD, CHANGE, faults
from proxy.reports.core.permissions import caller_of
from proxy.reports.core.query_parameters import Choice, Number

from .fields import TypedValue


class StrictSerializer(serializers.ModelSerializer[Any]):
    """A model serializer that refuses unknown and read-only fields."""

    serializer_choice_field = Choice
    serializer_field_mapping: ClassVar = {
        **serializers.ModelSerializer.serializer_field_mapping,
        models.PositiveIntegerField: Number,
        TypedJSON: TypedValue,
    }

    def build_standard_field(self, field_name: str, model_field: Any) -> Any:
        field, kwargs = super().build_standard_field(field_name, model_field)
        if isinstance(model_field, TypedJSON):
            kwargs["kind"] = model_field.kind
        return field, kwargs

    def to_internal_value(self, data: Any) -> Any:
        found: dict[Any, Any] = {}
        try:
            values = super().to_internal_value(data)
        except serializers.ValidationError as error:
            found = cast("dict[Any, Any]", error.detail)
        if isinstance(data, dict):
            found |= self.mistakes(data)
        if found:
            raise serializers.ValidationError(found)
        return values

    def mistakes(self, data: Mapping[str, Any]) -> dict[Any, Any]:
        """Return the errors that DRF does not find: names of unknown fields."""
        known = sorted(name for name, field in self.fields.items() if not field.read_only)
        found = {}
        for name in (str(name)[:60] for name in data if name not in known):
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
            found[name] = [f"unknown field; {hint}"]
        return found


class ConfigSerializer(StrictSerializer):
    """A row of the configuration. ``validate`` builds the row as it would be stored and checks it.

    Raises ValidationError with the API's field names.
    """

    default_error_messages: ClassVar = {"invalid": "the body is not a JSON object"}
    SEPARATE: ClassVar[frozenset[str]] = frozenset()
    """Validated values that are not columns of the row; ``save_separate`` stores them."""

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        row = copy.copy(self.instance) if self.instance else self.Meta.model()  # type: ignore[misc]  # each subclass has a Meta
        for name, value in attrs.items():
            if name not in self.SEPARATE:
                setattr(row, name, value)
        self.complete(row, attrs)
        columns = {field.source for field in self.fields.values()}
        others = {field.name for field in row._meta.fields} - columns  # noqa: SLF001 - documented by Django
        try:
            row.full_clean(exclude=others)
        except ModelInvalid as error:
            raise self.renamed(error.message_dict) from None
        action = CHANGE if self.instance else ADD
        found = faults(caller_of(self.context["request"]), action, type(row), row)
        if found:
            raise self.renamed({name or "__all__": [why] for name, why in found})
        return {**attrs, "row": row}

    def complete(self, row: Any, attrs: dict[str, Any]) -> None:
        """Set the columns of a row that follow from other values of the body."""

    def renamed(self, errors: Mapping[str, Any]) -> serializers.ValidationError:
        """Return the errors of model fields under the API's field names."""
        names = {"__all__": "non_field_errors"}
        names |= {str(field.source): name for name, field in self.fields.items()}
        return serializers.ValidationError({names.get(name, name): errors[name] for name in errors})

    def create(self, validated_data: dict[str, Any]) -> Any:
        row = validated_data["row"]
        row.save(force_insert=True)
        self.save_separate(row, validated_data)
        return row

    def update(self, instance: Any, validated_data: dict[str, Any]) -> Any:
        row = validated_data["row"]
        changed = [
            field.name
            for field in row._meta.concrete_fields  # noqa: SLF001 - documented by Django
            if getattr(row, field.attname) != getattr(instance, field.attname)
        ]
        if changed:
            row.save(update_fields=changed)
        self.save_separate(row, validated_data)
        return row

    def save_separate(self, row: Any, values: dict[str, Any]) -> None:
        """Store the values that are not columns of the row, after the row."""
