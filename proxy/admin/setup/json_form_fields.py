"""Form fields for the JSON columns of keys and teams: limits, options and lists.

The form shows such a column as number inputs, lines of text or selects. If the stored value has an
unexpected type, for example after a manual edit of the database row, the form shows it unchanged,
and saving the form replaces it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, get_args

from django import forms
from django.utils.html import format_html

from proxy.models.setup import json_field_types

if TYPE_CHECKING:  # the theme's widgets have no types; their Django base classes do
    NumberInput = forms.NumberInput
    SelectInput = forms.Select
    TextArea = forms.Textarea
else:
    from unfold.widgets import UnfoldAdminIntegerFieldWidget as NumberInput
    from unfold.widgets import UnfoldAdminSelectWidget as SelectInput
    from unfold.widgets import UnfoldAdminTextareaWidget as TextArea

LIMITS: Final[Mapping[str, str]] = {
    "rpm": "Requests per minute",
    "tpm": "Input tokens per minute",
    "concurrency": "Concurrent requests",
}
NUMBER_ERROR: Final = "{}: a whole number from 1, or empty"
OPTIONS: Final[Mapping[str, tuple[str, Sequence[tuple[str, str]]]]] = {
    "strict": (
        "Fields that a translation would lose",
        (("", "drop, with a note"), ("true", "reject the request")),
    ),
    "events": (
        "Extra stream events",
        (
            ("", "as each request selects"),
            ("metadata", "metadata"),
            ("blocks", "blocks"),
            ("metadata,blocks", "metadata and blocks"),
        ),
    ),
    "store": (
        "Stored transcripts",
        (
            ("", "as the team stores them"),
            (json_field_types.METADATA_ONLY, "none, metadata only"),
        ),
    ),
}
MEMBER_KEYS: Final[Mapping[str, str]] = {
    "count": "Working keys per member",
    "days": "Longest lifetime, in days",
    "scopes": "Scopes",
    "models": "Models, one per line",
}
MEMBER_SCOPES: Final = (
    ("", "only messages"),
    ("messages", "messages"),
    ("messages,reports", "messages and reports"),
    ("reports", "only reports"),
)
INDEX: Final = re.compile(r"^\[(\d+)\]")
BOOLS: Final = {"true": True, "false": False}


class LinesInput(TextArea):
    def format_value(self, value: Any) -> str | None:
        if isinstance(value, list) and all(isinstance(line, str) for line in value):
            return "\n".join(value)
        return _raw(value)


class LinesField(forms.Field):
    """A textarea for a list of texts, one per line. ``kind`` is the type that a list must have."""

    widget = LinesInput

    def __init__(self, kind: Any, **kwargs: Any) -> None:
        self.kind = kind
        super().__init__(required=False, **kwargs)

    def validate(self, value: Any) -> None:
        super().validate(value)
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
            return [_raw(value), *[None] * (len(self.widgets) - 1)]
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
            return _raw(value)
        return value

    def has_changed(self, initial: Any, data: Any) -> bool:
        error = json_field_types.type_error_message({} if initial is None else initial, self.kind)
        return bool(error) or super().has_changed(initial, data)


class LimitsParts(MultiInput):
    def __init__(self) -> None:
        inputs = [NumberInput(attrs={"min": 1, "inputmode": "numeric"}) for _ in LIMITS]
        super().__init__("Limits", list(LIMITS.values()), inputs)

    def keys(self) -> Sequence[str]:
        return list(LIMITS)


class LimitsField(PartsField):
    kind = json_field_types.Limits

    def __init__(self, **kwargs: Any) -> None:
        numbers = []
        for label in LIMITS.values():
            error = NUMBER_ERROR.format(label)
            errors = {"invalid": error, "min_value": error}
            numbers.append(forms.IntegerField(min_value=1, required=False, error_messages=errors))
        super().__init__(numbers, LimitsParts(), **kwargs)

    def compress(self, data_list: Sequence[int | None]) -> dict[str, int]:
        counts = zip(LIMITS, data_list, strict=False)  # data_list is empty if all inputs are empty
        return {key: count for key, count in counts if count is not None}


class MemberKeysParts(MultiInput):
    def __init__(self) -> None:
        number = {"min": 1, "inputmode": "numeric"}
        inputs = (
            NumberInput(attrs=number),
            NumberInput(attrs=number),
            SelectInput(choices=MEMBER_SCOPES),
            LinesInput(attrs={"rows": 3}),
        )
        super().__init__("Keys of members", list(MEMBER_KEYS.values()), inputs)

    def keys(self) -> Sequence[str]:
        return list(MEMBER_KEYS)

    def decompress(self, value: Any) -> list[Any]:
        count, days, scopes, models = super().decompress(value)
        return [count, days, ",".join(map(str, scopes or ())), models]


class MemberKeysField(PartsField):
    """The limits of the keys that members of a team make for themselves."""

    kind = json_field_types.MemberKeys

    def __init__(self, **kwargs: Any) -> None:
        numbers = [
            forms.IntegerField(
                min_value=1,
                max_value=highest,
                required=False,
                error_messages=dict.fromkeys(
                    ("invalid", "min_value"), NUMBER_ERROR.format(MEMBER_KEYS[name])
                ),
            )
            for name, highest in (("count", 10_000), ("days", 36_500))
        ]
        scopes = forms.ChoiceField(choices=MEMBER_SCOPES, required=False)
        models = LinesField(list[json_field_types.Model])
        super().__init__([*numbers, scopes, models], MemberKeysParts(), **kwargs)

    def compress(self, data_list: Sequence[Any]) -> dict[str, Any]:
        given = dict(zip(MEMBER_KEYS, data_list, strict=False))
        scopes = given.get("scopes")
        return {key: value for key, value in given.items() if value} | (
            {"scopes": scopes.split(",")} if scopes else {}
        )


class OptionSelect(SelectInput):
    """A select that selects the choice equivalent to the stored value, such as a reordered list."""

    def format_value(self, value: Any) -> list[str]:
        choices = [choice for choice, _ in self.choices]
        events = str(value or "").split(",")
        ordered = ",".join(event for event in get_args(json_field_types.Extra) if event in events)
        return [str(value) if value in choices else ordered if ordered in choices else ""]


class OptionField(forms.ChoiceField):
    """A choice field that also accepts values equivalent to a choice, such as a reordered list."""

    def valid_value(self, value: Any) -> bool:
        events = str(value).split(",")
        return value in {"false", "none"} or all(map(super().valid_value, events))


class OptionsParts(MultiInput):
    def __init__(self) -> None:
        offers = OPTIONS.values()
        selects = [OptionSelect(choices=choices) for _, choices in offers]
        super().__init__("Options", [label for label, _ in offers], selects)

    def keys(self) -> Sequence[str]:
        return list(OPTIONS)

    def form_value(self, value: Any) -> Any:
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, list) and all(isinstance(event, str) for event in value):
            return ",".join(value) or "none"
        return value


class OptionsField(PartsField):
    kind = json_field_types.Options

    def __init__(self, **kwargs: Any) -> None:
        fields = [OptionField(choices=choices, required=False) for _, choices in OPTIONS.values()]
        super().__init__(fields, OptionsParts(), **kwargs)

    def compress(self, data_list: Sequence[str]) -> dict[str, Any]:
        options = dict(zip(OPTIONS, data_list, strict=False))
        if events := options.get("events"):
            options["events"] = [] if events == "none" else events.split(",")  # type: ignore[assignment]
        return {
            key: BOOLS.get(value, value) if isinstance(value, str) else value
            for key, value in options.items()
            if value != ""
        }


def _entry_number(found: re.Match[str]) -> str:
    """Return the 0-based list index of an error message as "entry 1", counted from 1."""
    return f"entry {int(found[1]) + 1}"


def _raw(value: Any) -> str | None:
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
