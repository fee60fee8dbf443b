"""Form fields for JSON columns: a list as lines of text, an object as one input per key.

If the stored value has an unexpected type, for example after a manual edit of the database row, the
form shows it unchanged, and saving the form replaces it.
"""

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.utils.html import format_html

from proxy.models.setup import json_field_types

if TYPE_CHECKING:  # the theme's widgets have no types; their Django base classes do
    NumberInput = forms.NumberInput
    SelectInput = forms.Select
    TextArea = forms.Textarea
    TextInput = forms.TextInput
else:
    from unfold.widgets import UnfoldAdminIntegerFieldWidget as NumberInput
    from unfold.widgets import UnfoldAdminSelectWidget as SelectInput
    from unfold.widgets import UnfoldAdminTextareaWidget as TextArea
    from unfold.widgets import UnfoldAdminTextInputWidget as TextInput

__all__ = [
    "LinesField",
    "LinesInput",
    "MultiInput",
    "NumberInput",
    "PartsField",
    "SelectInput",
    "TextArea",
    "TextInput",
    "explain_unreadable_fields",
    "raw_text",
]

INDEX: Final = re.compile(r"^\[(\d+)\]")


class LinesInput(TextArea):
    def format_value(self, value: Any) -> str | None:
        if isinstance(value, list) and all(isinstance(line, str) for line in value):
            return "\n".join(value)
        return raw_text(value)


class LinesField(forms.Field):
    """A textarea for a list of texts, one per line. ``kind`` is the type that a list must have."""

    widget = LinesInput

    def __init__(self, kind: Any, **kwargs: Any) -> None:
        self.kind = kind
        super().__init__(required=False, **kwargs)

    def validate(self, value: Any) -> None:
        super().validate(value)
        if any("\x00" in str(line) for line in value):
            raise forms.ValidationError("it has a null character, which no database stores")
        if error := json_field_types.type_error_message(value, self.kind):
            raise forms.ValidationError(INDEX.sub(_entry_number, error))

    def to_python(self, value: Any) -> list[Any]:
        if isinstance(value, str):
            return [line.strip() for line in value.splitlines() if line.strip()]
        if value is not None and not isinstance(value, list):
            raise forms.ValidationError("enter one per line")
        return value or []

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool((initial or []) != self.to_python(data))


class MultiInput(forms.MultiWidget):
    """A form widget with several labeled inputs for one JSON value."""

    template_name = "admin/proxy/multi_input.html"

    def __init__(self, name: str, labels: Sequence[str], widgets: Sequence[forms.Widget]) -> None:
        self.name, self.labels = name, labels
        super().__init__(widgets)

    def get_context(self, name: str, value: Any, attrs: Any) -> dict[str, Any]:
        context: dict[str, Any] = super().get_context(name, value, attrs)
        parts = context["widget"]["subwidgets"]
        return {**context, "name": self.name, "parts": list(zip(self.labels, parts, strict=True))}

    def decompress(self, value: Any) -> list[Any]:
        """Return one value per input; an unexpected type becomes JSON text in the first input."""
        value = {} if value is None else value
        if not isinstance(value, dict) or set(value) - set(self.keys()):
            return [raw_text(value), *[None] * (len(self.widgets) - 1)]
        return [self.form_value(value.get(key)) for key in self.keys()]

    def keys(self) -> Sequence[str]:
        raise NotImplementedError

    def form_value(self, value: Any) -> Any:
        return value


class PartsField(forms.MultiValueField):
    """A field for a JSON object with known keys, one input per key; empty inputs omit their key."""

    kind: Any

    def __init__(self, fields: Sequence[forms.Field], widget: MultiInput, **kwargs: Any) -> None:
        super().__init__(fields, widget=widget, require_all_fields=False, **kwargs)

    def prepare_value(self, value: Any) -> Any:
        """Return the value to show: a stored list as JSON, a list of submitted inputs unchanged."""
        if isinstance(value, list) and len(value) != len(self.fields):
            return raw_text(value)
        return value

    def has_changed(self, initial: Any, data: Any) -> bool:
        error = json_field_types.type_error_message({} if initial is None else initial, self.kind)
        return bool(error) or super().has_changed(initial, data)


def _entry_number(found: re.Match[str]) -> str:
    """Return the 0-based list index of an error message as "entry 1", counted from 1."""
    return f"entry {int(found[1]) + 1}"


def raw_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def explain_unreadable_fields(form: Any) -> None:
    """Add a help text to each field whose stored value has an unexpected type."""
    for name, field in form.fields.items():
        stored = form.initial.get(name)
        if form.instance.pk and name in json_field_types.FIELDS and stored is not None:
            error = json_field_types.type_error_message(stored, json_field_types.FIELDS[name][1])
            if error:
                text = "The stored value is invalid ({}). Saving replaces it. {}"
                field.help_text = format_html(text, error, field.help_text)
