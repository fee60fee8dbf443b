"""Form fields for JSON columns, which reject values that SQLite or PostgreSQL cannot store."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.core.exceptions import ValidationError
from django.forms.fields import InvalidJSONInput

from proxy.models.setup.columns import check_storable

if TYPE_CHECKING:  # the theme's widget has no types; its Django base class does
    TextArea = forms.Textarea
else:
    from unfold.widgets import UnfoldAdminTextareaWidget as TextArea

BARE_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
MAX_NESTING: Final = 100  # dots of a name; Python cannot encode an object of a thousand levels


class StorableJson(forms.JSONField):
    """A JSON form field. ``empty()`` is the value to store if the input is empty or null."""

    empty: Callable[[], Any] = staticmethod(lambda: None)

    def clean(self, value: Any) -> Any:
        data = super().clean(value)
        return self.empty() if data is None else data

    def to_python(self, value: Any) -> Any:
        try:
            data = super().to_python(value)
            check_storable(data)
        except (ValueError, RecursionError, ValidationError):
            # also an infinity, a null character, too many digits or too much nesting
            raise forms.ValidationError(self.error_messages["invalid"], code="invalid") from None
        return data

    def bound_data(self, data: Any, initial: Any) -> Any:
        """Return the text to show in the form: invalid input is shown as the user typed it."""
        try:
            self.to_python(data)
        except forms.ValidationError:
            return InvalidJSONInput(data)
        return super().bound_data(data, initial)


def raw_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


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
    if len(path) > MAX_NESTING:
        raise forms.ValidationError(f"{line[:80]!r}: more than {MAX_NESTING} dots")
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
