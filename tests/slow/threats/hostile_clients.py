"""Clients that occupy connections: each kind sends a few bytes and waits for the gateway to close."""

import contextlib
import select
import socket
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from . import raw_http

REPEAT_EVERY_S = 0.25
SMALL_REQUEST = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
LARGE_RESPONSE_REQUEST = b"GET /static/unfold/css/styles.css HTTP/1.1\r\nhost: localhost\r\n\r\n"
INVALID_KEY = "sk-br-wrong"


class ClientKind(NamedTuple):
    """The bytes that a client sends first and then repeatedly, and how it behaves.

    ``reads``: it reads responses. ``half_closes``: it shuts down its sending side.
    ``repeats_after_response``: it sends ``repeated`` only after a response has started.
    """

    first: bytes
    repeated: bytes = b""
    reads: bool = True
    half_closes: bool = False
    repeats_after_response: bool = False


def head(target: str, *lines: str, method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/1.1", "host: localhost", *lines, "", ""]).encode()


def upgrade(target: str, *lines: str, to: str = "websocket") -> bytes:
    handshake = ("sec-websocket-version: 13", "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==")
    return head(
        target, "connection: upgrade", f"upgrade: {to}", *handshake, *lines, method="GET"
    )  # fmt: skip


def kinds(key: str) -> dict[str, ClientKind]:
    def post(*lines: str, key_used: str = key, body: bytes = b"") -> bytes:
        return raw_http.post(key_used, body, *lines)

    return {
        "silent": ClientKind(b""),
        "only line ends": ClientKind(b"\r\n", repeated=b"\r\n"),
        "partial head": ClientKind(b"POST /v1/messages HTTP/1.1\r\nx-slow: "),
        "head byte by byte": ClientKind(b"POST /v1/messages HTTP/1.1\r\nx-slow: ", repeated=b"y"),
        "idle after a response": ClientKind(SMALL_REQUEST),
        "a line end after a response": ClientKind(SMALL_REQUEST + b"\r"),
        "line ends after a response": ClientKind(
            SMALL_REQUEST, repeated=b"\r\n", repeats_after_response=True
        ),
        "a byte of a head after a response": ClientKind(SMALL_REQUEST + b"G"),
        "head byte by byte after a response": ClientKind(SMALL_REQUEST + b"GET /", repeated=b"a"),
        "an invalid byte": ClientKind(SMALL_REQUEST + b"\x00"),
        "an invalid byte after the response": ClientKind(
            SMALL_REQUEST, repeated=b"\x00", repeats_after_response=True
        ),
        "401 without the body": ClientKind(post("content-length: 1000", key_used=INVALID_KEY)),
        "401, body byte by byte": ClientKind(
            post("content-length: 1000", key_used=INVALID_KEY), repeated=b"x"
        ),
        "401, slow chunks": ClientKind(
            post("transfer-encoding: chunked", key_used=INVALID_KEY), repeated=b"1\r\nx\r\n"
        ),
        "401 and Expect": ClientKind(
            post("content-length: 1000", "expect: 100-continue", key_used=INVALID_KEY)
        ),
        "404 without the body": ClientKind(head("/v1/nowhere", "content-length: 1000")),
        "405 without the body": ClientKind(
            head("/v1/messages", "content-length: 1000", method="PUT")
        ),
        "413 without the body": ClientKind(post("content-length: 99999999")),
        "413, body byte by byte": ClientKind(post("content-length: 99999999"), repeated=b"x"),
        "no body": ClientKind(post("content-length: 1000", body=b"{")),
        "body byte by byte": ClientKind(post("content-length: 1000", body=b"{"), repeated=b" "),
        "Expect, and no body": ClientKind(post("content-length: 1000", "expect: 100-continue")),
        "no form": ClientKind(head("/admin/login/", "content-length: 1000")),
        "form byte by byte": ClientKind(
            head("/admin/login/", "content-length: 1000"), repeated=b"x"
        ),
        "a WebSocket with a length": ClientKind(upgrade("/ws/live/", "content-length: 1000")),
        "a WebSocket with chunks": ClientKind(upgrade("/ws/live/", "transfer-encoding: chunked")),
        "a WebSocket without a session": ClientKind(upgrade("/ws/live/")),
        "a WebSocket without a session that sends frames": ClientKind(
            upgrade("/ws/live/") + b"\xff" * 9, repeated=b"\xff" * 9
        ),
        "a WebSocket on another path": ClientKind(upgrade("/v1/messages")),
        "a WebSocket with a long line": ClientKind(upgrade("/ws/live/", f"x-long: {'y' * 9_000}")),
        "a WebSocket without a version": ClientKind(
            head("/ws/live/", "connection: upgrade", "upgrade: websocket", method="GET")
        ),
        "an upgrade to h2c": ClientKind(upgrade("/healthz", to="h2c"), repeated=b"\r\n"),
        "an upgrade to h2c with a length": ClientKind(
            upgrade("/healthz", "content-length: 1000", to="h2c")
        ),
        "CONNECT": ClientKind(head("evil:443", method="CONNECT")),
        "a bad chunk": ClientKind(post("transfer-encoding: chunked", body=b"no\r\n")),
        "Connection: close": ClientKind(head("/healthz", "connection: close", method="GET")),
        "HTTP/1.0": ClientKind(b"GET /healthz HTTP/1.0\r\n\r\n"),
        "half-closed": ClientKind(SMALL_REQUEST, half_closes=True),
        "half-closed in its body": ClientKind(
            post("content-length: 1000", body=b"{"), half_closes=True
        ),
        "reads no response": ClientKind(LARGE_RESPONSE_REQUEST * 12, reads=False),
        "reads no response and sends more": ClientKind(
            LARGE_RESPONSE_REQUEST * 12, repeated=b"\r\n", reads=False
        ),
        "does not read the last response": ClientKind(
            LARGE_RESPONSE_REQUEST * 11
            + LARGE_RESPONSE_REQUEST.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"),
            reads=False,
        ),
        "pipelines endlessly": ClientKind(SMALL_REQUEST * 200, repeated=SMALL_REQUEST),
    }


@dataclass
class Client:
    """One connection of a client kind."""

    kind: ClientKind
    sock: socket.socket
    received: bytearray = field(default_factory=bytearray)
    open_s: float | None = None  # seconds until the gateway closed it


class ClientGroup:
    """Many clients; ``close`` disconnects them."""

    def __init__(self) -> None:
        self.clients: list[Client] = []

    @property
    def open_clients(self) -> list[Client]:
        """The clients whose connection the gateway has not closed."""
        return [client for client in self.clients if client.open_s is None]

    def connect(self, port: int, address: str, kind: ClientKind) -> Client:
        """Connect from this loopback address and send the first bytes as far as possible."""
        sock = socket.socket()
        client = Client(kind, sock)
        self.clients.append(client)
        if not kind.reads:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
        sock.settimeout(30)
        sock.bind((address, 0))
        with contextlib.suppress(BlockingIOError, ConnectionError):
            sock.connect(("127.0.0.1", port))
            sock.setblocking(False)
            sock.send(kind.first)
            if kind.half_closes:
                sock.shutdown(socket.SHUT_WR)
        return client

    def wait_until_closed(self, within_s: float, *, allowed_open: int = 0) -> None:
        """Send and read until all but ``allowed_open`` are closed or time is up; record the times."""
        began, last_repeat = time.monotonic(), 0.0
        waiting = {client.sock.fileno(): client for client in self.open_clients}
        poll = select.poll()
        for number, client in waiting.items():
            poll.register(number, select.POLLIN if client.kind.reads else 0)
        while len(waiting) > allowed_open and (now := time.monotonic()) < began + within_s:
            for number, event in poll.poll(50):
                if _is_closed(waiting[number], event):
                    waiting.pop(number).open_s = now - began
                    poll.unregister(number)
            if now - last_repeat > REPEAT_EVERY_S:
                last_repeat = now
                for client in waiting.values():
                    if client.kind.repeats_after_response and not client.received:
                        continue
                    with contextlib.suppress(OSError):
                        client.sock.send(client.kind.repeated)

    def close(self) -> None:
        for client in self.clients:
            client.sock.close()


def _is_closed(client: Client, event: int) -> bool:
    if not client.kind.reads:
        return bool(event & (select.POLLERR | select.POLLHUP))
    try:
        data = client.sock.recv(65_536)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    client.received += data
    return not data
