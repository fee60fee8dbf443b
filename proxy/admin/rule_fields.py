"""Form fields for the rules of keys and teams, which rows keep as JSON.

A form shows numbers, lines and choices; what is not of the right kind, since somebody edited the
row by hand, is shown as it is, and saving the form mends it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, get_args

from django import forms
from django.utils.html import format_html

from proxy.models import rules

if TYPE_CHECKING:  # the theme's widgets are Django's in other clothes; only Django's have types
    NumberInput = forms.NumberInput
    SelectInput = forms.Select
    TextArea = forms.Textarea
else:
    from unfold.widgets import UnfoldAdminIntegerFieldWidget as NumberInput
    from unfold.widgets import UnfoldAdminSelectWidget as SelectInput
    from unfold.widgets import UnfoldAdminTextareaWidget as TextArea

LIMITS: Final[Mapping[str, str]] = {
    "rpm": "Requests a minute",
    "tpm": "Input tokens a minute",
    "concurrency": "Requests at once",
}
WHOLE: Final = "{}: a whole number from 1 on, or nothing"
OPTIONS: Final[Mapping[str, tuple[str, Sequence[tuple[str, str]]]]] = {
    "strict": (
        "What a translation would lose",
        (("", "is left out, with a note"), ("true", "has the request refused")),
    ),
    "events": (
        "Extra events in its streams",
        (
            ("", "as each request asks"),
            ("metadata", "metadata"),
            ("blocks", "blocks"),
            ("metadata,blocks", "metadata and blocks"),
        ),
    ),
    "store": (
        "What is kept of its conversations",
        (("", "what its team keeps"), (rules.KEEPS_NO_WORDS, "no word, whatever its team keeps")),
    ),
}
PLACE: Final = re.compile(r"^\[(\d+)\]")
BOOLS: Final = {"true": True, "false": False}


class Lines(TextArea):
    def format_value(self, value: Any) -> str | None:
        if isinstance(value, list) and all(isinstance(line, str) for line in value):
            return "\n".join(value)
        return _raw(value)


class LinesField(forms.Field):
    """A list of texts, one on each line; ``kind`` says of what."""

    widget = Lines

    def __init__(self, kind: Any, **told: Any) -> None:
        self.kind = kind
        super().__init__(required=False, **told)

    def validate(self, value: Any) -> None:
        super().validate(value)
        if told := rules.complaint_of(value, self.kind):
            raise forms.ValidationError(PLACE.sub(_entry, told))

    def to_python(self, value: Any) -> list[Any]:
        if isinstance(value, str):
            return [line.strip() for line in value.splitlines() if line.strip()]
        if value is not None and not isinstance(value, list):
            raise forms.ValidationError("one on each line")
        return value or []

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(initial != self.to_python(data))


class Parts(forms.MultiWidget):
    """Several small inputs with a label each."""

    template_name = "admin/proxy/parts.html"

    def __init__(self, name: str, labels: Sequence[str], widgets: Sequence[forms.Widget]) -> None:
        self.name, self.labels = name, labels
        super().__init__(widgets)

    def get_context(self, name: str, value: Any, attrs: Any) -> dict[str, Any]:
        context: dict[str, Any] = super().get_context(name, value, attrs)
        parts = context["widget"]["subwidgets"]
        return {**context, "name": self.name, "parts": list(zip(self.labels, parts, strict=True))}

    def decompress(self, value: Any) -> list[Any]:
        """Of a value of another kind itself, which no part takes."""
        value = {} if value is None else value
        if not isinstance(value, dict) or set(value) - set(self.words()):
            return [_raw(value), *[None] * (len(self.widgets) - 1)]
        return [self.shown(value.get(word)) for word in self.words()]

    def words(self) -> Sequence[str]:
        raise NotImplementedError

    def shown(self, value: Any) -> Any:
        return value


class PartsField(forms.MultiValueField):
    """An object with few known entries; what is left empty is not in it."""

    kind: Any

    def __init__(self, fields: Sequence[forms.Field], widget: Parts, **told: Any) -> None:
        super().__init__(fields, widget=widget, require_all_fields=False, **told)

    def prepare_value(self, value: Any) -> Any:
        """A list is what came of the parts; a stored one is shown as it is."""
        if isinstance(value, list) and len(value) != len(self.fields):
            return _raw(value)
        return value

    def has_changed(self, initial: Any, data: Any) -> bool:
        wrong = rules.complaint_of({} if initial is None else initial, self.kind)
        return bool(wrong) or super().has_changed(initial, data)


class LimitsParts(Parts):
    def __init__(self) -> None:
        inputs = [NumberInput(attrs={"min": 1, "inputmode": "numeric"}) for _ in LIMITS]
        super().__init__("Limits", list(LIMITS.values()), inputs)

    def words(self) -> Sequence[str]:
        return list(LIMITS)


class LimitsField(PartsField):
    kind = rules.Limits

    def __init__(self, **told: Any) -> None:
        numbers = []
        for words in LIMITS.values():
            wrong = WHOLE.format(words)
            errors = {"invalid": wrong, "min_value": wrong}
            numbers.append(forms.IntegerField(min_value=1, required=False, error_messages=errors))
        super().__init__(numbers, LimitsParts(), **told)

    def compress(self, data_list: Sequence[int | None]) -> dict[str, int]:
        told = zip(LIMITS, data_list, strict=False)  # nothing at all comes as no parts
        return {word: count for word, count in told if count is not None}


class OptionChoice(SelectInput):
    """A choice that shows an option in the words that it offers."""

    def format_value(self, value: Any) -> list[str]:
        offered = [offer for offer, _ in self.choices]
        words = str(value or "").split(",")
        same = ",".join(word for word in get_args(rules.Extra) if word in words)
        return [str(value) if value in offered else same if same in offered else ""]


class OptionField(forms.ChoiceField):
    """Takes what means the same as well: a list in another order or empty, a plain no."""

    def valid_value(self, value: Any) -> bool:
        words = str(value).split(",")
        return value in {"false", "none"} or all(map(super().valid_value, words))


class OptionsParts(Parts):
    def __init__(self) -> None:
        offers = OPTIONS.values()
        selects = [OptionChoice(choices=choices) for _, choices in offers]
        super().__init__("Options", [label for label, _ in offers], selects)

    def words(self) -> Sequence[str]:
        return list(OPTIONS)

    def shown(self, value: Any) -> Any:
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return ",".join(value) or "none"
        return value


class OptionsField(PartsField):
    kind = rules.Options

    def __init__(self, **told: Any) -> None:
        fields = [OptionField(choices=choices, required=False) for _, choices in OPTIONS.values()]
        super().__init__(fields, OptionsParts(), **told)

    def compress(self, data_list: Sequence[str]) -> dict[str, Any]:
        told = dict(zip(OPTIONS, data_list, strict=False))
        if events := told.get("events"):
            told["events"] = [] if events == "none" else events.split(",")  # type: ignore[assignment]
        return {
            word: BOOLS.get(value, value) if isinstance(value, str) else value
            for word, value in told.items()
            if value != ""
        }


def _entry(found: re.Match[str]) -> str:
    """As people count."""
    return f"entry {int(found[1]) + 1}"


def _raw(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def tell_what_cannot_be_read(form: Any) -> None:
    """Beside each rule of the form's row that is of another kind, as somebody's hand left it."""
    for name, field in form.fields.items():
        stored = form.initial.get(name)
        if form.instance.pk and name in rules.FIELDS and stored is not None:
            told = rules.complaint_of(stored, rules.FIELDS[name][1])
            if told:
                words = "What stands there cannot be read ({}). Saving replaces it. {}"
                field.help_text = format_html(words, told, field.help_text)
