"""Form fields of an upstream: where its secret is, and its capabilities."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from django import forms

from proxy.admin.core.json_column_field import StorableJson, raw_text
from proxy.admin.core.typed_fields import (
    MultiInput,
    NumberInput,
    PartsField,
    SelectInput,
    TextInput,
)
from proxy.models.setup.columns import SEALED
from translator.capabilities import Profile

UNCHANGED: Final = {SEALED: "unchanged"}
"""Placeholder that the form has instead of a secret stored encrypted in the database."""
PLACES: Final = (
    ("", "not set"),
    ("env", "in an environment variable"),
    ("file", "in a file"),
)
STORED_PLACE: Final = (SEALED, "encrypted in the database")
CAPABILITIES: Final[Mapping[str, Any]] = {
    field.name: get_type_hints(Profile)[field.name]
    for field in fields(Profile)
    if field.name != "name"
}
"""Capability -> type: bool, int, a Literal or a tuple of texts. The first one is a tuple."""
EMPTY_TEXT: Final = '""'
EMPTY_LIST: Final = "-"
"""What the form shows for an empty value, since an empty input leaves the profile's value."""


class PlaceParts(MultiInput):
    def __init__(self) -> None:
        inputs = (SelectInput(choices=PLACES), TextInput(attrs={"autocomplete": "off"}))
        labels = ("The secret is", "Name of the variable, or path")
        super().__init__("Secret", ("place", "name"), labels, inputs)

    def decompress(self, value: Any) -> list[Any]:
        if not value:
            return ["", ""]
        if not isinstance(value, dict) or len(value) != 1:
            return ["", raw_text(value)]
        ((place, name),) = value.items()
        return [place, "" if place == SEALED else raw_text(name)]


class SecretPlaceField(forms.MultiValueField):
    """Where a secret is: ``{"env": "NAME"}``, ``{"file": "/path"}`` or nothing.

    With ``offer_stored`` there is also the choice of the encrypted secret in the database.
    """

    def __init__(self, **kwargs: Any) -> None:
        parts = (
            forms.ChoiceField(choices=PLACES, required=False),
            forms.CharField(max_length=500, required=False),
        )
        kwargs = {"required": False, **kwargs}
        super().__init__(parts, widget=PlaceParts(), require_all_fields=False, **kwargs)

    def offer_stored(self) -> None:
        choices = [*PLACES, STORED_PLACE]
        self.fields[0].choices = choices  # type: ignore[attr-defined]
        self.widget.widgets[0].choices = choices

    def compress(self, data_list: Sequence[str]) -> dict[str, str]:
        place, name = data_list or ("", "")
        if not place and name.startswith("{"):  # the model names what is wrong with the object
            found: dict[str, str] = StorableJson().clean(name)
            return found
        if place == SEALED and not name:
            return dict(UNCHANGED)
        if bool(place) != bool(name):
            raise forms.ValidationError("choose where the secret is, and name the variable or file")
        return {place: name} if place else {}


class CapabilityParts(MultiInput):
    def __init__(self) -> None:
        labels = [
            name.replace("_", " ").capitalize().replace("Json", "JSON").replace("json", "JSON")
            for name in CAPABILITIES
        ]
        inputs = [_capability_input(name) for name in CAPABILITIES]
        super().__init__("Capabilities", list(CAPABILITIES), labels, inputs)

    def form_value(self, value: Any) -> Any:
        if isinstance(value, bool):
            return "yes" if value else "no"
        if value == "":
            return EMPTY_TEXT
        if isinstance(value, list | tuple):
            return ", ".join(map(str, value)) or EMPTY_LIST
        return value


class CapabilitiesField(PartsField):
    """One input for each capability of ``translator.capabilities.Profile``.

    An object with an unknown capability is shown as JSON in the first input, and read from there,
    so that the error message of the model names it.
    """

    def __init__(self, **kwargs: Any) -> None:
        inputs = [_capability_field(name) for name in CAPABILITIES]
        super().__init__(inputs, CapabilityParts(), **kwargs)

    def compress(self, data_list: Sequence[Any]) -> Any:
        if data_list and str(data_list[0]).startswith(("{", "[")):
            return StorableJson().clean(data_list[0])
        given = zip(CAPABILITIES.items(), data_list, strict=False)
        return {
            name: _capability_value(kind, value)
            for (name, kind), value in given
            if value not in (None, "")
        }


def _capability_choices(name: str) -> list[tuple[str, str]]:
    """Return the choices of a capability, without the empty one; none for numbers and lists."""
    kind = CAPABILITIES[name]
    if kind is bool:
        return [("yes", "yes"), ("no", "no")]
    if get_origin(kind) is Literal:
        return [(value or EMPTY_TEXT, value or "none") for value in get_args(kind)]
    return []


def _capability_input(name: str) -> forms.Widget:
    if choices := _capability_choices(name):
        return SelectInput(choices=[("", "as the profile"), *choices])
    if CAPABILITIES[name] is int:
        return NumberInput(attrs={"min": 0, "placeholder": "as the profile"})
    return TextInput(attrs={"placeholder": f"as the profile; {EMPTY_LIST} for none"})


def _capability_field(name: str) -> forms.Field:
    if choices := _capability_choices(name):
        return forms.ChoiceField(choices=[("", ""), *choices], required=False)
    if CAPABILITIES[name] is int:
        return forms.IntegerField(min_value=0, max_value=2**53, required=False)
    return forms.CharField(max_length=10_000, required=False)


def _capability_value(kind: Any, value: Any) -> Any:
    if kind is bool:
        return value == "yes"
    if get_origin(kind) is Literal:
        return "" if value == EMPTY_TEXT else value
    if kind is int:
        return value
    if value == EMPTY_LIST:
        return []
    return [part.strip() for part in str(value).split(",") if part.strip()]
