"""Bring the answer to a changed output schema back into the form of the client's own schema."""

import re
from typing import Final

from translator.dialect import AnswerForm
from translator.stream.surrogates import replace_surrogates
from translator.stream.tool_arguments import compact_json, parse_arguments, without_nulls

WRAPPER: Final = "value"
"""The one property of the object around an answer that is no object."""
_WRAPPER_START: Final = re.compile(rf'\s{{0,99}}\{{\s{{0,99}}"{WRAPPER}"\s{{0,99}}:\s{{0,99}}')


def restored_answer(text: str, form: AnswerForm) -> str:
    """Return the answer without its wrapper and without the nulls of absent properties.

    An answer in another form, such as a refusal in words, stays as it is; a truncated one loses
    only the start of the wrapper.
    """
    value, _ = parse_arguments(text) if text and not text.isspace() else (text, False)
    if not isinstance(value, dict):
        start = _WRAPPER_START.match(text) if form.wrapped else None
        return text[start.end() :] if start is not None else text
    if "\\u" in text:
        value = replace_surrogates(value)  # an escape sequence may encode an unpaired surrogate
    restored = without_nulls(value, form.optional)
    if form.wrapped:
        return compact_json(restored[WRAPPER]) if restored.keys() == {WRAPPER} else text
    return text if restored == value else compact_json(restored)
