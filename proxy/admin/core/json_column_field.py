"""The form field for JSON columns; it rejects values that SQLite or PostgreSQL cannot store."""

import json
from collections.abc import Callable
from typing import Any

from django import forms
from django.forms.fields import InvalidJSONInput


class StorableJson(forms.JSONField):
    """A JSON form field. ``empty()`` is the value to store if the input is empty or null."""

    empty: Callable[[], Any] = staticmethod(lambda: None)

    def clean(self, value: Any) -> Any:
        data = super().clean(value)
        return self.empty() if data is None else data

    def to_python(self, value: Any) -> Any:
        try:
            data = super().to_python(value)
            encoded = json.dumps(data, allow_nan=False, ensure_ascii=False).encode()
        except (
            ValueError,
            RecursionError,
        ):  # an infinity, an unpaired surrogate, too many digits or too much nesting
            raise forms.ValidationError(self.error_messages["invalid"], code="invalid") from None
        if b"\\u0000" in encoded:
            raise forms.ValidationError("it has a null character, which no database stores")
        return data

    def bound_data(self, data: Any, initial: Any) -> Any:
        """Return the text to show in the form: invalid input is shown as the user typed it."""
        try:
            self.to_python(data)
        except forms.ValidationError:
            return InvalidJSONInput(data)
        return super().bound_data(data, initial)
