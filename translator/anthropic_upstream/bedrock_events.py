"""Turn the event stream of Amazon Bedrock into Anthropic's SSE frames.

Each frame of type ``chunk`` carries one Anthropic event in base64. Exceptions that end the stream
become Anthropic's ``error`` event. Source: Amazon Bedrock API Reference, "ResponseStream".
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from translator.anthropic.error_body import client_message
from translator.errors import BadUpstream
from translator.stream.amazon_event_stream import EventStreamDecoder, Frame

CONTENT_TYPE: Final = "application/vnd.amazon.eventstream"
FIRST_TYPE: Final = re.compile(rb'\s*\{\s*"type"\s*:\s*"([a-z_]{1,64})"')
ERROR_TYPES: Final[Mapping[str, str]] = {
    "throttlingexception": "rate_limit_error",
    "servicequotaexceededexception": "rate_limit_error",
    "validationexception": "invalid_request_error",
    "serviceunavailableexception": "overloaded_error",
    "modelnotreadyexception": "overloaded_error",
    "modeltimeoutexception": "timeout_error",
    "accessdeniedexception": "api_error",
    "resourcenotfoundexception": "not_found_error",
}
"""Amazon's exceptions in lower case -> Anthropic's error types; all others are ``api_error``."""


class BedrockEvents:
    """Decodes one response."""

    def __init__(self) -> None:
        self._frames = EventStreamDecoder()

    def feed(self, raw: bytes) -> bytes:
        """Add a read; return the SSE frames of its complete events. Raises BadUpstream."""
        return b"".join(map(_sse_frame, self._frames.feed(raw)))


def _sse_frame(frame: Frame) -> bytes:
    kind = frame.headers.get(":message-type", "event")
    if kind != "event":
        name = frame.headers.get(":exception-type") or frame.headers.get(":error-code", "")
        text = _field(frame.payload, "message") or frame.headers.get(":error-message", "")
        return _sse("error", json.dumps(_error(name, text)).encode())
    if frame.headers.get(":event-type") != "chunk":
        return b""
    encoded = _field(frame.payload, "bytes")
    try:
        event = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        event = b""
    if not event or b"\n" in event or b"\r" in event:
        raise BadUpstream("upstream's event stream has a chunk without an event")
    found = FIRST_TYPE.match(event)
    return _sse(found[1].decode() if found else _event_type(event), event)


def _error(name: str, text: str) -> dict[str, Any]:
    error_type = ERROR_TYPES.get(name.lower(), "api_error")
    message = client_message(text) if text else "the upstream ended the stream with an error"
    return {"type": "error", "error": {"type": error_type, "message": message}}


def _sse(name: str, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def _event_type(event: bytes) -> str:
    kind = _field(event, "type")
    if not re.fullmatch(r"[a-z_]{1,64}", kind):
        raise BadUpstream("upstream's event stream has an event without a type")
    return kind


def _field(raw: bytes, name: str) -> str:
    """Return a string field of a JSON object; "" if there is none."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return ""
    text = value.get(name) if isinstance(value, dict) else None
    return text if isinstance(text, str) else ""
