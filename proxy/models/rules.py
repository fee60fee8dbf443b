"""What teams and keys may say: limits, names of models, networks, options, scopes.

Said once, by types: of these bridge.toml's tables are made (``proxy.config.schema``), and by these
the rows are judged, whose JSON may come from a form, from the API or from a hand in the database.
A slip there would not show: an unknown limit limits nothing, a name outside of a list allows
everything.
"""

import ipaddress
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from django.core.exceptions import ValidationError
from django.db import models
from msgspec import UNSET, Meta, Struct, UnsetType

from proxy.complaints import told

Count = Annotated[int, Meta(ge=1)]
Model = Annotated[str, Meta(min_length=1, max_length=200)]
Extra = Literal["metadata", "blocks"]
ScopeName = Literal["messages", "reports", "admin"]


class Strict(Struct, forbid_unknown_fields=True, kw_only=True):
    """A table in which every key must be known."""


class Network(str):
    """Such as ``10.0.0.0/8``."""

    __slots__ = ()


class Limits(Strict):
    rpm: Count | UnsetType = UNSET
    tpm: Count | UnsetType = UNSET
    concurrency: Count | UnsetType = UNSET


class Options(Strict):
    strict: bool | UnsetType = UNSET
    events: list[Extra] | UnsetType = UNSET
    store: Literal["metadata"] | UnsetType = UNSET  # less than the team keeps, never more


KEEPS_NO_WORDS: Final = "metadata"
"""The one ``store`` of a key."""

FIELDS: Final[Mapping[str, tuple[type[Any], Any]]] = {
    "limits": (dict, Limits),
    "models_allowed": (list, list[Model]),
    "ip_allow": (list, list[Network]),
    "options": (dict, Options),
    "scopes": (list, list[ScopeName]),
}
"""What an empty field is, and what stands in it."""


def check(row: models.Model) -> None:
    """Raise ValidationError by field. A field that was left empty gets its default."""
    wrong = {}
    for field, (empty, kind) in FIELDS.items():
        if not hasattr(row, field):
            continue
        if getattr(row, field) is None:
            setattr(row, field, empty())
        if complaint := complaint_of(getattr(row, field), kind):
            wrong[field] = complaint
    if wrong:
        raise ValidationError(wrong)


def complaint_of(value: Any, kind: Any) -> str:
    """Path, what stands there and what would be right; empty for a value of that kind."""
    try:
        msgspec.convert(value, kind, dec_hook=network)
    except msgspec.ValidationError as error:
        return told(str(error), kind, value)
    return ""


def network(kind: type[Any], value: Any) -> Network:
    """How msgspec makes the one kind that it does not know itself."""
    try:
        ipaddress.ip_network(value if isinstance(value, str) else "")
    except ValueError as wrong:
        raise ValueError(str(wrong).replace(f"{value} ", f"{value!r} ", 1)) from None
    return Network(value)
