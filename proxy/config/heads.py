"""Requests as they arrive: bytes of a connection -> cycles, and what is refused on the way.

Of uvicorn this uses what it gives to every protocol: its configuration (the application, how long
a connection may rest), its state (connections, tasks, the ``date`` of answers) and, for an upgrade,
its WebSocket. Pipelined requests wait for their turn, and nothing more is read meanwhile.
"""

import asyncio
import urllib.parse
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import httptools
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl

from .cycles import Cycle

ASGI: Final = {"version": "3.0", "spec_version": "2.3"}
NAMES: Final = {
    spelled.encode(): name.encode()
    for name in (
        "accept", "accept-encoding", "accept-language", "anthropic-beta", "connection",
        "anthropic-dangerous-direct-browser-access", "anthropic-version", "authorization",
        "content-encoding", "content-length", "content-type", "host", "idempotency-key",
        "sec-fetch-mode", "traceparent", "transfer-encoding", "user-agent", "x-api-key", "x-app",
        "x-bridge-events", "x-bridge-strict", "x-claude-code-session-id", "x-forwarded-for",
        "x-forwarded-proto", "x-gateway-tags", "x-stainless-arch", "x-stainless-async",
        "x-stainless-helper-method", "x-stainless-lang", "x-stainless-os",
        "x-stainless-package-version", "x-stainless-read-timeout", "x-stainless-retry-count",
        "x-stainless-runtime", "x-stainless-runtime-version", "x-stainless-timeout",
    )
    for spelled in (name, name.title())
}  # fmt: skip
"""What clients of ours send, however they spell it: one object for all open streams."""
MOST_HEADERS: Final = 100
MOST_HEAD_BYTES: Final = 64 * 1024
MOST_PIPELINED: Final = 16
"""Requests that may wait behind the one that is answered; clients send one at a time."""
REFUSED: Final = {
    400: (b"Bad Request", b"invalid_request_error", b"this is not a sound HTTP request"),
    408: (b"Request Timeout", b"timeout_error", b"the request did not arrive in time"),
    431: (
        b"Request Header Fields Too Large",
        b"request_too_large",
        b"the headers are more than %d, or larger than %d bytes" % (MOST_HEADERS, MOST_HEAD_BYTES),
    ),
    503: (b"Service Unavailable", b"overloaded_error", b"too many connections; try again later"),
}


class BadHead(Exception):
    """Ends the parsing; the connection knows what to answer."""


def parse_target(url: bytes) -> tuple[str, bytes, bytes]:
    """Path, the same as it came, and query. Raises an HttpParserError."""
    target = httptools.parse_url(url)
    path = target.path.decode("ascii")
    if "%" in path:
        path = urllib.parse.unquote(path)
    return path, target.path, target.query or b""


target_of: Final = lru_cache(maxsize=256)(parse_target)  # for short ones: 0.1 µs, where it was 0.5


