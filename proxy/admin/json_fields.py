"""The form field of a JSON column: what both databases can keep, or a complaint."""

import json
from collections.abc import Callable
from typing import Any

from django import forms
from django.forms.fields import InvalidJSONInput


class StorableJson(forms.JSONField):
    """``empty`` makes what the column holds where nothing, or null, was typed."""

    empty: Callable[[], Any] = staticmethod(lambda: None)

    def clean(self, value: Any) -> Any:
        found = super().clean(value)
        return self.empty() if found is None else found

    def to_python(self, value: Any) -> Any:
        try:
            found = super().to_python(value)
            kept = json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
        except (ValueError, RecursionError):  # infinity, half a character, 5,000 digits, too deep
            raise forms.ValidationError(self.error_messages["invalid"], code="invalid") from None
        if b"\\u0000" in kept:
            raise forms.ValidationError("it holds a null character, which no database keeps")
        return found

    def bound_data(self, data: Any, initial: Any) -> Any:
        """What was refused is shown again as it was typed."""
        try:
            self.to_python(data)
        except forms.ValidationError:
            return InvalidJSONInput(data)
        return super().bound_data(data, initial)
