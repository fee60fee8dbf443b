"""Upstream's JSON -> dicts. Quick for what is sound, forgiving where servers are known to slip."""

import json
import math
from typing import Any, Final

import msgspec

from proxy.json_bounds import MOST_VALUES, count_values
from translator.errors import BadUpstream
from translator.halves import sound

SLIPS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises where a text is not JSON of the shape that was asked for."""

LARGE: Final = MOST_VALUES
"""Bytes from which on a text may hold too many values, so that ``decode_json`` must count them."""

_decode: Final = msgspec.json.Decoder().decode


def decode_event(name: str, text: bytes) -> dict[str, Any]:
    """One upstream event. Raises BadUpstream when it is not a JSON object."""
    return event_in(name, decode_json(text))


def check_values(text: bytes) -> None:
    """Raise BadUpstream when ``text`` holds more values than may be decoded."""
    if len(text) > LARGE and count_values(text) > MOST_VALUES:
        raise BadUpstream(f"upstream sent JSON of more than {MOST_VALUES} values")


def decode_json(text: bytes) -> Any:
    """Raises BadUpstream when ``text`` is not JSON, or has too many values."""
    check_values(text)
    try:
        return _decode(text)
    except SLIPS:
        return _decode_slips(text)


def decode_loosely(text: bytes) -> Any:
    """JSON with NaN in it, or with half a surrogate pair, which no client could be sent.

    Raises BadUpstream when it is not even that, or has too many values.
    """
    check_values(text)
    try:
        return json.loads(text.decode(), parse_constant=lambda _: None, parse_float=_finite)
    except (ValueError, RecursionError):
        raise BadUpstream("upstream sent something that is not JSON") from None


def event_in(name: str, value: Any) -> dict[str, Any]:
    """A decoded event. Raises BadUpstream when it is not a JSON object."""
    if type(value) is not dict:
        raise BadUpstream("upstream sent an event that is not a JSON object")
    if name != "message" and "type" not in value:
        value["type"] = name  # servers that name the event on its line only
    return value


def _decode_slips(text: bytes) -> Any:
    try:
        return sound(decode_loosely(text))
    except RecursionError:
        raise BadUpstream("upstream sent JSON that is nested too deeply") from None


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(digits)
    return number
