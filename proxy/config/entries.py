"""The entries of a bridge.toml: serializers of the configuration's columns, under the file's names.

They read the file and write ``exportconfig``. Types, choices and validators come from the columns,
as for REST; a reference to another row is its name, as the row may be in the same file.
"""

import contextlib
import datetime as dt
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, Final

from rest_framework import serializers
from rest_framework.validators import UniqueValidator

from proxy.decode_errors import did_you_mean
from proxy.models import ApiKey, Budget, Price, Route, RouteTarget, Team, Upstream, Webhook
from proxy.models.setup.columns import (
    A_SECRET,
    SEALED,
    SecretColumn,
    SecretReference,
    TypedJSON,
    settings_of,
)
from proxy.models.setup.prices import DIMENSIONS, FIGURES
from proxy.models.setup.upstreams import SANDBOXES
from proxy.reports.setup.base_serializers import StrictSerializer
from proxy.reports.setup.fields import TypedValue

from .load import BridgeFile, Entry

TYPES: Final = (
    (serializers.BooleanField, bool),
    (serializers.IntegerField, int),
    (serializers.CharField, str),
)
"""Serializer fields that would convert values of other types, which are mistakes in the file."""
QUOTED: Final = (
    serializers.SlugField,
    serializers.RegexField,
    serializers.DecimalField,
    serializers.IntegerField,
    serializers.DateField,
)
"""Serializer fields whose errors get the value. Other errors have it, or it may be secret."""
PATH_IN_VALUE: Final = re.compile(r"(?=[\w.\[\]]+: )")
"""The beginning of a message that starts with a path within the value of a column."""
REFERENCE: Final = re.compile(r"[A-Za-z0-9_-]{1,64}/[A-Za-z0-9_-]{1,64}")


class Value(TypedValue):
    """The value of a column; its size is limited by that of the file."""

    def to_internal_value(self, data: Any) -> Any:
        return data


class RowName(serializers.CharField):
    """A reference to a row by its name."""


class EntrySerializer(StrictSerializer):
    """An entry, whose validated data are values of the row's columns."""

    serializer_field_mapping: ClassVar = {
        **StrictSerializer.serializer_field_mapping,
        TypedJSON: Value,
    }
    serializer_related_field = RowName  # type: ignore[assignment]  # its value is a name
    default_error_messages: ClassVar = {"invalid": "a table is expected"}
    other_defaults: ClassVar[Mapping[str, Any]] = {}
    """Column -> its value without one in the file, if it is not the default of the column."""

    def build_standard_field(self, field_name: str, model_field: Any) -> Any:
        kind, options = super().build_standard_field(field_name, model_field)
        found = options.get("validators", ())
        options["validators"] = [one for one in found if not isinstance(one, UniqueValidator)]
        return kind, options

    def build_relational_field(self, field_name: str, relation_info: Any) -> Any:
        return RowName, {"required": not relation_info.model_field.null, "max_length": 150}

    def to_internal_value(self, data: Any) -> Any:
        return self.defaults | super().to_internal_value(data)

    def mistakes(self, data: Mapping[str, Any]) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for name, one in self.fields.items():
            expected = next((right for kind, right in TYPES if isinstance(one, kind)), None)
            if name in data and expected and type(data[name]) is not expected:
                types = f"Expected {expected.__name__}, got {type(data[name]).__name__}"
                found[name] = [f"{types}, found {repr(data[name])[:60]}"]
            value, is_secret = data.get(name), getattr(one, "kind", None) is SecretReference
            if is_secret and isinstance(value, dict) and (not value or SEALED in value):
                found[name] = [A_SECRET]
        unknown = [str(name) for name in data if name not in self.fields]
        if unknown:
            found["non_field_errors"] = [
                f"unknown key {name[:100]!r}{did_you_mean(name, self.fields)}" for name in unknown
            ]
        return found

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """The values of the columns that an entry leaves out, by column."""
        columns = self.Meta.model._meta.concrete_fields  # type: ignore[attr-defined]  # noqa: SLF001 - documented by Django
        named = {one.source for one in self.fields.values()}
        found = {one.name: one.get_default() for one in columns if one.name in named}
        return {**found, **self.other_defaults}

    def to_representation(self, instance: Any) -> dict[str, Any]:
        """Return the entry of a row, without the values that are defaults."""
        found: dict[str, Any] = {}
        for name, one in self.fields.items():
            if one.write_only:
                continue
            if isinstance(one, serializers.BaseSerializer):
                value = one.to_representation(one.get_attribute(instance))
            else:
                value = getattr(instance, str(one.source))
                if value == self.defaults[str(one.source)] or (
                    isinstance(value, dict) and SEALED in value
                ):
                    continue
                value = str(value) if isinstance(one, RowName) else value
            if value not in (None, "", [], {}):
                found[name] = value
        return found


