"""Form fields of ``TypedJSON`` columns, made from the type that the column declares.

A list has one line for each entry, a struct one input for each of its fields. If the stored value
has an unexpected type, for example after a manual edit of the database row, the form shows it
unchanged, and saving the form replaces it.
"""

import itertools
import re
from collections.abc import Sequence
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
)

import msgspec
from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.utils.html import format_html
from django.utils.text import capfirst
from msgspec import Meta, Struct, UnsetType

from proxy.models.setup.columns import TypedJSON, check_storable, check_type

from .json_column_field import AssignmentsField, raw_text

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

EMPTY_TEXT: Final = '""'
EMPTY_LIST: Final = "-"
"""What a form shows for an empty value, since an empty input omits its key."""
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
        super().__init__(**{"required": False, **kwargs})

    def validate(self, value: Any) -> None:
        super().validate(value)
        try:
            check_storable(value)
            check_type(value, self.kind)
        except ValidationError as error:
            # the entries are counted from 1
            texts = [INDEX.sub(lambda at: f"entry {int(at[1]) + 1}", one) for one in error.messages]
            raise forms.ValidationError(texts) from None

    def to_python(self, value: Any) -> list[Any]:
        if isinstance(value, str):
            return [line.strip() for line in value.splitlines() if line.strip()]
        if value is not None and not isinstance(value, list):
            raise forms.ValidationError("enter one per line")
        return value or []

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool((initial or []) != self.to_python(data))


class MultiInput(forms.MultiWidget):
    """A form widget with several labeled inputs, one for each key of an object."""

    template_name = "admin/proxy/multi_input.html"

    def __init__(
        self, name: str, keys: Sequence[str], labels: Sequence[str], widgets: Sequence[forms.Widget]
    ) -> None:
        self.name, self.keys, self.labels = name, keys, labels
        super().__init__(widgets)

    def get_context(self, name: str, value: Any, attrs: Any) -> dict[str, Any]:
        context: dict[str, Any] = super().get_context(name, value, attrs)
        parts = context["widget"]["subwidgets"]
        return {**context, "name": self.name, "parts": list(zip(self.labels, parts, strict=True))}

    def decompress(self, value: Any) -> list[Any]:
        """Return one value per input; an unexpected type becomes JSON text in the first input."""
        value = {} if value is None else value
        if not isinstance(value, dict) or set(value) - set(self.keys):
            return [raw_text(value), *[None] * (len(self.widgets) - 1)]
        return [self.form_value(key, value.get(key)) for key in self.keys]

    def form_value(self, key: str, value: Any) -> Any:
        return value


class PartsField(forms.MultiValueField):
    """A field for a JSON object with known keys, one input per key; empty inputs omit their key."""

    def __init__(self, fields: Sequence[forms.Field], widget: MultiInput, **kwargs: Any) -> None:
        kwargs = {"required": False, **kwargs}
        super().__init__(fields, widget=widget, require_all_fields=False, **kwargs)

    def prepare_value(self, value: Any) -> Any:
        """Return the value to show: a stored list as JSON, a list of submitted inputs unchanged."""
        if isinstance(value, list) and len(value) != len(self.fields):
            return raw_text(value)
        return value


class TextLines(TextArea):
    """A textarea of an object of texts, with one ``name: text`` per line."""

    def format_value(self, value: Any) -> str | None:
        if isinstance(value, dict):
            return "\n".join(f"{name}: {text}" for name, text in value.items())
        return raw_text(value)


class TextsField(forms.Field):
    """Texts by names in lower case."""

    widget = TextLines

    def to_python(self, value: Any) -> dict[str, str]:
        found: dict[str, str] = {}
        for line in filter(None, map(str.strip, str(value or "").splitlines())):
            name, colon, text = (part.strip() for part in line.partition(":"))
            if not (name and colon and text):
                raise forms.ValidationError(
                    f"{line[:60]!r} is not a header name, a colon and a pattern"
                )
            found[name.lower()] = text
        return found

    def has_changed(self, initial: Any, data: Any) -> bool:
        return (TextLines().format_value(initial) or "") != (data or "").replace("\r\n", "\n")


