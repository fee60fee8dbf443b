"""Clients that hold connections: each kind sends a few bytes, and then waits to be let go."""

import contextlib
import select
import socket
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from . import wire

DRIP_EVERY_S = 0.25
PAGE = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
LARGE = b"GET /static/unfold/css/styles.css HTTP/1.1\r\nhost: localhost\r\n\r\n"
WRONG = "sk-br-wrong"


class Kind(NamedTuple):
    """What such a client sends, then again and again, and whether it reads and shuts its side.

    ``drips_late``: it sends its drip only when an answer has begun to arrive.
    """

    first: bytes
    drip: bytes = b""
    reads: bool = True
    shuts: bool = False
    drips_late: bool = False


def head(target: str, *lines: str, method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/1.1", "host: localhost", *lines, "", ""]).encode()


def upgrade(target: str, *lines: str, to: str = "websocket") -> bytes:
    handshake = ("sec-websocket-version: 13", "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==")
    return head(
        target, "connection: upgrade", f"upgrade: {to}", *handshake, *lines, method="GET"
    )  # fmt: skip


def kinds(key: str) -> dict[str, Kind]:
    def post(*lines: str, by: str = key, body: bytes = b"") -> bytes:
        return wire.post(by, body, *lines)

    return {
        "silent": Kind(b""),
        "only line ends": Kind(b"\r\n", drip=b"\r\n"),
        "half a head": Kind(b"POST /v1/messages HTTP/1.1\r\nx-slow: "),
        "a head that trickles": Kind(b"POST /v1/messages HTTP/1.1\r\nx-slow: ", drip=b"y"),
        "idle after an answer": Kind(PAGE),
        "a line end after an answer": Kind(PAGE + b"\r"),
        "line ends after an answer": Kind(PAGE, drip=b"\r\n", drips_late=True),
        "a byte of a head after an answer": Kind(PAGE + b"G"),
        "a head that trickles after an answer": Kind(PAGE + b"GET /", drip=b"a"),
        "a byte that begins no head": Kind(PAGE + b"\x00"),
        "a byte that begins no head, after the answer": Kind(PAGE, drip=b"\x00", drips_late=True),
        "401, its body never comes": Kind(post("content-length: 1000", by=WRONG)),
        "401, its body trickles": Kind(post("content-length: 1000", by=WRONG), drip=b"x"),
        "401, its chunks trickle": Kind(
            post("transfer-encoding: chunked", by=WRONG), drip=b"1\r\nx\r\n"
        ),
        "401 and Expect": Kind(post("content-length: 1000", "expect: 100-continue", by=WRONG)),
        "404, its body never comes": Kind(head("/v1/nowhere", "content-length: 1000")),
        "405, its body never comes": Kind(
            head("/v1/messages", "content-length: 1000", method="PUT")
        ),
        "413, its body never comes": Kind(post("content-length: 99999999")),
        "413, its body trickles": Kind(post("content-length: 99999999"), drip=b"x"),
        "a body that never comes": Kind(post("content-length: 1000", body=b"{")),
        "a body that trickles": Kind(post("content-length: 1000", body=b"{"), drip=b" "),
        "Expect, and no body": Kind(post("content-length: 1000", "expect: 100-continue")),
        "a form that never comes": Kind(head("/admin/login/", "content-length: 1000")),
        "a form that trickles": Kind(head("/admin/login/", "content-length: 1000"), drip=b"x"),
        "a WebSocket with a length": Kind(upgrade("/ws/live/", "content-length: 1000")),
        "a WebSocket with chunks": Kind(upgrade("/ws/live/", "transfer-encoding: chunked")),
        "a WebSocket without a session": Kind(upgrade("/ws/live/")),
        "a WebSocket without a session that sends frames": Kind(
            upgrade("/ws/live/") + b"\xff" * 9, drip=b"\xff" * 9
        ),
        "a WebSocket elsewhere": Kind(upgrade("/v1/messages")),
        "a WebSocket with a long line": Kind(upgrade("/ws/live/", f"x-long: {'y' * 9_000}")),
        "a WebSocket of no version": Kind(
            head("/ws/live/", "connection: upgrade", "upgrade: websocket", method="GET")
        ),
        "an upgrade to h2c": Kind(upgrade("/healthz", to="h2c"), drip=b"\r\n"),
        "an upgrade to h2c with a length": Kind(
            upgrade("/healthz", "content-length: 1000", to="h2c")
        ),
        "CONNECT": Kind(head("evil:443", method="CONNECT")),
        "a bad chunk": Kind(post("transfer-encoding: chunked", body=b"no\r\n")),
        "Connection: close": Kind(head("/healthz", "connection: close", method="GET")),
        "HTTP/1.0": Kind(b"GET /healthz HTTP/1.0\r\n\r\n"),
        "half-closed": Kind(PAGE, shuts=True),
        "half-closed in its body": Kind(post("content-length: 1000", body=b"{"), shuts=True),
        "reads no answer": Kind(LARGE * 12, reads=False),
        "reads no answer and sends more": Kind(LARGE * 12, drip=b"\r\n", reads=False),
        "reads no last answer": Kind(
            LARGE * 11 + LARGE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"), reads=False
        ),
        "pipelines without end": Kind(PAGE * 200, drip=PAGE),
    }


@dataclass
class Client:
    """One connection of a kind."""

    kind: Kind
    sock: socket.socket
    received: bytearray = field(default_factory=bytearray)
    held_s: float | None = None  # until the gateway closed it


class Crowd:
    """Many clients. ``close`` it: they leave."""

    def __init__(self) -> None:
        self.clients: list[Client] = []

    @property
    def held(self) -> list[Client]:
        """Those that the gateway has not closed."""
        return [client for client in self.clients if client.held_s is None]

    def connect(self, port: int, address: str, kind: Kind) -> Client:
        """Connect from this address of loopback and send the first bytes, as far as they go."""
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
            if kind.shuts:
                sock.shutdown(socket.SHUT_WR)
        return client

    def wait_until_closed(self, within_s: float, *, but: int = 0) -> None:
        """Drip, read, and note when the gateway closes each; ``but`` so many may be left."""
        began, dripped = time.monotonic(), 0.0
        waiting = {client.sock.fileno(): client for client in self.held}
        poll = select.poll()
        for number, client in waiting.items():
            poll.register(number, select.POLLIN if client.kind.reads else 0)
        while len(waiting) > but and (now := time.monotonic()) < began + within_s:
            for number, event in poll.poll(50):
                if _is_closed(waiting[number], event):
                    waiting.pop(number).held_s = now - began
                    poll.unregister(number)
            if now - dripped > DRIP_EVERY_S:
                dripped = now
                for client in waiting.values():
                    if client.kind.drips_late and not client.received:
                        continue
                    with contextlib.suppress(OSError):
                        client.sock.send(client.kind.drip)

    def close(self) -> None:
        for client in self.clients:
            client.sock.close()


def _is_closed(client: Client, event: int) -> bool:
    if not client.kind.reads:
        return bool(event & (select.POLLERR | select.POLLHUP))
    try:
        piece = client.sock.recv(65_536)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    client.received += piece
    return not piece
