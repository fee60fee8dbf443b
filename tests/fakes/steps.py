"""The vocabulary of an upstream's script: what it sends, when, and how it goes away.

A script is a sequence of steps. Nothing here checks that the steps make sense together: an
upstream that breaks HTTP is one of the things a script must be able to say.
"""

import gzip
import json
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cuts import Cut, pieces

EVENT_STREAM = {"content-type": "text/event-stream; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class Send:
    """Write these bytes as they are."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait, unless the client leaves."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Stall:
    """Say nothing until the client leaves or the upstream is stopped."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Say nothing until the test opens the gate, or the client leaves."""

    gate: threading.Event


@dataclass(frozen=True, slots=True)
class Reset:
    """Drop the connection with a TCP RST (SO_LINGER 0)."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection with a FIN."""


Step = Send | Sleep | Stall | Hold | Reset | Close
Script = Sequence[Step]


def head(
    status: int = 200, headers: Mapping[str, str] | None = None, *, reason: str = "Scripted"
) -> Send:
    """A status line and headers; whether they are true is the script's business."""
    lines = [f"HTTP/1.1 {status} {reason}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return Send(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))


def chunk(raw: bytes) -> Send:
    """One chunk of a chunked body."""
    return Send(b"%x\r\n%b\r\n" % (len(raw), raw))


LAST_CHUNK = Send(b"0\r\n\r\n")


def stream_head(headers: Mapping[str, str] | None = None) -> Send:
    """The head of a chunked event stream."""
    return head(200, EVENT_STREAM | {"transfer-encoding": "chunked"} | dict(headers or {}))


def stream(
    raw: bytes, cut: Cut = "whole", *, pauses: int = 8, ending: Script = (LAST_CHUNK,)
) -> Script:
    """An event stream, byte for byte, each piece in a chunk of its own.

    The kernel joins what arrives close together, so ``pauses`` (at most that many, spread
    evenly) make sure that some cuts are also the reader's cuts. ``ending`` is what follows the
    body: ``[Reset()]``, ``[Close()]`` and ``[Stall()]`` are the rude ones.
    """
    cuts = list(pieces(raw, cut))
    every = max(1, -(-len(cuts) // max(1, pauses)))
    steps: list[Step] = [stream_head()]
    for n, piece in enumerate(cuts, start=1):
        steps.append(chunk(piece))
        if pauses and n % every == 0:
            steps.append(Sleep(0.001))
    return [*steps, *ending]


def answer(
    status: int, raw: bytes, content_type: str, headers: Mapping[str, str] | None = None
) -> Script:
    """A whole answer with its length."""
    told = {"content-type": content_type, "content-length": str(len(raw))} | dict(headers or {})
    return [head(status, told), Send(raw)]


def json_answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Script:
    raw = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    return answer(status, raw, "application/json", headers)


def html_answer(status: int, *, size: int = 2_000) -> Script:
    """An error page as load balancers write them."""
    page = b"<!DOCTYPE html><html><body><h1>Bad Gateway</h1>" + b"<p>x</p>" * (size // 8)
    return answer(status, page, "text/html; charset=utf-8")


def gzipped_stream(raw: bytes, cut: Cut = "whole") -> Script:
    """An event stream compressed although nobody asked for it."""
    packed = gzip.compress(raw, mtime=0)
    told = stream_head({"content-encoding": "gzip"})
    return [told, *(chunk(piece) for piece in pieces(packed, cut)), LAST_CHUNK]


def gzip_bomb(megabytes: int = 100) -> Script:
    """A small body that inflates to ``megabytes``."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = b"".join(packer.compress(bytes(2**20)) for _ in range(megabytes)) + packer.flush()
    return [stream_head({"content-encoding": "gzip"}), chunk(packed), LAST_CHUNK]


def garbage(raw: bytes = b"SSH-2.0-OpenSSH_9.6\r\n\x00\xff\xfe") -> Script:
    """Something that is not HTTP at all."""
    return [Send(raw), Close()]


def recorded_error(path: Path) -> Script:
    """A file of the corpus' ``errors`` folder as the answer it was."""
    record = json.loads(path.read_bytes())
    headers = {k: v for k, v in record["headers"].items() if k in {"retry-after", "x-should-retry"}}
    kind = record["headers"].get("content-type", "application/json")
    return answer(record["status"] or 400, record["body_raw"].encode(), kind, headers)
