"""Encode Amazon's event stream, as Amazon Bedrock sends it."""

import base64
import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from .script_steps import LAST_CHUNK, Script, Send, chunk


def frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Return one frame with headers of type string."""
    coded = b"".join(
        struct.pack(">B", len(name))
        + name.encode()
        + struct.pack(">BH", 7, len(value))
        + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack(">II", 16 + len(coded) + len(payload), len(coded))
    start = prelude + struct.pack(">I", zlib.crc32(prelude)) + coded + payload
    return start + struct.pack(">I", zlib.crc32(start))


def event(message_event: Mapping[str, Any]) -> bytes:
    coded = base64.b64encode(json.dumps(message_event).encode()).decode()
    return frame(
        {":event-type": "chunk", ":content-type": "application/json", ":message-type": "event"},
        json.dumps({"bytes": coded, "p": "abcdef"}).encode(),
    )


def exception(name: str, message: str) -> bytes:
    return frame(
        {
            ":exception-type": name,
            ":content-type": "application/json",
            ":message-type": "exception",
        },
        json.dumps({"message": message}).encode(),
    )


HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/vnd.amazon.eventstream\r\n"
    b"x-amzn-requestid: amazon-1\r\ntransfer-encoding: chunked\r\n\r\n"
)


def script(pieces: Iterable[bytes], *ending: Any) -> Script:
    """Return the script of a response that sends each piece in one write."""
    return [Send(HEAD), *(chunk(piece) for piece in pieces), *(ending or (LAST_CHUNK,))]
