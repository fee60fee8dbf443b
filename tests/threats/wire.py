"""Requests as bytes, of which no HTTP library would write the half; and what comes back."""

import json
import socket
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

SILENCE_S = 0.4
"""A server that has said nothing for so long waits for more of the request."""


class Heard(NamedTuple):
    raw: bytes
    closed: bool  # by the server
    took_s: float

    @property
    def statuses(self) -> list[int]:
        found, rest = [], self.raw
        while rest.startswith(b"HTTP/1."):
            line, _, rest = rest.partition(b"\r\n")
            found.append(int(line.split()[1]))
            if rest.startswith(b"\r\n"):  # 100 Continue: no header at all
                rest = rest[2:]
                continue
            head, _, rest = rest.partition(b"\r\n\r\n")
            rest = rest[_length(head) :]
        return found

    @property
    def answers(self) -> int:
        """Status lines anywhere in what came: an answer more than was asked for is a smuggled one."""
        return self.raw.count(b"HTTP/1.1 ") + self.raw.count(b"HTTP/1.0 ")


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


def say(port: int, raw: bytes, *, within_s: float = 60, silence_s: float = SILENCE_S) -> Heard:
    """Send bytes and listen until the server closes or falls silent."""
    began = time.monotonic()
    heard, closed = bytearray(), False
    with socket.create_connection(("127.0.0.1", port), timeout=within_s) as line:
        try:
            line.sendall(raw)
            while True:
                line.settimeout(silence_s if heard else min(within_s, silence_s * 4))
                piece = line.recv(65_536)
                if not piece:
                    closed = True
                    break
                heard += piece
        except TimeoutError:
            pass
        except OSError:
            closed = True
    return Heard(bytes(heard), closed, time.monotonic() - began)


def say_all(port: int, requests: Iterable[bytes], *, at_once: int = 12) -> list[Heard]:
    with ThreadPoolExecutor(at_once) as crowd:
        return list(crowd.map(lambda raw: say(port, raw), requests))


def post(key: str, body: bytes, *headers: str, target: str = "/v1/messages") -> bytes:
    """A sound POST but for the headers that are added; no length unless they say one."""
    lines = [f"POST {target} HTTP/1.1", "host: localhost", f"x-api-key: {key}",
             "content-type: application/json", *headers]  # fmt: skip
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def question(**fields: object) -> bytes:
    asked = {"role": "user", "content": "Say hello."}
    return json.dumps({"model": "chat-x", "max_tokens": 10, "messages": [asked], **fields}).encode()