class UpstreamEntry(EntrySerializer):
    class Meta:
        model = Upstream
        fields = (*settings_of(Upstream, "secret"), "api_key")
        extra_kwargs: ClassVar = {
            "api_key": {"source": "secret"},
            "base_url": {"validators": ()},
            "profile": {"default": ""},
        }

    other_defaults: ClassVar = {"profile": ""}

    def validate_name(self, name: str) -> str:
        if name in SANDBOXES:
            raise serializers.ValidationError(f"{name!r} belongs to the built-in sandbox")
        return name

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        url, own = attrs["base_url"].rstrip("/"), self.own_profile(attrs["dialect"])
        return attrs | {"base_url": url, "profile": attrs["profile"] or own}

    def to_representation(self, instance: Upstream) -> dict[str, Any]:
        found = super().to_representation(instance)
        if instance.profile == self.own_profile(instance.dialect):
            del found["profile"]
        return found

    def own_profile(self, dialect: str) -> str:
        return "anthropic" if dialect == "anthropic" else "generic"


class TargetEntry(EntrySerializer):
    class Meta:
        model = RouteTarget
        fields = ("upstream", "model", "weight", "when")
        extra_kwargs: ClassVar = {"model": {"default": "*"}, "weight": {"min_value": 0}}

    def validate_model(self, model: str) -> str:
        return "" if model == "*" else model


class RouteEntry(EntrySerializer):
    targets = TargetEntry(many=True, min_length=1)  # type: ignore[call-arg]  # of ListSerializer

    class Meta:
        model = Route
        fields = ("model", "team", "targets")
        validators = ()


class FiguresEntry(EntrySerializer):
    """The prices of a model by token class, in US dollars per million tokens."""

    class Meta:
        model = Price
        fields = FIGURES


class PriceEntry(EntrySerializer):
    usd = FiguresEntry(source="*")

    class Meta:
        model = Price
        fields = ("upstream", "model", *DIMENSIONS, "since", "usd", "source")
        extra_kwargs: ClassVar = {
            "since": {"error_messages": {"invalid": "a date is written 2026-01-01, without quotes"}}
        }
        validators = ()


class BudgetEntry(EntrySerializer):
    class Meta:
        model = Budget
        fields: tuple[str, ...] = ("usd", "period", "zone", "models", "hard", "emails")
        extra_kwargs: ClassVar = {"models": {"source": "models_covered"}}


class OwnedBudgetEntry(BudgetEntry):
    """A budget in ``[[budgets]]``, which has its owner in ``team``, ``key`` or ``user``."""

    class Meta(BudgetEntry.Meta):
        fields = ("team", "key", "user", *BudgetEntry.Meta.fields)

    def validate_key(self, name: str) -> str:
        if not REFERENCE.fullmatch(name):
            raise serializers.ValidationError(f"{name!r} is not a key such as 'team/name'")
        return name

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if len([owner for owner in ("team", "key", "user") if attrs.get(owner)]) != 1:
            raise serializers.ValidationError(
                'a budget is for one of team = "T", key = "T/K", user = "U"'
            )
        return attrs


class TeamEntry(EntrySerializer):
    budgets = BudgetEntry(many=True, required=False)

    class Meta:
        model = Team
        fields = (*settings_of(Team, "models_allowed"), "models", "budgets")
        extra_kwargs: ClassVar = {"models": {"source": "models_allowed"}}


class Expiry(serializers.Field[Any, Any, Any, Any]):
    """When a key expires. A TOML date means the beginning of that day in UTC."""

    def to_internal_value(self, data: Any) -> dt.datetime:
        if isinstance(data, dt.date):
            at = data if isinstance(data, dt.datetime) else dt.datetime.combine(data, dt.time())
            with contextlib.suppress(OverflowError):  # in UTC, it is before the year 1
                return at.astimezone(dt.UTC) if at.tzinfo else at.replace(tzinfo=dt.UTC)
        raise serializers.ValidationError("a date is written 2027-01-01, without quotes")

    def to_representation(self, value: Any) -> Any:
        return value