class NumberLines(TextArea):
    """A textarea with lines such as ``claude-opus-* rpm=20 concurrency=2``."""

    def format_value(self, value: Any) -> str | None:
        if isinstance(value, dict) and all(isinstance(sizes, dict) for sizes in value.values()):
            return "\n".join(
                " ".join([name, *(f"{key}={size}" for key, size in sizes.items())])
                for name, sizes in value.items()
            )
        return raw_text(value)


class NumbersField(forms.Field):
    """Structs of numbers by name or glob."""

    widget = NumberLines

    def __init__(self, kind: type[Struct], **kwargs: Any) -> None:
        self.keys = kind.__struct_fields__
        self.part = re.compile(rf"({'|'.join(self.keys)})=([0-9]{{1,18}})")
        super().__init__(**kwargs)

    def to_python(self, value: Any) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for line in filter(None, map(str.strip, str(value or "").splitlines())):
            name, *parts = line.split()
            sizes = [self.part.fullmatch(part) for part in parts]
            if not sizes or None in sizes or name in found:
                example = " ".join(f"{key}=20" for key in self.keys)
                raise forms.ValidationError(
                    f"{line[:80]!r}: expected each model once, as: claude-opus-* {example}"
                )
            found[name] = {match[1]: int(match[2]) for match in sizes if match}
        return found

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return bool((initial or {}) != self.to_python(data))
        except forms.ValidationError:
            return True


class WordsSelect(SelectInput):
    """A select for words with commas between them; a stored list may have another order."""

    def format_value(self, value: Any) -> list[str]:
        given = sorted(str(value or "").split(","))
        return [choice for choice, _ in self.choices if sorted(choice.split(",")) == given] or [""]


class Part(NamedTuple):
    """A field of a struct: its type without ``UNSET``, and its constraints."""

    name: str
    kind: Any
    title: str
    limits: dict[str, Any]


def parts_of(struct: type[Struct]) -> list[Part]:
    """Return the fields of a struct; their titles are the labels."""
    found = []
    for one in msgspec.structs.fields(struct):
        kind, title = one.type, one.name.replace("_", " ").capitalize()
        limits: dict[str, Any] = {}
        while get_origin(kind) in (Annotated, Union, UnionType):
            inner, *metas = [arg for arg in get_args(kind) if arg not in (UnsetType, NoneType)]
            for meta in metas:
                if isinstance(meta, Meta):
                    title = meta.title or title
                    limits |= {
                        name: getattr(meta, name)
                        for name in ("ge", "gt", "le", "max_length")
                        if getattr(meta, name) is not None
                    }
            kind = inner
        found.append(Part(one.name, kind, title, limits))
    return found


def input_of(part: Part) -> tuple[forms.Field, forms.Widget]:
    """Return the form field and the widget of one field of a struct."""
    origin, inner = get_origin(part.kind), get_args(part.kind)
    if part.kind in (int, float):
        whole = "a whole number from 1" if part.kind is int else "a number"
        error = f"{part.title}: {whole}, or empty"
        field = forms.IntegerField if part.kind is int else forms.FloatField
        step = (
            {"min": part.limits.get("ge", 1), "inputmode": "numeric"}
            if part.kind is int
            else {"step": "any"}
        )
        limits = {"min_value": part.limits.get("ge"), "max_value": part.limits.get("le", 2**53)}
        errors = dict.fromkeys(("invalid", "min_value"), error)
        return field(required=False, error_messages=errors, **limits), NumberInput(attrs=step)
    choices: list[tuple[str, str]] = []
    if part.kind is bool:
        choices = [("yes", "yes"), ("no", "no")]
    elif origin is Literal:
        choices = [(word or EMPTY_TEXT, word or "none") for word in inner]
    elif origin is list and get_origin(inner[0]) is Literal:
        words = get_args(inner[0])
        groups = itertools.chain(*(itertools.combinations(words, n + 1) for n in range(len(words))))
        choices = [(",".join(group), " and ".join(group)) for group in groups]
    if choices:
        choices = [("", "not set"), *choices]
        return forms.ChoiceField(choices=choices, required=False), WordsSelect(choices=choices)
    if origin is list:
        return LinesField(part.kind), LinesInput(attrs={"rows": 3})
    if origin is dict and isinstance(inner[1], type) and issubclass(inner[1], Struct):
        return NumbersField(inner[1], required=False), NumberLines(attrs={"rows": 3})
    if origin is dict:
        return TextsField(required=False), TextLines(attrs={"rows": 2})
    hint = {"placeholder": f"words with commas; {EMPTY_LIST} for none"} if origin is tuple else {}
    limit = part.limits.get("max_length", 10_000)
    return forms.CharField(required=False, max_length=limit), TextInput(attrs=hint)


