"""Form fields for the JSON columns of upstreams: secret, capabilities, timeouts, extra body."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from django import forms

from proxy.admin.core.json_column_field import StorableJson
from proxy.models.setup.upstreams import SEALED, TIMEOUTS
from translator.capabilities import Profile

from .json_parts import (
    MultiInput,
    NumberInput,
    PartsField,
    SelectInput,
    TextArea,
    TextInput,
    raw_text,
)

UNCHANGED: Final = {SEALED: "unchanged"}
"""Placeholder that the form has instead of a secret stored encrypted in the database."""
PLACES: Final = (
    ("", "not set"),
    ("env", "in an environment variable"),
    ("file", "in a file"),
)
STORED_PLACE: Final = (SEALED, "encrypted in the database")
MAX_SECONDS: Final = 10**6
TIMEOUT_LABELS: Final[Mapping[str, str]] = {
    "connect_s": "Connect, seconds",
    "first_byte_s": "First byte, seconds",
    "idle_s": "Between bytes, seconds",
    "total_s": "Whole response, seconds",
}
CAPABILITIES: Final[Mapping[str, Any]] = {
    field.name: get_type_hints(Profile)[field.name]
    for field in fields(Profile)
    if field.name != "name"
}
"""Capability -> type: bool, int, a Literal or a tuple of texts. The first one is a tuple."""
EMPTY_TEXT: Final = '""'
EMPTY_LIST: Final = "-"
"""What the form shows for an empty value, since an empty input leaves the profile's value."""
BARE_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")


class PlaceParts(MultiInput):
    def __init__(self) -> None:
        inputs = (SelectInput(choices=PLACES), TextInput(attrs={"autocomplete": "off"}))
        super().__init__("Secret", ("The secret is", "Name of the variable, or path"), inputs)

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


class TimeoutParts(MultiInput):
    def __init__(self) -> None:
        inputs = [NumberInput(attrs={"min": 0, "step": "any"}) for _ in TIMEOUTS]
        super().__init__("Timeouts", [TIMEOUT_LABELS[name] for name in TIMEOUTS], inputs)

    def keys(self) -> Sequence[str]:
        return TIMEOUTS


class TimeoutsField(PartsField):
    kind = dict[str, float]

    def __init__(self, **kwargs: Any) -> None:
        seconds = [
            forms.FloatField(
                max_value=MAX_SECONDS,
                required=False,
                error_messages={"invalid": f"{TIMEOUT_LABELS[name]}: a number, or empty"},
            )
            for name in TIMEOUTS
        ]
        super().__init__(seconds, TimeoutParts(), **kwargs)

    def compress(self, data_list: Sequence[float | None]) -> dict[str, float]:
        given = zip(TIMEOUTS, data_list, strict=False)
        return {
            name: int(seconds) if seconds.is_integer() else seconds
            for name, seconds in given
            if seconds is not None
        }


class CapabilityParts(MultiInput):
    def __init__(self) -> None:
        labels = [
            name.replace("_", " ").capitalize().replace("Json", "JSON").replace("json", "JSON")
            for name in CAPABILITIES
        ]
        super().__init__("Capabilities", labels, [_capability_input(c) for c in CAPABILITIES])

    def keys(self) -> Sequence[str]:
        return list(CAPABILITIES)

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

    kind = dict[str, Any]

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


class AssignmentsInput(TextArea):
    def format_value(self, value: Any) -> str | None:
        try:
            return "\n".join(_lines(value)) if isinstance(value, dict) else raw_text(value)
        except _UnusualName:
            return raw_text(value)


class ModelCapabilitiesField(StorableJson):
    """A textarea for a JSON object, as names of models contain dots and globs."""

    widget = TextArea
    empty: Callable[[], Any] = staticmethod(dict)


class AssignmentsField(StorableJson):
    """A textarea for an object: ``name = value`` on each line, ``a.b = 1`` for nested objects.

    A value is JSON (a number, true, a list) or, if it is not JSON, a text. A whole JSON object is
    accepted too.
    """

    widget = AssignmentsInput

    def prepare_value(self, value: Any) -> Any:
        return value

    def bound_data(self, data: Any, initial: Any) -> Any:
        return data  # as the user typed it

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return bool((initial or {}) != self.to_python(data))
        except forms.ValidationError:
            return True

    def to_python(self, value: Any) -> Any:
        if isinstance(value, dict):
            return super().to_python(json.dumps(value))
        text = (value or "").strip()
        if text.startswith("{"):
            return super().to_python(text)
        found: dict[str, Any] = {}
        for line in filter(None, map(str.strip, text.splitlines())):
            _assign(found, line)
        return super().to_python(json.dumps(found)) if found else {}


def _assign(found: dict[str, Any], line: str) -> None:
    """Add one line to the object. Raises ValidationError, which shows the line."""
    name, equals, value = line.partition("=")
    *path, last = (part.strip() for part in name.split("."))
    if not equals or not all(map(BARE_NAME.fullmatch, (*path, last))):
        raise forms.ValidationError(f"{line[:80]!r}: expected name = value")
    for part in path:
        found = found.setdefault(part, {})
        if not isinstance(found, dict):
            raise forms.ValidationError(f"{line[:80]!r}: {part} has a value already")
    if last in found:
        raise forms.ValidationError(f"{line[:80]!r}: {last} has a value already")
    try:
        found[last] = json.loads(value)
    except (ValueError, RecursionError):
        found[last] = value.strip()


def _lines(value: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the lines of an object; a nested object with unusual names is one line of JSON."""
    for name, one in value.items():
        if not BARE_NAME.fullmatch(name):
            # ``_assign`` cannot read this name, so the whole object is shown as JSON.
            raise _UnusualName
        try:
            nested = list(_lines(one, f"{above}{name}.")) if isinstance(one, dict) else []
        except _UnusualName:
            nested = []
        yield from nested or [f"{above}{name} = {_text(one)}"]


class _UnusualName(Exception):
    """A name in an object cannot be written before an equals sign."""


def _text(value: Any) -> str:
    """Return a text without quotes if it is read back as this text, and other values as JSON."""
    if isinstance(value, str) and value == value.strip() and value.isprintable() and value:
        try:
            json.loads(value)
        except (ValueError, RecursionError):
            return value
    return json.dumps(value, ensure_ascii=False)