class KeyEntry(EntrySerializer):
    # without one, the command createkey generates a secret
    secret = Value(
        kind=SecretReference,
        required=False,
        write_only=True,
        validators=[SecretColumn().check_value],
        source="secret_reference",
    )
    expires = Expiry(required=False)
    budgets = BudgetEntry(many=True, required=False, source="budget_set")
    other_defaults: ClassVar = {"scopes": ["messages"], "secret_reference": None}

    class Meta:
        model = ApiKey
        fields = (
            "team", "name", "user", "scopes", "secret", "expires", "limits", "models", "ip_allow",
            "options", "budgets",
        )  # fmt: skip
        extra_kwargs: ClassVar = {
            "models": {"source": "models_allowed"},
            "scopes": {"required": False},
        }
        validators = ()

    def validate_scopes(self, scopes: list[str]) -> list[str]:
        if not scopes:
            raise serializers.ValidationError("at least one is expected")
        return scopes


class WebhookEntry(EntrySerializer):
    class Meta:
        model = Webhook
        fields = settings_of(Webhook)


SERIALIZERS: Final[Mapping[str, type[EntrySerializer]]] = {
    "upstreams": UpstreamEntry,
    "routes": RouteEntry,
    "prices": PriceEntry,
    "teams": TeamEntry,
    "keys": KeyEntry,
    "budgets": OwnedBudgetEntry,
    "webhooks": WebhookEntry,
}


def read_entries(tables: Mapping[str, Any]) -> BridgeFile:
    """Return the entries that can be read, and the mistakes of the others with their paths."""
    file = BridgeFile()
    for name in tables:
        if name not in SERIALIZERS:
            file.mistakes.append(f"unknown key {name[:100]!r}{did_you_mean(name, SERIALIZERS)}")
    for name, serializer in SERIALIZERS.items():
        entries = tables.get(name, [])
        if not isinstance(entries, list):
            file.mistakes.append(f"{name}: a list is expected: [[{name}]]")
            file.wrong.add((name.removesuffix("s"), None))
            continue
        reader = serializer()
        for place, entry in enumerate(entries):
            where = f"{name}[{place}]"
            try:
                values = dict(reader.run_validation(entry))
            except serializers.ValidationError as error:
                file.mistakes.extend(_messages(error.detail, where, reader, entry))
                file.wrong.add((name.removesuffix("s"), _name_of(name, entry)))
            else:
                getattr(file, name).append(Entry(where, values))
    return file


def _name_of(list_name: str, entry: Any) -> str | None:
    """Return the name by which other entries refer to this one, if it can be read."""
    parts = ("team", "name") if list_name == "keys" else ("name",)
    found = [entry.get(part) if isinstance(entry, dict) else None for part in parts]
    texts = [text for text in found if isinstance(text, str)]
    return "/".join(texts) if len(texts) == len(parts) else None


def _messages(detail: Any, path: str, one: Any, value: Any) -> Iterator[str]:
    """Yield the errors of a serializer or field ``one`` with their paths."""
    if isinstance(detail, dict):
        for name, inner in detail.items():
            if name == "non_field_errors":
                yield from _messages(inner, path, None, None)
            elif isinstance(name, int):
                yield from _messages(inner, f"{path}[{name}]", one.child, value[name])
            else:
                found = value.get(name) if isinstance(value, dict) else None
                yield from _messages(inner, f"{path}.{name}", one.fields[name], found)
        return
    for place, message in enumerate(detail):
        if isinstance(message, dict):
            yield from _messages(message, f"{path}[{place}]", one.child, value[place])
            continue
        text = str(message)
        joint = ("" if text.startswith("[") else ".") if PATH_IN_VALUE.match(text) else ": "
        quoted = isinstance(one, QUOTED) and value is not None and ", found " not in text
        shown = str(value)[:60]
        yield f"{path}{joint}{text.rstrip('.')}" + (
            f", found {shown!r}" if quoted and shown not in text else ""
        )
