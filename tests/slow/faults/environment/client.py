"""A raw-socket client that can send invalid HTTP, disconnect, send slowly or not read.

Without a script it sends one request and reads the complete response.
"""

import contextlib
import http.client
import io
import json
import random
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from tests.fakes.servers.gateway import Reply
from tests.fakes.upstreams.grammar import read_frames
from tests.slow.faults.concurrent_faults import PAUSE_S, packets
from tests.slow.faults.fault_scripts import GATE, TEXTS


@dataclass
class RawClient:
    """One connection to the gateway; use it as a context manager."""

    port: int
    key: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)  # empty values are omitted
    path: str = "/v1/messages"
    rng: random.Random | None = None  # cuts the sent bytes into packets
    reply: Reply | None = None  # None: no complete response
    rest: bytes = b""  # bytes after the response, until the end
    _buffer: bytes = b""  # received, not yet part of a response

    def __enter__(self) -> Self:
        self.sock = socket.create_connection(("127.0.0.1", self.port), timeout=90)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def run_script(self, script: list[Any]) -> None:
        for word in script or ["post", "read"]:
            if isinstance(word, str):
                PLAIN_STEPS[word](self)
            else:
                name, *_ = word
                STEPS_WITH_ARGUMENTS[name](self, **word)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The payloads of a streamed response."""
        frames, faults = read_frames(self.reply.body if self.reply else b"")
        assert not faults, faults
        return [frame.body for frame in frames]

    # Steps of a script.

    def head(self, *, line: str = "", length: int | None = None, **headers: str) -> None:
        headers_to_send = {
            "host": "gateway",
            "x-api-key": self.key,
            "content-type": "application/json",
            "content-length": str(len(self.body) if length is None else length),
            **self.headers,
            **headers,
        }
        lines = [line or f"POST {self.path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers_to_send.items() if value]
        self._send(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    def post(self) -> None:
        self.head()
        self.send(self.body)

    def send(self, raw: bytes) -> None:
        """Send bytes; ignore a closed connection, because the response decides."""
        with contextlib.suppress(ConnectionError):
            self._send(raw)

    def _send(self, raw: bytes) -> None:
        if self.rng is None:
            self.sock.sendall(raw)
            return
        for packet in packets(raw, self.rng):
            self.sock.sendall(packet)
            time.sleep(self.rng.random() * PAUSE_S)

    def send_slowly(self, slowly: str, *, pause_s: float = 0.1) -> None:
        """Send the bytes one by one with pauses."""
        for byte in slowly.encode("latin-1"):
            self.send(bytes([byte]))
            time.sleep(pause_s)

    def read_until(self, mark: str) -> None:
        while mark.encode() not in self._buffer:
            piece = self.sock.recv(65_536)
            assert piece, f"the gateway closed the connection after {self._buffer!r}"
            self._buffer += piece

    def read_response(self) -> None:
        """Read one response into ``reply``."""
        answer = http.client.HTTPResponse(_SocketOfClient(self))  # type: ignore[arg-type]
        try:
            answer.begin()
            body = answer.read()
        except (http.client.HTTPException, ConnectionError):
            return
        named = {name.lower(): value for name, value in answer.getheaders()}
        self.reply = Reply(answer.status, named, body)

    def read_to_end(self) -> None:
        """Read until the gateway closes the connection."""
        self.rest, self._buffer = self.rest + self._buffer, b""
        with contextlib.suppress(ConnectionError):
            while piece := self.sock.recv(65_536):
                self.rest += piece

    def wait_without_reading(self) -> None:
        """Read nothing until the gateway closes the connection."""
        watch = select.poll()
        watch.register(self.sock, select.POLLRDHUP)
        assert watch.poll(60_000), "the gateway does not close the connection"

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def read_some(self, size: int) -> int:
        """Read up to ``size`` bytes into the buffer; return the number of bytes."""
        piece = self.sock.recv(size)
        self._buffer += piece
        return len(piece)

    def unread(self, piece: bytes) -> None:
        self._buffer = piece + self._buffer

    def take(self, size: int) -> bytes:
        """Return up to ``size`` of the next bytes."""
        if not self._buffer:
            return self.sock.recv(size)
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken


class _SocketOfClient:
    """The part of the socket interface that ``http.client`` uses."""

    def __init__(self, client: RawClient) -> None:
        self._client = client

    def makefile(self, _: str) -> io.BufferedReader:
        return _Reader(_Raw(self._client))


class _Raw(io.RawIOBase):
    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.over = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = b"" if self.over else self.client.take(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)


class _Reader(io.BufferedReader):
    """A reader that returns read-ahead bytes to the client: the start of the next response."""

    raw: _Raw

    def close(self) -> None:
        if not self.closed:
            self.raw.over = True
            self.raw.client.unread(self.peek())
        super().close()


def _chunks(client: RawClient, chunks: int, size: int) -> None:
    for _ in range(chunks):
        client.send(b"%x\r\n%b\r\n" % (size, b"x" * size))


PLAIN_STEPS: dict[str, Callable[[RawClient], None]] = {
    "post": RawClient.post,
    "head": RawClient.head,
    "body": lambda client: client.send(client.body),
    "read": RawClient.read_response,
    "read to end": RawClient.read_to_end,
    "read nothing": RawClient.wait_without_reading,
    "set gate": lambda _: GATE.set(),
    "small buffer": lambda client: client.sock.setsockopt(
        socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096
    ),
    "chunked": lambda client: client.head(**{"content-length": "", "transfer-encoding": "chunked"}),
    "close": lambda client: client.sock.close(),
    "rst": RawClient.reset,
    "half-close": lambda client: client.sock.shutdown(socket.SHUT_WR),
}
STEPS_WITH_ARGUMENTS: dict[str, Callable[..., None]] = {
    "send": lambda client, send: client.send(
        send.encode("latin-1").replace(b"$KEY", client.key.encode())
    ),
    "head": lambda client, head, **more: client.head(line=head, **more),
    "length": lambda client, length: client.head(length=length),
    "until": lambda client, until: client.read_until(until),
    "slowly": RawClient.send_slowly,
    "chunks": _chunks,
    "texts": lambda client, texts: client.read_until(json.dumps(TEXTS[texts - 1])),
    "pause": lambda _, pause: time.sleep(pause),
}


def usual_request(model: str, mode: str, fields: Mapping[str, Any]) -> bytes:
    """Build a minimal request with the variant's fields added."""
    question = {"role": "user", "content": "Say hello."}
    request = {
        "model": model,
        "max_tokens": 100,
        "messages": [question],
        "stream": mode == "stream",
    }
    return json.dumps({**request, **fields}).encode()