class HeadReader(asyncio.Protocol):
    """A client's connection, as far as its requests go."""

    __slots__ = (
        "_continues", "_head_bytes", "_headers", "_in_head", "_incoming", "_last", "_parser",
        "_pipeline", "_read_bytes", "_refused_with", "_upgrade", "_url", "app", "app_state",
        "client", "config", "cycle", "http_version", "loop", "read_paused", "scheme", "server",
        "server_state", "transport",
    )  # fmt: skip

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        if not config.loaded:
            config.load()
        self.config = config
        # Channels' router by protocol is one more coroutine to resume at each wake-up.
        routed = getattr(config.loaded_app, "application_mapping", {})
        self.app = routed.get("http", config.loaded_app)
        self.app_state = app_state
        self.server_state = server_state
        self.loop = _loop or asyncio.get_running_loop()
        self._parser: Any = self._new_parser()
        self.cycle: Cycle | None = None  # of the request that is being answered, or was last
        self._incoming: Cycle | None = None  # of the request that came last
        self._pipeline: list[tuple[Cycle, Any]] = []  # requests that wait, with their scopes
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._upgrade: Any = None  # method, version, headers of a request for another protocol
        self._in_head = True  # within a head, or before the first one
        self._head_bytes = 0  # of it, or since the body's last byte, in reads after the first
        self._read_bytes = 0  # in this read
        self._refused_with = 400
        self._continues = False  # the client wants to be told that it may send its body
        self.read_paused = False
        self._last = False  # the next request is the last one here

    def _new_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        # A client that says ``connection: close`` and sends more gets the answer to the first.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def connection_made(self, transport: Any) -> None:
        self.server_state.connections.add(self)
        self.transport = transport
        self.server = get_local_addr(transport)
        self.client = get_remote_addr(transport)
        self.scheme = "https" if is_ssl(transport) else "http"

    def feed(self, data: bytes) -> None:
        """A head that goes on and on is refused before it is whole; and so are trailers."""
        self._read_bytes = len(data)
        self._head_bytes += self._read_bytes
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgraded(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            self.refuse(self._refused_with)
            return
        if self._head_bytes > MOST_HEAD_BYTES:
            if self._in_head:
                self.refuse(431)
            elif self._incoming is not None and self._incoming.more_body:
                self.refuse(400)  # no byte of a body in all that

    # What the parser calls

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        self._url = b""
        self._headers = []
        self._continues = False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A name with an underscore could pass for another. The parser refuses control bytes."""
        if name in NAMES:
            self._headers.append((NAMES[name], value))
        elif b"_" not in name:
            name = name.lower()
            self._headers.append((name, value))
            if name == b"expect" and value.lower() == b"100-continue":
                self._continues = True

    def on_headers_complete(self) -> None:
        headers = self._headers
        # What came in one small read cannot be too large.
        large = self._head_bytes or self._read_bytes > MOST_HEAD_BYTES
        if len(headers) > MOST_HEADERS or (large and self._too_large(headers)):
            self._refused_with = 431
            raise BadHead
        self._in_head = False
        self._headers = []  # for trailers, which nobody reads: they could pass for headers
        method = self._parser.get_method().decode("ascii")
        if self._parser.should_upgrade():
            self._upgrade = method, self._parser.get_http_version(), headers
        else:
            self._ask(method, headers)

    def _too_large(self, headers: list[tuple[bytes, bytes]]) -> bool:
        self._head_bytes = 0
        return sum(map(len, chain.from_iterable(headers))) > MOST_HEAD_BYTES

    def _ask(self, method: str, headers: list[tuple[bytes, bytes]]) -> None:
        """Let the application answer, or make the request wait for its turn."""
        version = self.http_version = self._parser.get_http_version()
        path, raw_path, query = (target_of if len(self._url) < 256 else parse_target)(self._url)
        keep_alive = not self._last and version != "1.0" and self._parser.should_keep_alive()
        # Each of us is a guarded one.
        cycle = Cycle(self, method, version, keep_alive=keep_alive)  # type: ignore[arg-type]
        cycle.continues = self._continues
        scope = {
            "type": "http",
            "asgi": ASGI,
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": method,
            "root_path": "",
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": headers,
            "extensions": {"bridge": cycle},
        }
        if self.cycle is None or self.cycle.response_complete:
            self.cycle = self._incoming = cycle
            cycle.start(self.app, scope)
        elif len(self._pipeline) < MOST_PIPELINED:
            self._incoming = cycle
            self.pause_reading()
            self._pipeline.append((cycle, scope))
        else:
            raise BadHead

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        cycle = self._incoming
        if cycle is not None and not cycle.response_complete:
            cycle.heard(body)

    def on_message_complete(self) -> None:
        if self._headers and len(self._headers) > MOST_HEADERS:  # trailers
            raise BadHead
        cycle = self._incoming
        if self._upgrade is None and cycle is not None:
            cycle.more_body = False
            if cycle.event is not None:
                cycle.event.set()

    # Reading

    def pause_reading(self) -> None:
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()

    # What is no request for the application

    def _wants_websocket(self, headers: list[tuple[bytes, bytes]]) -> bool:
        """A request with a body is no WebSocket handshake (RFC 6455, 4.1)."""
        named = dict(headers)
        tokens = [token.strip() for token in named.get(b"connection", b"").lower().split(b",")]
        return (
            b"upgrade" in tokens
            and named.get(b"upgrade", b"").lower() == b"websocket"
            and named.get(b"content-length", b"0") == b"0"
            and b"transfer-encoding" not in named
            and self.config.ws_protocol_class is not None
        )

    def _upgraded(self, rest: bytes) -> None:
        """Hand the connection over to uvicorn's WebSocket, or ignore the upgrade.

        The server may ignore it and answer in HTTP/1.1 (RFC 9110, 7.8). The parser has skipped the
        body by then and would take it for the next request: another parser reads the head again,
        without the upgrade.
        """
        (method, version, headers), self._upgrade = self._upgrade, None
        busy = self.cycle is not None and not self.cycle.response_complete
        wants_websocket = method == "GET" and version == "1.1" and self._wants_websocket(headers)
        if method == "CONNECT" or (wants_websocket and busy):
            self.refuse(400)
        elif wants_websocket:
            self._open_websocket(_head_of(method, self._url, version, headers))
        else:
            self._parser = self._new_parser()
            plain = [pair for pair in headers if pair[0] != b"upgrade"]
            self.feed(_head_of(method, self._url, version, plain) + rest)

    def _open_websocket(self, head: bytes) -> None:
        raise NotImplementedError

    def refuse(self, status: int) -> None:
        """Answer one of ``REFUSED`` and close."""
        raise NotImplementedError


def _head_of(method: str, url: bytes, version: str, headers: list[tuple[bytes, bytes]]) -> bytes:
    lines = [b"%b %b HTTP/%b" % (method.encode(), url, version.encode())]
    lines += [b"%b: %b" % pair for pair in headers]
    return b"\r\n".join([*lines, b"", b""])
