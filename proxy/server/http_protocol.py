"""Parse the bytes of a connection into requests (cycles), and reject invalid ones.

The protocol uses uvicorn's configuration (the application, the keep-alive timeout), its state
(connections, tasks, the ``date`` header) and, for an upgrade, its WebSocket protocol. Pipelined
requests run one after the other, and reading pauses while one waits.
"""

import asyncio
import urllib.parse
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import httptools
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl

from .http_cycle import Cycle

ASGI_VERSION: Final = {"version": "3.0", "spec_version": "2.3"}
KNOWN_HEADER_NAMES: Final = {
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
"""Header names that clients send, in both spellings: open streams share one object for each."""
MAX_HEADERS: Final = 100
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_PIPELINED: Final = 16
"""Maximum of requests that wait behind the running one. Usual clients send one at a time."""
REJECTIONS: Final = {
    400: (b"Bad Request", b"invalid_request_error", b"this is not a valid HTTP request"),
    408: (b"Request Timeout", b"timeout_error", b"the request did not arrive in time"),
    431: (
        b"Request Header Fields Too Large",
        b"request_too_large",
        b"more than %d headers, or more than %d bytes of headers" % (MAX_HEADERS, MAX_HEAD_BYTES),
    ),
    503: (b"Service Unavailable", b"overloaded_error", b"too many connections; try again later"),
}


class BadRequestHead(Exception):
    """Stops the parser; ``_rejection_status`` is the status to send."""


def parse_target(url: bytes) -> tuple[str, bytes, bytes]:
    """Return the decoded path, the raw path and the query. Raises HttpParserError."""
    target = httptools.parse_url(url)
    path = target.path.decode("ascii")
    if "%" in path:
        path = urllib.parse.unquote(path)
    return path, target.path, target.query or b""


parse_short_target: Final = lru_cache(maxsize=256)(parse_target)  # 0.1 µs instead of 0.5


class HttpProtocol(asyncio.Protocol):
    """The request side of a client connection; ``http_timeouts.py`` adds timeouts and limits."""

    __slots__ = (
        "_expects_continue", "_head_bytes", "_headers", "_in_head", "_incoming", "_is_last",
        "_parser", "_pipeline", "_read_bytes", "_rejection_status", "_upgrade", "_url", "app",
        "app_state", "client", "config", "cycle", "http_version", "loop", "read_paused", "scheme",
        "server", "server_state", "transport", "writable",
    )  # fmt: skip

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        if not config.loaded:
            config.load()
        self.config = config
        # Call the HTTP application directly: Channels' protocol router would add a coroutine.
        routed = getattr(config.loaded_app, "application_mapping", {})
        self.app = routed.get("http", config.loaded_app)
        self.app_state = app_state
        self.server_state = server_state
        self.loop = _loop or asyncio.get_running_loop()
        self._parser: Any = self._new_parser()
        self.cycle: Cycle | None = None  # the running request, or the last one
        self._incoming: Cycle | None = None  # the request that was received last
        self._pipeline: list[tuple[Cycle, Any]] = []  # waiting requests with their scopes
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._upgrade: Any = None  # method, version and headers of an upgrade request
        self._in_head = True  # whether the parser is inside a request head, or before the first one
        self._head_bytes = 0  # bytes of the head, or since the last byte of a body
        self._read_bytes = 0  # bytes in the current read
        self._rejection_status = 400
        self._expects_continue = False  # the client expects 100 Continue
        self.read_paused = False
        self.writable: asyncio.Event | None = None  # set when the client reads again
        self._is_last = False  # the next request is the last one on this connection

    def _new_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        # A client may send more after ``connection: close``; it still gets the first response.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def connection_made(self, transport: Any) -> None:
        self.server_state.connections.add(self)
        self.transport = transport
        self.server = get_local_addr(transport)
        self.client = get_remote_addr(transport)
        self.scheme = "https" if is_ssl(transport) else "http"

    def feed(self, data: bytes) -> None:
        """Parse received bytes. Too large a head or trailers are rejected before their end."""
        self._read_bytes = len(data)
        self._head_bytes += self._read_bytes
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._handle_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            self.reject(self._rejection_status)
            return
        if self._head_bytes > MAX_HEAD_BYTES:
            if self._in_head:
                self.reject(431)
            elif self._incoming is not None and self._incoming.more_body:
                # The client sent 64 KiB of trailers or chunk extensions without a body byte.
                self.reject(400)

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        self._url = b""
        self._headers = []
        self._expects_continue = False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header. The parser rejects control bytes.

        Names with an underscore are dropped: an application could take ``x_api_key`` for
        ``x-api-key``.
        """
        if name in KNOWN_HEADER_NAMES:
            self._headers.append((KNOWN_HEADER_NAMES[name], value))
        elif b"_" not in name:
            name = name.lower()
            self._headers.append((name, value))
            if name == b"expect" and value.lower() == b"100-continue":
                self._expects_continue = True

    def on_headers_complete(self) -> None:
        headers = self._headers
        # A head that arrived within one small read cannot be too large.
        large = self._head_bytes or self._read_bytes > MAX_HEAD_BYTES
        if len(headers) > MAX_HEADERS or (large and self._too_large(headers)):
            self._rejection_status = 431
            raise BadRequestHead
        self._in_head = False
        self._headers = []  # trailers are counted and dropped: they must not become headers
        method = self._parser.get_method().decode("ascii")
        if self._parser.should_upgrade():
            self._upgrade = method, self._parser.get_http_version(), headers
        else:
            self._start_request(method, headers)

    def _too_large(self, headers: list[tuple[bytes, bytes]]) -> bool:
        self._head_bytes = 0
        return sum(map(len, chain.from_iterable(headers))) > MAX_HEAD_BYTES

    def _start_request(self, method: str, headers: list[tuple[bytes, bytes]]) -> None:
        """Start the request, or queue it behind the running one."""
        version = self.http_version = self._parser.get_http_version()
        parse = parse_short_target if len(self._url) < 256 else parse_target
        path, raw_path, query = parse(self._url)
        keep_alive = not self._is_last and version != "1.0" and self._parser.should_keep_alive()
        cycle = Cycle(self, method, version, keep_alive=keep_alive)
        cycle.expects_continue = self._expects_continue
        scope = {
            "type": "http",
            "asgi": ASGI_VERSION,
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
        }
        if self.cycle is None or self.cycle.response_complete:
            self.cycle = self._incoming = cycle
            cycle.start(self.app, scope)
        elif len(self._pipeline) < MAX_PIPELINED:
            self._incoming = cycle
            self.pause_reading()
            self._pipeline.append((cycle, scope))
        else:
            raise BadRequestHead

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        cycle = self._incoming
        if cycle is not None and not cycle.response_complete:
            cycle.body_received(body)

    def on_message_complete(self) -> None:
        if self._headers and len(self._headers) > MAX_HEADERS:  # these headers are trailers
            raise BadRequestHead
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

    # Upgrades and rejections

    def _wants_websocket(self, headers: list[tuple[bytes, bytes]]) -> bool:
        """Return whether this is a WebSocket handshake. It has no body (RFC 6455, 4.1)."""
        by_name = dict(headers)
        tokens = [token.strip() for token in by_name.get(b"connection", b"").lower().split(b",")]
        return (
            b"upgrade" in tokens
            and by_name.get(b"upgrade", b"").lower() == b"websocket"
            and by_name.get(b"content-length", b"0") == b"0"
            and b"transfer-encoding" not in by_name
            and self.config.ws_protocol_class is not None
        )

    def _handle_upgrade(self, rest: bytes) -> None:
        """Hand the connection over to uvicorn's WebSocket protocol, or ignore the upgrade.

        A server may ignore an upgrade and respond in HTTP/1.1 (RFC 9110, 7.8). The parser has
        stopped before the body and would parse the body as the next request. So a new parser
        reads the head again, without the upgrade header.
        """
        (method, version, headers), self._upgrade = self._upgrade, None
        busy = self.cycle is not None and not self.cycle.response_complete
        wants_websocket = method == "GET" and version == "1.1" and self._wants_websocket(headers)
        if method == "CONNECT" or (wants_websocket and busy):
            self.reject(400)
        elif wants_websocket:
            self._open_websocket(_encode_head(method, self._url, version, headers))
        else:
            self._parser = self._new_parser()
            without_upgrade = [pair for pair in headers if pair[0] != b"upgrade"]
            self.feed(_encode_head(method, self._url, version, without_upgrade) + rest)

    # Implemented by ``http_timeouts.py``

    def _open_websocket(self, head: bytes) -> None:
        raise NotImplementedError

    def reject(self, status: int) -> None:
        """Send one of ``REJECTIONS`` and close."""
        raise NotImplementedError

    def on_response_complete(self) -> None:
        """Start the next request of the pipeline, or close."""
        raise NotImplementedError

    def close(self) -> None:
        """Close after the buffered bytes are sent."""
        raise NotImplementedError


def _encode_head(
    method: str, url: bytes, version: str, headers: list[tuple[bytes, bytes]]
) -> bytes:
    lines = [b"%b %b HTTP/%b" % (method.encode(), url, version.encode())]
    lines += [b"%b: %b" % pair for pair in headers]
    return b"\r\n".join([*lines, b"", b""])
