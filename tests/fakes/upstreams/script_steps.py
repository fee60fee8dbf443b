"""The steps of an upstream's script: what it sends, when, and how it closes the connection.

A script is a sequence of steps. Nothing checks that the steps form valid HTTP, because tests need
upstreams that break it.
"""

import gzip
import json
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .stream_cuts import Cut, pieces

EVENT_STREAM = {"content-type": "text/event-stream; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class Send:
    """Write these bytes unchanged."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait; stop if the client disconnects."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Stall:
    """Send nothing until the client disconnects or the upstream stops."""


@dataclass(frozen=True, slots=True)
class WaitForGate:
    """Send nothing until the test sets the gate or the client disconnects."""

    gate: threading.Event


@dataclass(frozen=True, slots=True)
class Reset:
    """Drop the connection with a TCP RST (SO_LINGER 0)."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection with a FIN."""


Step = Send | Sleep | Stall | WaitForGate | Reset | Close
Script = Sequence[Step]


def head(
    status: int = 200, headers: Mapping[str, str] | None = None, *, reason: str = "Scripted"
) -> Send:
    """Build a status line and headers; they need not match the body."""
    lines = [f"HTTP/1.1 {status} {reason}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return Send(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))


def chunk(raw: bytes) -> Send:
    """Build one chunk of a chunked body."""
    return Send(b"%x\r\n%b\r\n" % (len(raw), raw))


LAST_CHUNK = Send(b"0\r\n\r\n")


def stream_head(headers: Mapping[str, str] | None = None) -> Send:
    """Build the status line and headers of a chunked event stream."""
    return head(200, EVENT_STREAM | {"transfer-encoding": "chunked"} | dict(headers or {}))


def stream(
    raw: bytes, cut: Cut = "whole", *, pauses: int = 8, ending: Script = (LAST_CHUNK,)
) -> Script:
    """Build an event stream from ``raw``, each piece in its own chunk.

    The kernel joins pieces that arrive close together. Up to ``pauses`` pauses, spread evenly,
    make the reader see some of the cuts. ``ending`` follows the body; ``[Reset()]``,
    ``[Close()]`` and ``[Stall()]`` leave it incomplete.
    """
    cuts = list(pieces(raw, cut))
    every = max(1, -(-len(cuts) // max(1, pauses)))
    steps: list[Step] = [stream_head()]
    for n, piece in enumerate(cuts, start=1):
        steps.append(chunk(piece))
        if pauses and n % every == 0:
            steps.append(Sleep(0.001))
    return [*steps, *ending]


def response(
    status: int, raw: bytes, content_type: str, headers: Mapping[str, str] | None = None
) -> Script:
    """Build a complete response with its length."""
    all_headers = {"content-type": content_type, "content-length": str(len(raw))} | dict(
        headers or {}
    )
    return [head(status, all_headers), Send(raw)]


def json_response(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Script:
    raw = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    return response(status, raw, "application/json", headers)


def html_response(status: int, *, size: int = 2_000) -> Script:
    """Build an HTML error page as load balancers send it."""
    page = b"<!DOCTYPE html><html><body><h1>Bad Gateway</h1>" + b"<p>x</p>" * (size // 8)
    return response(status, page, "text/html; charset=utf-8")


def gzipped_stream(raw: bytes, cut: Cut = "whole") -> Script:
    """Build a gzip event stream, although the request did not accept gzip."""
    packed = gzip.compress(raw, mtime=0)
    opening = stream_head({"content-encoding": "gzip"})
    return [opening, *(chunk(piece) for piece in pieces(packed, cut)), LAST_CHUNK]


def gzip_bomb(megabytes: int = 100) -> Script:
    """Build a small body that decompresses to ``megabytes``."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = b"".join(packer.compress(bytes(2**20)) for _ in range(megabytes)) + packer.flush()
    return [stream_head({"content-encoding": "gzip"}), chunk(packed), LAST_CHUNK]


def not_http(raw: bytes = b"SSH-2.0-OpenSSH_9.6\r\n\x00\xff\xfe") -> Script:
    """Build bytes that are not HTTP."""
    return [Send(raw), Close()]


def recorded_error(path: Path) -> Script:
    """Build the response that a file in the corpus' ``errors`` folder records."""
    record = json.loads(path.read_bytes())
    headers = {k: v for k, v in record["headers"].items() if k in {"retry-after", "x-should-retry"}}
    kind = record["headers"].get("content-type", "application/json")
    return response(record["status"] or 400, record["body_raw"].encode(), kind, headers)
