"""Requests as they arrive: bytes of a connection -> cycles, and what is refused on the way.

Of uvicorn this uses what it gives to every protocol: its configuration (the application, how long
a connection may rest), its state (connections, tasks, the ``date`` of answers) and, for an upgrade,
its WebSocket. Pipelined requests wait for their turn, and nothing more is read meanwhile.
"""

import asyncio
import logging
import urllib.parse
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import httptools
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl

from proxy.conf import conf

from .cycles import Cycle

log = logging.getLogger("uvicorn.error")

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
REFUSED: Final = {
    400: (b"Bad Request", b"invalid_request_error", b"this is not a sound HTTP request"),
    408: (b"Request Timeout", b"timeout_error", b"the request headers did not arrive in time"),
    431: (
        b"Request Header Fields Too Large",
        b"request_too_large",
        b"the headers are more than %d, or larger than %d bytes" % (MOST_HEADERS, MOST_HEAD_BYTES),
    ),
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
        "_continues", "_head_bytes", "_head_timer", "_headers", "_in_head", "_last", "_parser",
        "_pipeline", "_read_bytes", "_reader_timer", "_refused_with", "_rest_timer",
        "_rests_since", "_upgrade", "_url", "app", "app_state", "client", "config", "cycle",
        "http_version", "loop", "read_paused", "scheme", "server", "server_state", "transport",
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
        self._parser: Any = httptools.HttpRequestParser(self)
        # A client that says ``connection: close`` and sends more gets the answer to the first.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.cycle: Cycle | None = None  # of the request that came last
        self._pipeline: list[tuple[Cycle, Any]] = []  # with their scopes
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._upgrade: Any = None  # method and headers of a request for a WebSocket
        self._in_head = True  # within a head, or before the first one
        self._head_bytes = 0  # of it, or since the body's last byte, in reads after the first
        self._read_bytes = 0  # in this read
        self._head_timer: asyncio.TimerHandle | None = None
        self._refused_with = 400
        self._continues = False  # the client wants to be told that it may send its body
        self.read_paused = False
        self._last = False  # the next request is the last one here
        self._rest_timer: asyncio.TimerHandle | None = None
        self._rests_since: float | None = None  # nothing is asked; the event loop's time
        self._reader_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        self.server_state.connections.add(self)
        self.transport = transport
        self.server = get_local_addr(transport)
        self.client = get_remote_addr(transport)
        self.scheme = "https" if is_ssl(transport) else "http"
        self._time_head()

    def data_received(self, data: bytes) -> None:
        """A head that goes on and on is refused before it is whole; and so are trailers."""
        self._rests_since = None
        self._read_bytes = len(data)
        self._head_bytes += self._read_bytes
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._upgraded()
            return
        except httptools.HttpParserError:
            log.warning("Invalid HTTP request received.")
            self._unsound()
            return
        if self._in_head:
            if self._head_bytes > MOST_HEAD_BYTES:
                self._refuse(431)
            elif self._head_timer is None:
                self._time_head()
        elif self._head_bytes > MOST_HEAD_BYTES and self.cycle is not None and self.cycle.more_body:
            self._unsound()  # no byte of a body in all that

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
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        method = self._parser.get_method().decode("ascii")
        if self._parser.should_upgrade() and self._wants_websocket(headers):
            self._upgrade = method, headers
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
        before, self.cycle = self.cycle, cycle
        if before is None or before.response_complete:
            cycle.start(self.app, scope)
        else:
            self.pause_reading()
            self._pipeline.append((cycle, scope))

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        cycle = self.cycle
        if self._upgrade is None and cycle is not None and not cycle.response_complete:
            cycle.heard(body)

    def on_message_complete(self) -> None:
        if self._headers and len(self._headers) > MOST_HEADERS:  # trailers
            raise BadHead
        cycle = self.cycle
        if self._upgrade is None and cycle is not None and not cycle.response_complete:
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
        said = dict(headers)
        tokens = [token.strip() for token in said.get(b"connection", b"").lower().split(b",")]
        websocket = b"upgrade" in tokens and said.get(b"upgrade", b"").lower() == b"websocket"
        return websocket and self.config.ws_protocol_class is not None

    def _upgraded(self) -> None:
        """The connection becomes uvicorn's WebSocket, which reads the head anew."""
        if self._upgrade is None:
            log.warning("Unsupported upgrade request.")
            return
        method, headers = self._upgrade
        self._ended()
        lines = [b"%b %b HTTP/1.1" % (method.encode(), self._url)]
        lines += [b"%b: %b" % pair for pair in headers]
        websocket = self.config.ws_protocol_class(
            config=self.config, server_state=self.server_state, app_state=self.app_state
        )
        websocket.connection_made(self.transport)
        websocket.data_received(b"\r\n".join([*lines, b"", b""]))
        self.transport.set_protocol(websocket)

    def _time_head(self) -> None:
        self._head_timer = self.loop.call_later(conf.head_timeout_s, self._give_up)

    def _give_up(self) -> None:
        self._head_timer = None
        self._refuse(408)

    def _unsound(self) -> None:
        """The parser's verdict; within an answer it would be taken for a part of it."""
        if self.cycle is not None and not self.cycle.response_complete and not self._in_head:
            self.transport.close()
        else:
            self._refuse(self._refused_with)

    def _refuse(self, status: int) -> None:
        if self.transport.is_closing():
            return
        reason, kind, told = REFUSED[status]
        body = b'{"type":"error","error":{"type":"%b","message":"%b"}}' % (kind, told)
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%b" % (status, reason, len(body), body)
        )
        self.transport.close()

    def _ended(self) -> None:
        """Nothing is read here any more; what knows us lets us go."""
        self.server_state.connections.discard(self)
        for timer in (self._head_timer, self._rest_timer, self._reader_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._rest_timer = self._reader_timer = None
        self._pipeline.clear()
        self._parser = self.cycle = None
