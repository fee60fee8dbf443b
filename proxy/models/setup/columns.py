"""The types of the configuration's columns: each is declared once, with its validators.

REST, the admin's forms, ``applyconfig`` and ``exportconfig`` derive their fields from the columns.
A ``TypedJSON`` column has a small nested value of one msgspec type. Its validator matters for rows
of any origin, also of SQL: a misspelled limit would not limit anything, and a string in place of a
list could allow everything.
"""

import fnmatch
import ipaddress
import json
import zoneinfo
from collections.abc import Collection
from typing import Annotated, Any, Final, Literal

import msgspec
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import models
from msgspec import UNSET, Meta, Struct, UnsetType

from proxy.decode_errors import type_errors

METADATA_ONLY: Final = "metadata"
"""The only permitted value of ``store`` in the options of a key."""
SEALED: Final = "sealed"
"""The key of a secret's column whose value is an encrypted secret."""
A_SECRET: Final = 'a secret is { env = "NAME" } or { file = "/path" }'  # noqa: S105 - an error
INLINE_SECRET: Final = f"a secret is never written here: {A_SECRET}"

Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]
Model = Annotated[str, Meta(min_length=1, max_length=200)]
CoveredModels = Annotated[list[Model], Meta(max_length=100)]
"""Names or globs of models; an empty list means all models."""
Extra = Literal["metadata", "blocks"]
ScopeName = Literal[
    "messages", "reports", "reports:read", "transcripts:read", "keys:write", "config:write", "admin"
]
MemberScope = Literal["messages", "reports"]


class Strict(Struct, forbid_unknown_fields=True, kw_only=True):
    """A TOML table or JSON object in which unknown keys are errors.

    ``Meta(title=...)`` of a field is its label in the admin.
    """


class SecretReference(Strict, omit_defaults=True):
    """A reference to a secret: the name of an environment variable or the path of a file."""

    env: str = ""
    file: str = ""

    def __post_init__(self) -> None:
        if bool(self.env) == bool(self.file):
            raise ValueError(A_SECRET)

    @property
    def stored(self) -> dict[str, str]:
        return {"env": self.env} if self.env else {"file": self.file}


class Network(str):
    """An IP network such as ``10.0.0.0/8``."""

    __slots__ = ()


class ModelLimits(Strict):
    rpm: Annotated[Count, Meta(title="Requests per minute")] | UnsetType = UNSET
    tpm: Annotated[Count, Meta(title="Input tokens per minute")] | UnsetType = UNSET
    concurrency: Annotated[Count, Meta(title="Concurrent requests")] | UnsetType = UNSET


class Limits(ModelLimits):
    # By name or glob: further limits of the requests for all models that match it together.
    models: (
        Annotated[
            dict[Model, ModelLimits],
            Meta(
                max_length=50,
                title="For some models, one per line: claude-opus-* rpm=20 concurrency=2",
            ),
        ]
        | UnsetType
    ) = UNSET


class Conditions(Strict, omit_defaults=True):
    """The requests that a route's target takes; each given condition must be true."""

    # estimated
    min_input_tokens: Annotated[Count, Meta(title="Input tokens, at least")] | UnsetType = UNSET
    max_input_tokens: Annotated[Count, Meta(title="Input tokens, at most")] | UnsetType = UNSET
    # a glob: "claude-cli 2.*"
    client: Annotated[str, Meta(max_length=200, title="Client and version")] = ""
    # globs by lower-case name
    headers: Annotated[
        dict[str, str], Meta(max_length=16, title="Headers, one per line: x-team: maps*")
    ] = {}

    def __post_init__(self) -> None:
        least, most = self.min_input_tokens, self.max_input_tokens
        if least is not UNSET and most is not UNSET and least > most:
            raise ValueError("min_input_tokens is larger than max_input_tokens")
        if any(name != name.lower() for name in self.headers):
            raise ValueError("names in headers are in lower case")


class Options(Strict):
    strict: (
        Annotated[bool, Meta(title="Reject requests with fields that a translation would lose")]
        | UnsetType
    ) = UNSET
    events: Annotated[list[Extra], Meta(title="Extra stream events")] | UnsetType = UNSET
    # "metadata": no content, whatever the team has
    store: Annotated[Literal["metadata"], Meta(title="Stored transcripts")] | UnsetType = UNSET


class MemberKeys(Strict):
    """The limits of the keys that members of a team make for themselves."""

    # working keys per member; 0: members make no keys
    count: Annotated[Count, Meta(title="Working keys per member")] = 0
    # null: keys need no expiry
    days: Annotated[int, Meta(ge=1, le=36_500, title="Longest lifetime, in days")] | None = None
    # empty: only messages
    scopes: Annotated[list[MemberScope], Meta(title="Scopes")] = []
    # empty: all models of the team
    models: Annotated[list[Model], Meta(title="Models, one per line")] = []

    @property
    def allowed_scopes(self) -> list[str]:
        return [*self.scopes] or ["messages"]


