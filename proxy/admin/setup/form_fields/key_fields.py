"""Form fields for the JSON columns of keys and teams: limits, options and limits of members."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

from django import forms

from proxy.models.setup import json_field_types

from .json_parts import (
    LinesField,
    LinesInput,
    MultiInput,
    NumberInput,
    PartsField,
    SelectInput,
    TextArea,
    raw_text,
)

LIMITS: Final[Mapping[str, str]] = {
    "rpm": "Requests per minute",
    "tpm": "Input tokens per minute",
    "concurrency": "Concurrent requests",
}
BY_MODEL: Final = "For some models, one per line: claude-opus-* rpm=20 concurrency=2"
NUMBER_ERROR: Final = "{}: a whole number from 1, or empty"
MODEL_LIMIT: Final = re.compile(rf"({'|'.join(LIMITS)})=([0-9]{{1,18}})")
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
BOOLS: Final = {"true": True, "false": False}


class ModelLimitsInput(TextArea):
    """A textarea with lines such as ``claude-opus-* rpm=20 concurrency=2``."""

    def format_value(self, value: Any) -> str | None:
        if isinstance(value, dict) and all(isinstance(sizes, dict) for sizes in value.values()):
            return "\n".join(
                " ".join([model, *(f"{name}={size}" for name, size in sizes.items())])
                for model, sizes in value.items()
            )
        return raw_text(value)


class ModelLimitsField(forms.Field):
    """Limits by a model's name or glob. The whole value is validated with the other limits."""

    widget = ModelLimitsInput

    def to_python(self, value: Any) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for line in filter(None, map(str.strip, str(value or "").splitlines())):
            model, *parts = line.split()
            sizes = [MODEL_LIMIT.fullmatch(part) for part in parts]
            if not sizes or None in sizes or model in found:
                raise forms.ValidationError(
                    f"{line[:80]!r}: expected each model once, as: claude-opus-* rpm=20 "
                    "tpm=100000 concurrency=5"
                )
            found[model] = {match[1]: int(match[2]) for match in sizes if match}
        return found

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return bool((initial or {}) != self.to_python(data))
        except forms.ValidationError:
            return True


class LimitsParts(MultiInput):
    def __init__(self) -> None:
        inputs: list[forms.Widget] = [
            NumberInput(attrs={"min": 1, "inputmode": "numeric"}) for _ in LIMITS
        ]
        labels = [*LIMITS.values(), BY_MODEL]
        super().__init__("Limits", labels, [*inputs, ModelLimitsInput(attrs={"rows": 3})])

    def keys(self) -> Sequence[str]:
        return [*LIMITS, "models"]


class LimitsField(PartsField):
    kind = json_field_types.Limits

    def __init__(self, **kwargs: Any) -> None:
        numbers: list[forms.Field] = []
        for label in LIMITS.values():
            error = NUMBER_ERROR.format(label)
            errors = {"invalid": error, "min_value": error}
            numbers.append(forms.IntegerField(min_value=1, required=False, error_messages=errors))
        super().__init__([*numbers, ModelLimitsField(required=False)], LimitsParts(), **kwargs)

    def compress(self, data_list: Sequence[Any]) -> dict[str, Any]:
        # data_list is empty if all inputs are empty
        given = zip([*LIMITS, "models"], data_list, strict=False)
        limits = {key: value for key, value in given if value not in (None, {})}
        if error := json_field_types.type_error_message(limits, self.kind):
            raise forms.ValidationError(error)
        return limits


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
