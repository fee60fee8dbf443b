"""Send HTTP requests as raw bytes, including invalid ones, and read the raw responses."""

import json
import socket
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

SILENCE_S = 0.4
"""A server that sends nothing for this time is assumed to wait for more of the request."""


class RawResponse(NamedTuple):
    raw: bytes
    closed: bool  # by the server
    took_s: float

    @property
    def statuses(self) -> list[int]:
        statuses, rest = [], self.raw
        while rest.startswith(b"HTTP/1."):
            connection, _, rest = rest.partition(b"\r\n")
            statuses.append(int(connection.split()[1]))
            if rest.startswith(b"\r\n"):  # 100 Continue without headers
                rest = rest[2:]
                continue
            head, _, rest = rest.partition(b"\r\n\r\n")
            rest = rest[_length(head) :]
        return statuses

    @property
    def response_count(self) -> int:
        """The number of status lines; more than one per request means a smuggled request."""
        return self.raw.count(b"HTTP/1.1 ") + self.raw.count(b"HTTP/1.0 ")


def _length(head: bytes) -> int:
    for connection in head.lower().split(b"\r\n"):
        if connection.startswith(b"content-length:"):
            return int(connection.partition(b":")[2])
    return 0


def send_raw(
    port: int, raw: bytes, *, within_s: float = 60, silence_s: float = SILENCE_S
) -> RawResponse:
    """Send bytes and read until the server closes the connection or is silent for ``silence_s``."""
    began = time.monotonic()
    received, closed = bytearray(), False
    with socket.create_connection(("127.0.0.1", port), timeout=within_s) as connection:
        try:
            connection.sendall(raw)
            while True:
                connection.settimeout(silence_s if received else min(within_s, silence_s * 4))
                data = connection.recv(65_536)
                if not data:
                    closed = True
                    break
                received += data
        except TimeoutError:
            pass
        except OSError:
            closed = True
    return RawResponse(bytes(received), closed, time.monotonic() - began)


def send_all(port: int, requests: Iterable[bytes], *, at_once: int = 12) -> list[RawResponse]:
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda raw: send_raw(port, raw), requests))


def post(key: str, body: bytes, *headers: str, target: str = "/v1/messages") -> bytes:
    """Build a POST with these additional headers; no content-length by default."""
    lines = [f"POST {target} HTTP/1.1", "host: localhost", f"x-api-key: {key}",
             "content-type: application/json", *headers]  # fmt: skip
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def messages_body(**fields: object) -> bytes:
    message = {"role": "user", "content": "Say hello."}
    return json.dumps(
        {"model": "chat-x", "max_tokens": 10, "messages": [message], **fields}
    ).encode()
