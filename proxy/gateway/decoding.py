"""Upstream's JSON -> dicts. Quick for what is sound, forgiving where servers are known to slip."""

import json
from typing import Any, Final

import msgspec

from translator.errors import BadUpstream

SLIPS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises where a text is not JSON of the shape that was asked for."""

_decode: Final = msgspec.json.Decoder().decode


def decode_event(name: str, text: bytes) -> dict[str, Any]:
    """One upstream event. Raises BadUpstream when it is not a JSON object."""
    try:
        event = _decode(text)
    except SLIPS:
        event = _decode_slips(text)
    if type(event) is not dict:
        raise BadUpstream("upstream sent an event that is not a JSON object")
    if name != "message" and "type" not in event:
        event["type"] = name  # servers that name the event on its line only
    return event


def decode_json(text: bytes) -> Any:
    """Raises BadUpstream when ``text`` is not JSON."""
    try:
        return _decode(text)
    except SLIPS:
        return _decode_slips(text)


def _decode_slips(text: bytes) -> Any:
    """NaN, and half a surrogate pair (an emoji cut in two), which no client could be sent."""
    try:
        value = json.loads(text.decode(), parse_constant=lambda _: None)
        return _decode(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise BadUpstream("upstream sent something that is not JSON") from None
