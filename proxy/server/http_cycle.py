"""One request and its response on a client's connection, which uvicorn calls a cycle.

It replaces uvicorn's cycle because it takes fewer steps: no wrapper coroutine around the
application, no event for a body that is already received, one check of the response headers
instead of two for each header. It also sends the response head in one packet with the first bytes
of the body, and no chunks to HTTP/1.0 clients. Applications use ASGI only.
"""

import asyncio
import contextvars
import http
import logging
import re
from collections.abc import Iterable
from typing import Any, Final, Protocol

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


class ClientConnection(Protocol):
    """The part of a connection that a cycle uses; ``http_timeouts.py`` implements it."""

    loop: asyncio.AbstractEventLoop
    server_state: Any
    transport: Any
    writable: asyncio.Event | None
    """The event that is set when the client reads again; None while it reads fast enough."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def on_response_complete(self) -> None: ...
    def close(self) -> None:
        """Close after the buffered bytes are sent."""
        ...


class Cycle:
    """Pass a request to the application, and its response to the connection."""

    __slots__ = (
        "_body_ended", "_connection", "_method", "_pieces", "_unread", "bytes_left", "chunked",
        "disconnected", "event", "expects_continue", "head", "keep_alive", "more_body",
        "response_complete", "response_started",
    )  # fmt: skip

    def __init__(
        self, connection: ClientConnection, method: str, version: str, *, keep_alive: bool
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
                self._send_500()
            connection.close()
        # Later calls of ``receive`` and ``send`` must see the end.
        self.disconnected = self.response_complete = True
        if self.event is not None:
            self.event.set()
        # Break the reference cycle with the connection: the garbage collector runs rarely.
        del self._connection

    def _send_500(self) -> None:
        self.keep_alive = False
        self._begin(500, ERROR_HEADERS)
        body = b"" if self._method == "HEAD" else ERROR_BODY
        self._connection.transport.write(self.head + body)

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
