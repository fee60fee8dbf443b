"""Objects as parts of other objects: one shape for each kind, with the id that the API takes.

A row shows a team as ``{"id": ..., "name": ...}`` wherever it refers to one. The id is what paths,
filters and bodies take. A body also takes the reference as a row shows it. Teams, users and
upstreams have their names as ids, because names are unique and the configuration file has only
names; a gateway key has an id of its own, because its name is unique only within its team.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from django.contrib.auth.models import User
from django.db.models import Model
from drf_spectacular.extensions import OpenApiSerializerFieldExtension
from rest_framework import serializers

from proxy.ledger.maintenance.export import key_id
from proxy.models import ApiKey, Team, Upstream

Row = dict[str, Any]
KEY_ID: Final = re.compile(r"apikey_([0-9]{1,18})", re.ASCII)


def parse_key_id(text: Any) -> int:
    """Return the primary key in the id of a gateway key, such as ``apikey_12``; 0 for others."""
    match = KEY_ID.fullmatch(text) if isinstance(text, str) else None
    return int(match[1]) if match else 0


REFERENCES: Final[Mapping[type[Model], Callable[[Any], Row]]] = {
    Team: lambda team: {"id": team.name, "name": team.name},
    User: lambda user: {"id": user.get_username(), "email": user.email or None},
    ApiKey: lambda key: {"id": key_id(key.pk), "name": key.name},
    Upstream: lambda upstream: {"id": upstream.name, "dialect": upstream.dialect},
}
SECOND_FIELD: Final = {"team": "name", "key": "name", "user": "email", "upstream": "dialect"}
"""Kind of object -> the field of its reference beside ``id``."""


def reference_of(row: Any) -> Row | None:
    """Return the reference to a row of the configuration; None for None."""
    return None if row is None else REFERENCES[type(row)](row)


def reference_schema(kind: str) -> Row:
    """Return the OpenAPI schema of a reference to a ``team``, ``key``, ``user`` or ``upstream``."""
    second = SECOND_FIELD[kind]
    return {
        "type": "object",
        "description": f"With `expand`, the object has all fields of the {kind}.",
        "required": ["id", second],
        "properties": {
            "id": {"type": "string", "nullable": True},
            second: {"type": "string", "nullable": True},
        },
    }


KINDS: Final[Mapping[type[Model], str]] = {
    Team: "team",
    User: "user",
    ApiKey: "key",
    Upstream: "upstream",
}


class Reference(serializers.Field[Any, Any, Any, Any]):
    """A reference in a row that no Django model stores. The value is the reference itself."""

    def __init__(self, kind: str, **kwargs: Any) -> None:
        self.kind = kind
        super().__init__(read_only=True, **kwargs)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the reference in a CSV file."""
        return ("id", SECOND_FIELD[self.kind])

    def to_representation(self, value: Any) -> Any:
        return value


class KeyId(serializers.CharField):
    """The id of a gateway key, such as ``apikey_12``; its value is the primary key."""

    def to_internal_value(self, data: Any) -> Any:
        pk = parse_key_id(data)
        if not pk:
            raise serializers.ValidationError(f"{str(data)[:60]!r} is not an id like 'apikey_12'")
        return pk


class ReferenceSchema(OpenApiSerializerFieldExtension):  # type: ignore[no-untyped-call]  # the library has no types
    """Describe ``Reference`` for drf-spectacular."""

    target_class = "proxy.reports.core.references.Reference"

    def map_serializer_field(self, auto_schema: Any, direction: str) -> Row:
        return reference_schema(self.target.kind)


def id_in(data: Any) -> Any:
    """Return the id in the body of a write: the value itself, or the ``id`` of a reference."""
    return data["id"] if isinstance(data, dict) and "id" in data else data
