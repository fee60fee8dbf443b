"""Decode JSON from upstreams. Valid JSON takes a fast path, known server bugs a lenient one."""

import json
import math
from typing import Any, Final

import msgspec

from proxy.json_value_limit import MAX_VALUES, count_values
from translator.errors import BadUpstream
from translator.stream.surrogates import replace_surrogates

DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The exceptions that msgspec raises for text that is not JSON of the requested type."""

LARGE_TEXT: Final = MAX_VALUES
"""A text of at most this many bytes cannot have too many values, so they are not counted."""

_decode: Final = msgspec.json.Decoder().decode


def decode_event(name: str, text: bytes) -> dict[str, Any]:
    """Decode the SSE event ``name`` of an upstream.

    Raises BadUpstream if it is not a JSON object.
    """
    return require_event(name, decode_json(text))


def check_values(text: bytes) -> None:
    """Raise BadUpstream if ``text`` contains more than ``MAX_VALUES`` values."""
    if len(text) > LARGE_TEXT and count_values(text) > MAX_VALUES:
        raise BadUpstream(f"upstream sent JSON of more than {MAX_VALUES} values")


def decode_json(text: bytes) -> Any:
    """Decode JSON of an upstream. Raises BadUpstream if it is invalid or has too many values."""
    check_values(text)
    try:
        return _decode(text)
    except DECODE_ERRORS:
        pass
    try:
        return replace_surrogates(decode_lenient(text))
    except RecursionError:
        raise BadUpstream("upstream sent JSON that is nested too deeply") from None


def decode_lenient(text: bytes) -> Any:
    """Decode JSON that may contain NaN, infinities (both become None) or unpaired surrogates.

    Raises BadUpstream if the JSON is invalid in another way or has too many values.
    """
    check_values(text)
    try:
        return json.loads(text.decode(), parse_constant=lambda _: None, parse_float=_finite)
    except (ValueError, RecursionError):
        raise BadUpstream("upstream sent something that is not JSON") from None


def require_event(name: str, value: Any) -> dict[str, Any]:
    """Return a decoded SSE event; set ``type`` if missing.

    Raises BadUpstream if it is not a JSON object.
    """
    if type(value) is not dict:
        raise BadUpstream("upstream sent an event that is not a JSON object")
    if name != "message" and "type" not in value:
        value["type"] = name  # some servers name the type only in the SSE field ``event``
    return value


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(digits)
    return number
