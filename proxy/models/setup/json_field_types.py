"""Types of the JSON fields of teams and keys: limits, model names, networks, options, scopes.

The configuration file bridge.toml uses the same types (``proxy.config.schema``). They validate the
JSON of database rows, which may come from a form, the API or SQL. Validation matters: a misspelled
limit would not limit anything, and a string in place of a list could allow everything.
"""

import fnmatch
import ipaddress
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from django.core.exceptions import ValidationError
from django.db import models
from msgspec import UNSET, Meta, Struct, UnsetType

from proxy.decode_errors import explain_decode_error

Count = Annotated[int, Meta(ge=1)]
Model = Annotated[str, Meta(min_length=1, max_length=200)]
CoveredModels = Annotated[list[Model], Meta(max_length=100)]
"""Names or globs of models; an empty list means all models."""
Extra = Literal["metadata", "blocks"]
ScopeName = Literal[
    "messages", "reports", "reports:read", "transcripts:read", "keys:write", "config:write", "admin"
]
MemberScope = Literal["messages", "reports"]


class Strict(Struct, forbid_unknown_fields=True, kw_only=True):
    """A TOML table or JSON object in which unknown keys are errors."""


class SecretReference(Strict, omit_defaults=True):
    """A reference to a secret: the name of an environment variable or the path of a file."""

    env: str = ""
    file: str = ""

    def __post_init__(self) -> None:
        if bool(self.env) == bool(self.file):
            raise ValueError('expected { env = "NAME" } or { file = "/path" }')

    @property
    def stored(self) -> dict[str, str]:
        return {"env": self.env} if self.env else {"file": self.file}


class Network(str):
    """An IP network such as ``10.0.0.0/8``."""

    __slots__ = ()


class ModelLimits(Strict):
    rpm: Count | UnsetType = UNSET
    tpm: Count | UnsetType = UNSET
    concurrency: Count | UnsetType = UNSET


class Limits(ModelLimits):
    # By name or glob: further limits of the requests for all models that match it together.
    models: Annotated[dict[Model, ModelLimits], Meta(max_length=50)] | UnsetType = UNSET


class Conditions(Strict, omit_defaults=True):
    """The requests that a route's target takes; each given condition must be true."""

    min_input_tokens: Count | UnsetType = UNSET  # estimated
    max_input_tokens: Count | UnsetType = UNSET
    client: Annotated[str, Meta(max_length=200)] = ""  # a glob: "claude-cli 2.*"
    headers: Annotated[dict[str, str], Meta(max_length=16)] = {}  # globs by lower-case name

    def __post_init__(self) -> None:
        least, most = self.min_input_tokens, self.max_input_tokens
        if least is not UNSET and most is not UNSET and least > most:
            raise ValueError("min_input_tokens is larger than max_input_tokens")
        if any(name != name.lower() for name in self.headers):
            raise ValueError("names in headers are in lower case")


class Options(Strict):
    strict: bool | UnsetType = UNSET
    events: list[Extra] | UnsetType = UNSET
    store: Literal["metadata"] | UnsetType = UNSET  # "metadata": no content, whatever the team has


class MemberKeys(Strict):
    """The limits of the keys that members of a team make for themselves."""

    count: Count | UnsetType = UNSET  # working keys per member; absent: members make no keys
    days: Annotated[int, Meta(ge=1, le=36_500)] | UnsetType = UNSET  # absent: keys need no expiry
    scopes: list[MemberScope] | UnsetType = UNSET  # absent or empty: only messages
    models: list[Model] | UnsetType = UNSET  # absent or empty: all models of the team


def matches_any(model: str, patterns: Collection[str]) -> bool:
    """Return whether a model's name is one of the names, or matches one of the globs."""
    return any(fnmatch.fnmatchcase(model, pattern) for pattern in patterns)


METADATA_ONLY: Final = "metadata"
"""The only permitted value of ``store`` in the options of a key."""

FIELDS: Final[Mapping[str, tuple[type[Any], Any]]] = {
    "when": (dict, Conditions),
    "limits": (dict, Limits),
    "member_keys": (dict, MemberKeys),
    "models_allowed": (list, list[Model]),
    "ip_allow": (list, list[Network]),
    "options": (dict, Options),
    "scopes": (list, list[ScopeName]),
}
"""Name of a JSON field -> (type of its empty default, type that its value must have)."""


def check(row: models.Model) -> None:
    """Validate the JSON fields of a row; a None becomes the empty default.

    Raises ValidationError.
    """
    errors = {}
    for field, (empty, kind) in FIELDS.items():
        if not hasattr(row, field):
            continue
        if getattr(row, field) is None:
            setattr(row, field, empty())
        if message := type_error_message(getattr(row, field), kind):
            errors[field] = message
    if errors:
        raise ValidationError(errors)


def type_error_message(value: Any, kind: Any) -> str:
    """Return an error message if the value is not of type ``kind``, else "".

    The message has the path within the value, the wrong part and the expected type.
    """
    try:
        msgspec.convert(value, kind, dec_hook=network)
    except msgspec.ValidationError as error:
        return explain_decode_error(str(error), kind, value)
    return ""


def network(kind: type[Any], value: Any) -> Network:
    """Convert a value to a Network: the ``dec_hook`` of msgspec, which has no type for networks."""
    try:
        ipaddress.ip_network(value if isinstance(value, str) else "")
    except ValueError as error:
        raise ValueError(str(error).replace(f"{value} ", f"{value!r} ", 1)) from None
    return Network(value)
