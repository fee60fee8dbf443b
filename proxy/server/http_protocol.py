"""A connection of a client: parse its bytes into requests, and end it at its deadlines and limits.

The protocol uses uvicorn's configuration (the application, the keep-alive timeout), its state
(connections, tasks, the ``date`` header) and, for an upgrade, its WebSocket protocol. Pipelined
requests run one after the other, and reading pauses while one waits.

A client may send nothing, send one byte at a time, declare a body and not send it, or not read its
response. Each case is a ``State`` with a timeout in ``SECONDS``; one timer serves all. Only
``ANSWER`` has none: the application works, and the client waits for it. A connection above the
limits (``connection_limits.py``) gets a 503 and is closed.
"""

import asyncio
import contextvars
import http
import logging
import re
import socket
import struct
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import lru_cache
from itertools import chain
from typing import Any, ClassVar, Final

import httptools
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl

from proxy.conf import conf
from proxy.metrics.connections import count_closed

from .connection_limits import connection_limits

log = logging.getLogger("uvicorn.error")  # uvicorn's own cycle logs there

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
PHRASES: Final = {status.value: status.phrase for status in http.HTTPStatus}
STATUS_LINE: Final = {
    status: f"HTTP/1.1 {status} {PHRASES.get(status, '')}\r\n".encode()
    for status in range(100, 600)
}
KNOWN_NAMES: Final = frozenset(
    {
        b"cache-control", b"content-length", b"content-type", b"date", b"request-id",
        b"x-accel-buffering", b"x-bridge-request-id",
    }
)  # fmt: skip
NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")  # RFC 9110, 5.6.2; ASGI requires lowercase
CONTROL: Final = bytes(byte for byte in (*range(32), 127) if byte != 9)
"""Control bytes except the tab. A CR or LF in a value would start another header."""
CLOSE: Final = b"connection: close\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
BODILESS: Final = frozenset({204, 304})  # status codes of responses without a body
ERROR_BODY: Final = b"Internal Server Error"
ERROR_HEADERS: Final = (
    (b"content-type", b"text/plain; charset=utf-8"),
    (b"content-length", b"%d" % len(ERROR_BODY)),
)
READ_AHEAD: Final = 64 * 1024
"""Bytes of a body that are buffered before the application reads it; then reading pauses."""
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
PROBES: Final = 2  # the first one makes a closed peer send RST, the second one detects that
PROBE_S: Final = 0.2
MIB: Final = 2**20
MIN_READ_RATE: Final = 256
"""Bytes per second that a client must read at least; every real client is faster."""


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


class State(Enum):
    HEAD = "head"  # the client has connected, or a part of a request head was received
    IDLE = "idle"  # response complete; the next request has not begun
    BODY = "body"  # the head was received, the body was not
    ANSWER = "answer"  # the application works
    WRITE = "write"  # the client does not read the response
    # The response is complete before the body; the rest of the body is read and dropped.
    DISCARD = "discard"
    LINGER = "linger"  # the last response is sent and the write side is shut down; input is dropped
    CLOSE = "close"  # the connection is closing, and some bytes are not sent yet


SECONDS: Final[Mapping[State, Callable[["HttpProtocol"], float]]] = {
    State.HEAD: lambda _: conf.head_timeout_s,
    State.IDLE: lambda connection: connection.config.timeout_keep_alive,
    State.BODY: lambda connection: (
        conf.body_timeout_s + conf.max_body_bytes / MIB + connection.body_grace_s
    ),
    State.WRITE: lambda _: conf.write_timeout_s,
    State.DISCARD: lambda connection: connection.discard_s,
    State.LINGER: lambda connection: connection.discard_s,
    State.CLOSE: lambda _: conf.write_timeout_s,
}
ENDING: Final = frozenset({State.LINGER, State.CLOSE})


