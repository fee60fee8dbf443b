"""A client of raw sockets that can lie, leave, dawdle and refuse to read; scripted by words.

Without a script it asks politely and hears the answer to its end.
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

from tests.fakes.gateway import Reply
from tests.fakes.grammar import read_frames

from .company import PAUSE_S, packets
from .plays import GATE, TEXTS


@dataclass
class LyingClient:
    """One connection to the gateway; use it as a context manager."""

    port: int
    key: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)  # an empty one is left out
    path: str = "/v1/messages"
    chance: random.Random | None = None  # it cuts what is sent into packets
    reply: Reply | None = None  # None: no (whole) answer came
    rest: bytes = b""  # what came after the answer, until the end
    _held: bytes = b""  # heard, not yet part of an answer

    def __enter__(self) -> Self:
        self.sock = socket.create_connection(("127.0.0.1", self.port), timeout=90)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._held = b""
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def play(self, script: list[Any]) -> None:
        for word in script or ["post", "hear"]:
            if isinstance(word, str):
                PLAIN[word](self)
            else:
                name, *_ = word
                SAYING[name](self, **word)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The payloads of a streamed answer."""
        frames, faults = read_frames(self.reply.body if self.reply else b"")
        assert not faults, faults
        return [frame.body for frame in frames]

    # Words.

    def head(self, *, line: str = "", length: int | None = None, **headers: str) -> None:
        told = {
            "host": "gateway",
            "x-api-key": self.key,
            "content-type": "application/json",
            "content-length": str(len(self.body) if length is None else length),
            **self.headers,
            **headers,
        }
        lines = [line or f"POST {self.path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in told.items() if value]
        self._send(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    def post(self) -> None:
        self.head()
        self.say(self.body)

    def say(self, raw: bytes) -> None:
        """Say it, unless the gateway has heard enough: then its answer is what counts."""
        with contextlib.suppress(ConnectionError):
            self._send(raw)

    def _send(self, raw: bytes) -> None:
        if self.chance is None:
            self.sock.sendall(raw)
            return
        for packet in packets(raw, self.chance):
            self.sock.sendall(packet)
            time.sleep(self.chance.random() * PAUSE_S)

    def dawdle(self, dawdle: str, *, pause_s: float = 0.1) -> None:
        """One byte after the other."""
        for byte in dawdle.encode("latin-1"):
            self.say(bytes([byte]))
            time.sleep(pause_s)

    def hear_until(self, mark: str) -> None:
        while mark.encode() not in self._held:
            piece = self.sock.recv(65_536)
            assert piece, f"the gateway hung up after {self._held!r}"
            self._held += piece

    def hear(self) -> None:
        """One answer."""
        answer = http.client.HTTPResponse(_Heard(self))  # type: ignore[arg-type]
        try:
            answer.begin()
            body = answer.read()
        except (http.client.HTTPException, ConnectionError):
            return
        named = {name.lower(): value for name, value in answer.getheaders()}
        self.reply = Reply(answer.status, named, body)

    def hear_the_end(self) -> None:
        """Until the gateway hangs up."""
        self.rest, self._held = self.rest + self._held, b""
        with contextlib.suppress(ConnectionError):
            while piece := self.sock.recv(65_536):
                self.rest += piece

    def hear_nothing(self) -> None:
        """Leave what comes where it is, until the gateway has had enough."""
        watch = select.poll()
        watch.register(self.sock, select.POLLRDHUP)
        assert watch.poll(60_000), "the gateway goes on and on"

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def sip(self, size: int) -> int:
        """Read a little of the answer, and keep it for later; how much it was."""
        piece = self.sock.recv(size)
        self._held += piece
        return len(piece)

    def give_back(self, piece: bytes) -> None:
        self._held = piece + self._held

    def take(self, size: int) -> bytes:
        """Up to ``size`` of the bytes that come next."""
        if not self._held:
            return self.sock.recv(size)
        taken, self._held = self._held[:size], self._held[size:]
        return taken


class _Heard:
    """What ``http.client`` wants of a socket."""

    def __init__(self, client: LyingClient) -> None:
        self._client = client

    def makefile(self, _: str) -> io.BufferedReader:
        return _Reader(_Raw(self._client))


class _Raw(io.RawIOBase):
    def __init__(self, client: LyingClient) -> None:
        self.client = client
        self.over = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = b"" if self.over else self.client.take(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)


class _Reader(io.BufferedReader):
    """Gives back what it read ahead: the beginning of the next answer."""

    raw: _Raw

    def close(self) -> None:
        if not self.closed:
            self.raw.over = True
            self.raw.client.give_back(self.peek())
        super().close()


def _chunks(client: LyingClient, chunks: int, size: int) -> None:
    for _ in range(chunks):
        client.say(b"%x\r\n%b\r\n" % (size, b"x" * size))


PLAIN: dict[str, Callable[[LyingClient], None]] = {
    "post": LyingClient.post,
    "head": LyingClient.head,
    "body": lambda client: client.say(client.body),
    "hear": LyingClient.hear,
    "hear the end": LyingClient.hear_the_end,
    "hear nothing": LyingClient.hear_nothing,
    "let go": lambda _: GATE.set(),
    "narrow": lambda client: client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096),
    "chunked": lambda client: client.head(**{"content-length": "", "transfer-encoding": "chunked"}),
    "hang up": lambda client: client.sock.close(),
    "rst": LyingClient.reset,
    "half-close": lambda client: client.sock.shutdown(socket.SHUT_WR),
}
SAYING: dict[str, Callable[..., None]] = {
    "say": lambda client, say: client.say(
        say.encode("latin-1").replace(b"$KEY", client.key.encode())
    ),
    "head": lambda client, head, **more: client.head(line=head, **more),
    "length": lambda client, length: client.head(length=length),
    "until": lambda client, until: client.hear_until(until),
    "dawdle": LyingClient.dawdle,
    "chunks": _chunks,
    "texts": lambda client, texts: client.hear_until(json.dumps(TEXTS[texts - 1])),
    "pause": lambda _, pause: time.sleep(pause),
}


def usual_request(model: str, ask: str, fields: Mapping[str, Any]) -> bytes:
    """The least that asks for an answer, and what a play adds."""
    said = {"role": "user", "content": "Say hello."}
    request = {"model": model, "max_tokens": 100, "messages": [said], "stream": ask == "stream"}
    return json.dumps({**request, **fields}).encode()