class StructInput(MultiInput):
    def __init__(self, name: str, parts: Sequence[Part], widgets: Sequence[forms.Widget]) -> None:
        self.kinds = {part.name: part.kind for part in parts}
        super().__init__(name, list(self.kinds), [part.title for part in parts], widgets)

    def form_value(self, key: str, value: Any) -> Any:
        if isinstance(value, bool):
            return "yes" if value else "no"
        if value == "":
            return EMPTY_TEXT
        kind = self.kinds[key]
        if isinstance(value, list) and get_origin(kind) is tuple:
            return ", ".join(map(str, value)) or EMPTY_LIST
        if isinstance(value, list) and get_origin(get_args(kind)[0]) is Literal:
            return ",".join(map(str, value))
        return value


class StructField(PartsField):
    """A field with one input for each field of a struct."""

    def __init__(self, kind: Any, parts: Sequence[Part] = (), **kwargs: Any) -> None:
        self.kind, self.parts = kind, parts or parts_of(kind)
        fields, widgets = zip(*map(input_of, self.parts), strict=True)
        name = str(kwargs.get("label") or kind.__name__)
        super().__init__(fields, StructInput(name, self.parts, widgets), **kwargs)

    def compress(self, data_list: Sequence[Any]) -> dict[str, Any]:
        found = {}
        for part, value in zip(self.parts, data_list, strict=False):
            if value in (None, "", {}, []):
                continue
            found[part.name] = value
            if part.kind is float and value.is_integer():
                found[part.name] = int(value)
            elif part.kind is bool:
                found[part.name] = value == "yes"
            elif value == EMPTY_TEXT:
                found[part.name] = ""
            elif get_origin(part.kind) in (list, tuple) and not isinstance(value, list):
                words = "" if value == EMPTY_LIST else str(value)
                found[part.name] = [word.strip() for word in words.split(",") if word.strip()]
        return found

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            check_type({} if initial is None else initial, self.kind)
        except ValidationError:
            return True
        return super().has_changed(initial, data)


def typed_formfield(column: TypedJSON, field: Any = None, **options: Any) -> Any:
    """Return the form field of a column: of its type, or of the given class ``field``."""
    texts = {"label": capfirst(column.verbose_name), "help_text": column.help_text}
    options = {"required": False, **texts, **options}
    if field is not None:
        return field(**options)
    kind = get_args(column.kind)[0] if get_origin(column.kind) is Annotated else column.kind
    if get_origin(kind) is list:
        return LinesField(column.kind, **options)
    if isinstance(kind, type) and issubclass(kind, Struct):
        return StructField(kind, **options)
    return AssignmentsField(**options)


def column_of(model: type[Model], name: str) -> Any:
    return model._meta.get_field(name)  # noqa: SLF001 - documented by Django


def explain_unreadable_fields(form: Any) -> None:
    """Add a help text to each field whose stored value has an unexpected type."""
    columns = {one.name: one for one in form.instance._meta.concrete_fields}  # noqa: SLF001 - as above
    for name, field in form.fields.items():
        column = columns.get(name)
        if form.instance.pk and isinstance(column, TypedJSON) and name in form.initial:
            try:
                column.run_validators(form.initial[name])
            except ValidationError as error:
                text = "The stored value is invalid ({}). Saving replaces it. {}"
                field.help_text = format_html(text, " ".join(error.messages), field.help_text)