class Cycle:
    """Pass a request to the application, and its response to the connection.

    It replaces uvicorn's cycle because it takes fewer steps: no wrapper coroutine around the
    application, no event for a body that is already received, one check of the response headers
    instead of two for each header. It also sends the response head in one packet with the first
    bytes of the body, and no chunks to HTTP/1.0 clients. Applications use ASGI only.
    """

    __slots__ = (
        "_body_ended", "_connection", "_method", "_pieces", "_unread", "bytes_left", "chunked",
        "disconnected", "event", "expects_continue", "head", "keep_alive", "more_body",
        "response_complete", "response_started",
    )  # fmt: skip

    def __init__(
        self, connection: "HttpProtocol", method: str, version: str, *, keep_alive: bool
    ) -> None:
        self._connection = connection
        self._method = method
        self._pieces: list[bytes] = []  # parts of the body that the application has not read
        self._unread = 0  # bytes in ``_pieces``
        self._body_ended = False  # the application has read the end of the body
        self.event: asyncio.Event | None = None  # ``receive`` waits for it
        self.more_body = True
        # Whether the client waits for 100 Continue before it sends the body.
        self.expects_continue = False
        self.disconnected = False
        self.keep_alive = keep_alive
        self.response_started = False
        self.response_complete = False
        self.head = b""  # response head; it is sent in one packet with the first bytes of the body
        self.chunked: bool | None = None  # None: not decided yet
        self.bytes_left: int | None = 0  # bytes still to send of a response with content-length
        if version == "1.0":  # HTTP/1.0 has no chunks: closing ends a response of unknown length
            self.chunked = False
            self.bytes_left = None

    # Application

    def start(self, app: Any, scope: Any) -> None:
        connection = self._connection
        context = contextvars.copy_context()
        task = connection.loop.create_task(app(scope, self.receive, self.send), context=context)
        connection.server_state.tasks.add(task)
        task.add_done_callback(self._task_ended, context=context)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        connection = self._connection
        connection.server_state.tasks.discard(task)
        try:
            error = task.exception()
        except asyncio.CancelledError as cancelled:  # a task does not return this exception
            error = cancelled
        if error is not None:
            log.error("Exception in ASGI application\n", exc_info=error)
        elif not self.response_complete and not self.disconnected:
            log.error("ASGI callable returned without completing response.")
        if not self.disconnected and (error is not None or not self.response_complete):
            if not self.response_started:
                self.keep_alive = False
                self._begin(500, ERROR_HEADERS)
                body = b"" if self._method == "HEAD" else ERROR_BODY
                connection.transport.write(self.head + body)
            connection.close()
        # Later calls of ``receive`` and ``send`` must see the end.
        self.disconnected = self.response_complete = True
        if self.event is not None:
            self.event.set()
        # Break the reference cycle with the connection: the garbage collector runs rarely.
        del self._connection

    # Request

    def body_received(self, body: bytes) -> None:
        self._pieces.append(body)
        self._unread += len(body)
        if self._unread > READ_AHEAD:
            self._connection.pause_reading()
        if self.event is not None:
            self.event.set()

    async def receive(self) -> dict[str, Any]:
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        if self.expects_continue:
            self.expects_continue = False
            if not self._connection.transport.is_closing():
                self._connection.transport.write(CONTINUE)
        self._connection.resume_reading()
        while not self._pieces and (self.more_body or self._body_ended):
            if self.event is None:
                self.event = asyncio.Event()
            self.event.clear()
            await self.event.wait()
            if self.disconnected or self.response_complete:
                return {"type": "http.disconnect"}
        self._body_ended = not self.more_body
        body, self._pieces = b"".join(self._pieces), []
        self._unread = 0
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    # Response

    async def send(self, message: dict[str, Any]) -> None:
        """Send an ASGI message. Raises RuntimeError if the application violates HTTP or ASGI."""
        while not self.disconnected and self._connection.writable is not None:
            await self._connection.writable.wait()  # the client reads too slowly
        if self.disconnected:
            return
        kind = message["type"]
        if not self.response_started and kind == "http.response.start":
            self._begin(message["status"], message.get("headers", ()))
        elif self.response_started and kind == "http.response.body":
            self._write_body(message.get("body", b""), more=message.get("more_body", False))
        else:
            raise RuntimeError(f"unexpected ASGI message {kind!r}")

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Build the response head and choose how the body ends: content-length, chunks or close.

        Raises RuntimeError for an invalid header.
        """
        lines = []
        for name, value in headers:
            if name not in KNOWN_NAMES:
                self._check_header(name, value)
            elif name == b"content-length" and self.chunked is None:
                self.chunked, self.bytes_left = False, int(value)
            lines.append(b"%b: %b\r\n" % (name, value))
        joined = b"".join(lines)
        if len(joined) - len(joined.translate(None, CONTROL)) != 2 * len(lines):
            raise RuntimeError("a header value contains control bytes")
        # The client may or may not send the body, so the connection must close.
        if self.expects_continue:
            self.expects_continue = self.keep_alive = False
        head = STATUS_LINE[status]
        for pair in self._connection.server_state.default_headers:
            head += b"%b: %b\r\n" % pair
        head += joined
        if not self.keep_alive and b"\r\n" + CLOSE not in head.lower():
            head += CLOSE
        if self.chunked is None and self._method != "HEAD" and status not in BODILESS:
            self.chunked = True
            head += b"transfer-encoding: chunked\r\n"
        self.head = head + b"\r\n"
        self.response_started = True

    def _write_body(self, body: bytes, *, more: bool) -> None:
        """Write a piece of the body. Raises RuntimeError as ``send`` does."""
        if self.response_complete:
            raise RuntimeError("the response is already complete")
        if self._method == "HEAD":
            body, self.bytes_left = b"", 0
        elif self.chunked:
            piece = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body = piece if more else piece + LAST_CHUNK
        elif self.bytes_left is not None:
            self.bytes_left -= len(body)
            if self.bytes_left < 0 or (self.bytes_left and not more):
                raise RuntimeError("the response is shorter or longer than its content-length")
        if self.head:
            body, self.head = self.head + body, b""
        self._connection.transport.write(body)
        if not more:
            self.response_complete = True
            if self.event is not None:
                self.event.set()
            self._connection.on_response_complete()

    def abort(self) -> None:
        """Stop this response: the client has disconnected, or must not get it."""
        if not self.response_complete:
            self.disconnected = True
        if self.event is not None:
            self.event.set()

    def _check_header(self, name: bytes, value: bytes) -> None:
        if not NAME.fullmatch(name):
            raise RuntimeError(f"{name!r} is not a header name")
        if name == b"transfer-encoding" and value.lower() == b"chunked":
            self.chunked = True
        elif name == b"connection" and b"close" in [
            token.strip() for token in value.lower().split(b",")
        ]:
            self.keep_alive = False


class HttpProtocol(asyncio.Protocol):
    """The protocol class for uvicorn: HTTP with timeouts, limits and half-closed connections."""

    __slots__ = (
        "_deadline", "_dropped", "_expects_continue", "_half_closed", "_head_bytes", "_headers",
        "_ignores_input", "_in_head", "_incoming", "_is_last", "_parser", "_pipeline",
        "_read_bytes", "_rejection_status", "_timer", "_unread", "_upgrade", "_url", "app",
        "app_state", "client", "config", "counted", "cycle", "http_version", "loop", "read_paused",
        "scheme", "server", "server_state", "state", "transport", "writable",
    )  # fmt: skip

    last_request_s: ClassVar = 1.0
    """Time for a request head on a connection that is idle at the shutdown, or becomes idle later.
    Its client may send one before it learns of the shutdown (RFC 9112, 9.5)."""
    discard_s: ClassVar = 5.0
    """Time for the rest of a body that is dropped, which is at most ``conf.max_body_bytes``."""
    body_grace_s: ClassVar = 5.0
    """Added to the application's own timeout, which then ends first with a more specific error."""

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        if not config.loaded:
            config.load()
        self.config: Any = config
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
        # set when the client reads again; None while it reads fast enough
        self.writable: asyncio.Event | None = None
        self._is_last = False  # the next request is the last one on this connection
        self.state = State.HEAD
        self._deadline = 0.0  # deadline of the current state, in the event loop's time
        self._timer: asyncio.TimerHandle | None = None
        self._dropped = 0  # bytes dropped in the current state
        self._ignores_input = False  # whether input is dropped, because a request was rejected
        self._unread = 0  # bytes in the write buffer at the last check
        self._half_closed = False
        self.counted: str | None = None  # the address in the connection limits; None: not counted

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
        address = self.client[0] if self.client else ""
        exceeded = connection_limits().acquire(address)
        if exceeded is None:
            self.counted = address
            self._enter(State.HEAD)
        else:
            count_closed(f"limit_{exceeded}", address)
            self._send_rejection(503)
            self.close()

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
        is_large = False
        if self._head_bytes or self._read_bytes > MAX_HEAD_BYTES:
            self._head_bytes = 0
            is_large = sum(map(len, chain.from_iterable(headers))) > MAX_HEAD_BYTES
        if len(headers) > MAX_HEADERS or is_large:
            self._rejection_status = 431
            raise BadRequestHead
        self._in_head = False
        self._headers = []  # trailers are counted and dropped: they must not become headers
        method = self._parser.get_method().decode("ascii")
        if self._parser.should_upgrade():
            self._upgrade = method, self._parser.get_http_version(), headers
        else:
            self._start_request(method, headers)

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

    def data_received(self, data: bytes) -> None:
        if self._ignores_input or self.state in ENDING:
            self._drop(len(data))
            return
        if self.state is State.DISCARD:
            self._drop(len(data))
        self.feed(data)
        self._update_state()

    def connection_lost(self, exc: Exception | None) -> None:
        for cycle in filter(None, (self.cycle, *(cycle for cycle, _ in self._pipeline))):
            cycle.abort()
        self.resume_writing()
        if self.counted is not None:
            connection_limits().release(self.counted)
        self._drop_references()

    def _drop_references(self) -> None:
        """Drop every reference, because the garbage collector runs rarely."""
        self.state = State.CLOSE
        self.server_state.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pipeline.clear()
        self._parser = self.cycle = self._incoming = None

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        cycle = self.cycle
        if cycle is None or self.state in ENDING or self.transport.is_closing():
            return
        if self.read_paused:
            self.resume_reading()
        if not cycle.keep_alive:
            if cycle.more_body or self._ignores_input:
                self._linger()
            else:
                self.close()
        elif self._pipeline:
            self.cycle, scope = self._pipeline.pop(0)
            self.cycle.start(self.app, scope)
        elif self._half_closed:
            self.close()
        elif self._is_last:  # the head of this response was sent before the shutdown
            self._await_last_request()
        self._update_state()

    # States and their deadlines

    def _update_state(self) -> None:
        """Enter the state that follows from what was received and sent."""
        if self.state in ENDING:
            return
        cycle = self.cycle
        if self.writable is not None:
            state = State.WRITE
        elif cycle is not None and not cycle.response_complete:
            state = State.BODY if cycle.more_body else State.ANSWER
        elif cycle is not None and cycle.more_body:
            state = State.DISCARD
        else:
            state = State.HEAD if self._in_head else State.IDLE
        if state is not self.state:
            self._enter(state)

    def _enter(self, state: State) -> None:
        """Enter a state. One timer serves all states; it moves only if the deadline is earlier."""
        self.state = state
        if state is State.ANSWER:
            return
        if state is State.DISCARD:
            self._dropped = 0
        self._deadline = self.loop.time() + SECONDS[state](self)
        if self._timer is None:
            self._timer = self.loop.call_at(self._deadline, self._check_deadline)
        elif self._timer.when() > self._deadline:
            self._timer.cancel()
            self._timer = self.loop.call_at(self._deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if self.state is State.ANSWER:
            return
        if self.loop.time() < self._deadline:
            self._timer = self.loop.call_at(self._deadline, self._check_deadline)
        elif self.state in {State.WRITE, State.CLOSE} and self._has_read():
            self._enter(self.state)
        else:
            self._expire()

    def _expire(self) -> None:
        state = self.state
        if state is not State.IDLE:
            count_closed(f"timeout_{state.value}", self.counted)
        if state in {State.HEAD, State.BODY}:
            self.reject(408)
        elif state is State.IDLE:
            self.close()
        else:
            self.reset()

    def close(self) -> None:
        """Close after the buffered bytes are sent."""
        self.transport.close()
        self._note_unread()
        self._enter(State.CLOSE)

    def reset(self) -> None:
        """Close and discard unsent bytes, which would wait for the client without end."""
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _linger(self) -> None:
        """Shut down the write side and drop input.

        Closing a connection with unread input would send a RST, and the client could lose the
        response.
        """
        self.resume_reading()
        if self._half_closed or not self.transport.can_write_eof():
            self.close()
            return
        self.transport.write_eof()
        self._dropped = 0
        self._enter(State.LINGER)

    def _drop(self, size: int) -> None:
        self._dropped += size
        if self._dropped > conf.max_body_bytes:
            count_closed("dropped_bytes", self.counted)
            self.reset()

    # Rejections

    def reject(self, status: int) -> None:
        """Send one of ``REJECTIONS`` and close.

        While earlier requests are running, the connection closes after them without this response,
        because a proxy that parses the bytes differently could give it to another client.
        """
        if self.state in ENDING or self.transport.is_closing():
            return
        cycle, incoming = self.cycle, self._incoming
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            self._ignores_input = True
            self._pipeline = [pair for pair in self._pipeline if not pair[0].more_body]
            last = self._pipeline[-1][0] if self._pipeline else cycle
            last.keep_alive = False
            return
        if incoming is not None and incoming.more_body:
            if incoming.response_started:
                self.close()
                return
            incoming.abort()
        self._send_rejection(status)
        if status == 408:
            self.close()
        else:
            count_closed(f"refused_{status}", self.counted)
            self._linger()

    def _send_rejection(self, status: int) -> None:
        reason, kind, message = REJECTIONS[status]
        body = b'{"type":"error","error":{"type":"%b","message":"%b"}}' % (kind, message)
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%b" % (status, reason, len(body), body)
        )

    # Shutdown of the process

    def shutdown(self) -> None:
        """End the connection after a response with ``connection: close``.

        That is the response to the request that runs or waits, or to the next one if none does, or
        if a response has begun without that header.
        """
        if self.state is State.LINGER:
            self.close()
        elif not self._is_last:
            self._is_last = True
            last = self._pipeline[-1][0] if self._pipeline else self.cycle
            if last is None or last.response_complete:
                self._await_last_request()
            elif not last.response_started:
                last.keep_alive = False

    def _await_last_request(self) -> None:
        self.loop.call_later(self.last_request_s, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self.state in {State.HEAD, State.IDLE, State.DISCARD}:
            self.close()

    # Slow readers

    def pause_writing(self) -> None:
        """Start the write timeout: the client must read within ``conf.write_timeout_s``."""
        if self.writable is None:
            self.writable = asyncio.Event()
        self._note_unread()
        self._update_state()

    def resume_writing(self) -> None:
        if self.writable is not None:
            self.writable.set()
            self.writable = None
        self._update_state()

    def _note_unread(self) -> None:
        self._unread = self.transport.get_write_buffer_size()

    def _has_read(self) -> bool:
        """Return whether the client has read enough since the last check."""
        unread, taken = self._unread, self._unread - self.transport.get_write_buffer_size()
        self._note_unread()
        return bool(taken >= min(unread, MIN_READ_RATE * conf.write_timeout_s) > 0)

    # Half-closed connections

    def eof_received(self) -> Any:
        """Find out whether the client has disconnected or only shut down its write side.

        Both look the same until the gateway sends something, which a closed peer answers with RST.
        So harmless bytes are sent twice. Return True to keep the connection open for writing.
        """
        if self.state in ENDING or self._probe() is None:
            self.close()
            return None
        self._half_closed = True
        self._send_probe(PROBES)
        return True

    def _probe(self) -> bytes | None:
        """Return harmless bytes: 100 Continue before the response, a zero between two chunks.

        The zero is a leading zero of the next chunk's size. The result is empty while pipelined
        requests wait, because an earlier response is still being sent. It is None if no bytes are
        harmless.
        """
        if self._pipeline:
            return b""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            return None
        if cycle.head or not cycle.response_started:
            return CONTINUE if self.http_version == "1.1" else None
        return b"0" if cycle.chunked else None

    def _send_probe(self, left: int) -> None:
        probe = self._probe()
        if probe is None or not left or self.transport.is_closing():
            return
        self.transport.write(probe)
        self.loop.call_later(PROBE_S, self._send_probe, left - 1)

    # WebSockets

    def _open_websocket(self, head: bytes) -> None:
        """Hand the connection to uvicorn's WebSocket protocol, which parses the head again.

        uvicorn sends nothing for an invalid handshake, so this method rejects it. A valid
        handshake must complete within the timeout for a head.
        """
        websocket = self.config.ws_protocol_class(
            config=self.config, server_state=self.server_state, app_state=self.app_state
        )
        websocket.connection_made(self.transport)
        websocket.data_received(head)
        if not websocket.handshake_initiated:
            self.server_state.connections.discard(websocket)
            self.reject(400)
            return
        websocket.guard(self.counted)
        self._drop_references()
        self.transport.set_protocol(websocket)


def _encode_head(
    method: str, url: bytes, version: str, headers: list[tuple[bytes, bytes]]
) -> bytes:
    lines = [b"%b %b HTTP/%b" % (method.encode(), url, version.encode())]
    lines += [b"%b: %b" % pair for pair in headers]
    return b"\r\n".join([*lines, b"", b""])
