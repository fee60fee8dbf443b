"""Form fields for the conditions of a route's target."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django import forms

from proxy.models.setup import json_field_types

from .json_parts import MultiInput, NumberInput, PartsField, TextArea, TextInput, raw_text

LABELS: Final[Mapping[str, str]] = {
    "min_input_tokens": "Input tokens, at least",
    "max_input_tokens": "Input tokens, at most",
    "client": "Client and version",
    "headers": "Headers, one per line",
}
NUMBER_ERROR: Final = "{}: a whole number from 1, or empty"


def conditions_text(when: Any) -> str:
    """Return the conditions in words; a value of an unexpected type as JSON."""
    if not when:
        return "every request"
    if json_field_types.type_error_message(when, json_field_types.Conditions):
        return str(raw_text(when))
    headers = [f"header {name}: {pattern}" for name, pattern in when.get("headers", {}).items()]
    others = [f"{LABELS[name].lower()}: {when[name]}" for name in LABELS if name in when]
    return "; ".join([*(text for text in others if not text.startswith("headers")), *headers])


class HeaderLines(TextArea):
    """A textarea with one ``name: pattern`` per line."""

    def format_value(self, value: Any) -> str | None:
        if isinstance(value, dict):
            return "\n".join(f"{name}: {pattern}" for name, pattern in value.items())
        return raw_text(value)


class HeadersField(forms.Field):
    """The patterns of headers by their names in lower case."""

    widget = HeaderLines

    def to_python(self, value: Any) -> dict[str, str]:
        found: dict[str, str] = {}
        for line in str(value or "").splitlines():
            name, colon, pattern = (part.strip() for part in line.partition(":"))
            if not line.strip():
                continue
            if not (name and colon and pattern):
                raise forms.ValidationError(
                    f"{line[:60]!r} is not a header name, a colon and a pattern"
                )
            found[name.lower()] = pattern
        return found

    def has_changed(self, initial: Any, data: Any) -> bool:
        return (HeaderLines().format_value(initial) or "") != (data or "").replace("\r\n", "\n")


class ConditionsParts(MultiInput):
    def __init__(self) -> None:
        inputs = (
            NumberInput(attrs={"min": 1, "inputmode": "numeric"}),
            NumberInput(attrs={"min": 1, "inputmode": "numeric"}),
            TextInput(attrs={"placeholder": "claude-cli 2.*"}),
            HeaderLines(attrs={"rows": 2, "placeholder": "x-team: maps*"}),
        )
        super().__init__("Conditions", list(LABELS.values()), inputs)

    def keys(self) -> Sequence[str]:
        return list(LABELS)


class ConditionsField(PartsField):
    kind = json_field_types.Conditions

    def __init__(self, **kwargs: Any) -> None:
        numbers = [
            forms.IntegerField(
                min_value=1,
                required=False,
                error_messages=dict.fromkeys(
                    ("invalid", "min_value"), NUMBER_ERROR.format(LABELS[name])
                ),
            )
            for name in ("min_input_tokens", "max_input_tokens")
        ]
        client = forms.CharField(max_length=200, required=False)
        headers = HeadersField(required=False)
        super().__init__([*numbers, client, headers], ConditionsParts(), **kwargs)

    def compress(self, data_list: Sequence[Any]) -> dict[str, Any]:
        given = zip(LABELS, data_list, strict=False)
        return {name: value for name, value in given if value not in (None, "", {})}
