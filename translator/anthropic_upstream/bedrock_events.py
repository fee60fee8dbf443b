"""Turn the event stream of Amazon Bedrock into Anthropic's SSE frames.

Each frame of type ``chunk`` carries one Anthropic event in base64. Exceptions that end the stream
become Anthropic's ``error`` event. Source: Amazon Bedrock API Reference, "ResponseStream".
"""

import base64
import binascii
import json
import re
import struct
import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from translator.anthropic.error_body import client_message
from translator.errors import BadUpstream

PRELUDE: Final = struct.Struct(">III")
CHECKSUM_BYTES: Final = 4
SHORTEST_FRAME: Final = PRELUDE.size + CHECKSUM_BYTES
MAX_FRAME_BYTES: Final = 24 * 2**20
"""Amazon permits payloads of 24 MB; a chunk of a message has less than a kilobyte."""
MAX_HEADER_BYTES: Final = 128 * 1024
FIXED_SIZES: Final = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Bytes of a header's value by its type; types 6 (bytes) and 7 (string) begin with their length."""
STRING: Final = 7
SIZED: Final = (6, STRING)


class Frame(NamedTuple):
    """One frame: total length, length of the headers, CRC of both, headers, payload, CRC of all.

    All integers are big-endian, both checksums are CRC-32. Source: Amazon Transcribe Developer
    Guide, "Event stream encoding"; smithy.io, "Amazon Event Stream Specification".
    """

    headers: dict[str, str]
    """The headers of type string, by name. Others are skipped."""
    payload: bytes


class EventStreamDecoder:
    """Decodes the frames of one response from its reads."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, raw: bytes) -> list[Frame]:
        """Add a read; return the complete frames.

        Raises BadUpstream for a wrong checksum or an impossible length: the rest of the stream
        cannot be decoded, as the start of the next frame is unknown.
        """
        rest = self._rest
        rest += raw
        frames: list[Frame] = []
        start = 0
        while len(rest) - start >= PRELUDE.size:
            size, header_size, checksum = PRELUDE.unpack_from(rest, start)
            if zlib.crc32(rest[start : start + 8]) != checksum:
                raise BadUpstream("upstream's event stream has a wrong checksum")
            if not SHORTEST_FRAME + header_size <= size <= MAX_FRAME_BYTES:
                raise BadUpstream("upstream's event stream has a frame of an impossible size")
            if header_size > MAX_HEADER_BYTES:
                raise BadUpstream("upstream's event stream has too large headers")
            if len(rest) - start < size:
                break
            frames.append(_decode_frame(bytes(rest[start : start + size]), header_size))
            start += size
        del rest[:start]
        return frames


def _decode_frame(frame: bytes, header_size: int) -> Frame:
    (checksum,) = struct.unpack_from(">I", frame, len(frame) - CHECKSUM_BYTES)
    if zlib.crc32(frame[:-CHECKSUM_BYTES]) != checksum:
        raise BadUpstream("upstream's event stream has a wrong checksum")
    split = PRELUDE.size + header_size
    try:
        headers = _decode_headers(frame[PRELUDE.size : split])
    except (IndexError, KeyError, UnicodeDecodeError, struct.error):
        raise BadUpstream("upstream's event stream has malformed headers") from None
    return Frame(headers, frame[split:-CHECKSUM_BYTES])


def _decode_headers(raw: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    at = 0
    while at < len(raw):
        name_end = at + 1 + raw[at]
        name, kind = raw[at + 1 : name_end].decode(), raw[name_end]
        at = name_end + 1
        if kind in SIZED:
            (size,) = struct.unpack_from(">H", raw, at)
            at += 2
        else:
            size = FIXED_SIZES[kind]
        if at + size > len(raw):
            raise IndexError("a header's value is cut")
        if kind == STRING:
            headers[name] = raw[at : at + size].decode()
        at += size
    return headers


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
        error_type = ERROR_TYPES.get(name.lower(), "api_error")
        message = client_message(text) if text else "the upstream ended the stream with an error"
        body = {"type": "error", "error": {"type": error_type, "message": message}}
        return _sse("error", json.dumps(body).encode())
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
    event_type = found[1].decode() if found else _field(event, "type")
    if not re.fullmatch(r"[a-z_]{1,64}", event_type):
        raise BadUpstream("upstream's event stream has an event without a type")
    return _sse(event_type, event)


def _sse(name: str, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def _field(raw: bytes, name: str) -> str:
    """Return a string field of a JSON object; "" if there is none."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return ""
    text = value.get(name) if isinstance(value, dict) else None
    return text if isinstance(text, str) else ""