class Timeouts(Strict):
    """The timeouts of an upstream. Three field names are also values of ``CancelReason``."""

    connect_s: Annotated[Seconds, Meta(title="Connect, seconds")] = 5
    first_byte_s: Annotated[Seconds, Meta(title="First byte, seconds")] = 120
    idle_s: Annotated[Seconds, Meta(title="Between bytes, seconds")] = 120
    total_s: Annotated[Seconds, Meta(title="Whole response, seconds")] = 1_800


def matches_any(model: str, patterns: Collection[str]) -> bool:
    """Return whether a model's name is one of the names, or matches one of the globs."""
    return any(fnmatch.fnmatchcase(model, pattern) for pattern in patterns)


def shown(names: Any) -> str:
    """Return the names of a list column for display, also of a row that cannot be read."""
    is_readable = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return ", ".join(names) if is_readable else "(cannot be read)"


def network(kind: type[Any], value: Any) -> Network:
    """Convert a value to a Network: the ``dec_hook`` of msgspec, which has no type for networks."""
    try:
        ipaddress.ip_network(value if isinstance(value, str) else "")
    except ValueError as error:
        raise ValueError(str(error).replace(f"{value} ", f"{value!r} ", 1)) from None
    return Network(value)


def convert(value: Any, kind: Any) -> Any:
    """Return the value as its type. Raises msgspec.ValidationError."""
    return msgspec.convert(value, kind, dec_hook=network)


def check_type(value: Any, kind: Any) -> None:
    """Raise ValidationError with each mistake: the path in the value, the value, what is right."""
    try:
        convert(value, kind)
    except msgspec.ValidationError:
        raise ValidationError(type_errors(value, kind, convert)) from None


def check_storable(value: Any) -> None:
    """Raise ValidationError for what SQLite or PostgreSQL cannot store as JSON."""
    try:
        encoded = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        # It contains a date of TOML, an infinity or an unpaired surrogate, or is nested too deep.
        encoded = b"\\u0000"
    if b"\\u0000" in encoded:
        raise ValidationError("it contains values that a database cannot store")


class TypedJSON(models.JSONField):
    """A JSON column of values of the type ``kind``, of which ``checks`` accept the value."""

    empty_values = ()  # so that a None becomes the default, and an empty value is checked

    def __init__(self, kind: Any = dict[str, Any], checks: Any = (), **kwargs: Any) -> None:
        self.kind, self.checks = kind, checks
        super().__init__(**{"default": dict, "blank": True, **kwargs})
        self.default_validators = [self.check_value]

    def deconstruct(self) -> Any:
        """Describe the column for migrations: types are not part of the schema."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs

    def clone(self) -> Any:
        """Return the column of a migration's state."""
        _, _, args, kwargs = self.deconstruct()
        return models.JSONField(*args, **kwargs)

    def to_python(self, value: Any) -> Any:
        return self.get_default() if value is None else value

    def validate(self, value: Any, model_instance: models.Model | None) -> None:
        """Check only whether the value may be empty; the validator checks the rest."""
        if not self.blank and value in ([], {}):
            raise ValidationError(self.error_messages["blank"], code="blank")

    def check_value(self, value: Any) -> None:
        """Raise ValidationError for a wrong value."""
        if value == self.get_default():
            return
        check_storable(value)
        check_type(value, self.kind)
        for check in self.checks:
            check(value)


class SecretColumn(TypedJSON):
    """Where a secret is: a reference, ``{"sealed": ...}`` or nothing. No error has the value."""

    def __init__(self, kind: Any = SecretReference, **kwargs: Any) -> None:
        super().__init__(kind, **kwargs)

    def check_value(self, value: Any) -> None:
        if isinstance(value, str):
            raise ValidationError(INLINE_SECRET)
        if value != {} and (
            not isinstance(value, dict)
            or len(value) != 1
            or not set(value) <= {"env", "file", SEALED}
            or not all(isinstance(place, str) and place for place in value.values())
        ):
            raise ValidationError(A_SECRET)


def check_zone(name: str) -> None:
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValidationError(f"no such time zone: {name!r}") from None


def check_addresses(addresses: Collection[str]) -> None:
    for place, address in enumerate(addresses):
        try:
            validate_email(address)
        except ValidationError as wrong:
            raise ValidationError(f"[{place}]: {' '.join(wrong.messages)}") from None


def settings_of(model: type[models.Model], *without: str) -> tuple[str, ...]:
    """Return the columns that users set, in the order in which the model declares them."""
    columns = model._meta.concrete_fields  # noqa: SLF001 - documented by Django
    names = (one.name for one in columns if one.editable and not one.primary_key)
    return tuple(name for name in names if name not in without)
