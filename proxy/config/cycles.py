"""One request and its answer on a client's connection: what uvicorn calls a cycle.

The same as uvicorn's in fewer steps: no wrapper around the application that is resumed at each of
its wake-ups, no event for a body that is there already, one look at the answer's head instead of
two for each of its lines. Applications see ASGI, and beside it ``scope["extensions"]["bridge"]``:
the cycle itself, of which ``whole_body``, ``when_left``, ``ping``, ``begin``, ``keeps_up`` and
``put`` are meant for them: who begins and puts without an await saves five calls for each piece of
an answer.
"""

import asyncio
import contextvars
import http
import logging
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .connections import GuardedConnection

log = logging.getLogger("uvicorn.error")  # whose lines these are elsewhere

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
NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")  # RFC 9110, 5.6.2; ASGI wants them small
CONTROL: Final = bytes(byte for byte in (*range(32), 127) if byte != 9)
"""Control bytes but the tab. CR and LF are ours alone: in a value they would begin another line."""
CLOSE: Final = b"connection: close\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
BODILESS: Final = frozenset({204, 304})  # answers that have none, beside those of HEAD
SORRY: Final = b"Internal Server Error"
SORRY_HEADERS: Final = (
    (b"content-type", b"text/plain; charset=utf-8"),
    (b"content-length", b"%d" % len(SORRY)),
)
READ_AHEAD: Final = 64 * 1024
"""Of a body that nobody has asked for: beyond it the reading stops."""


@lru_cache(maxsize=64)
def lines_of(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    return b"".join([b"%b: %b\r\n" % pair for pair in headers])


class Cycle:
    """Hands a request to the application piece by piece, and its answer to the connection."""

    __slots__ = (
        "_connection", "_method", "_pieces", "_told_all", "_unread", "chunked", "continues",
        "disconnected", "event", "head", "keep_alive", "left", "more_body", "ping",
        "response_complete", "response_started", "task",
    )  # fmt: skip

    def __init__(
        self, connection: "GuardedConnection", method: str, version: str, *, keep_alive: bool
    ) -> None:
        self._connection = connection
        self._method = method
        self._pieces: list[bytes] = []  # of the body, which nobody has taken yet
        self._unread = 0  # bytes of them
        self._told_all = False  # the application knows that there is no more
        self.event: asyncio.Event | None = None  # where ``receive`` waits for something to tell
        self.more_body = True
        self.continues = False  # the client waits to be told that it may send its body
        self.disconnected = False
        self.keep_alive = keep_alive
        self.response_started = False
        self.response_complete = False
        self.head = b""  # of the answer, until its first bytes leave: in one packet with them
        self.ping: bytes | None = None  # what may stand between two writes of this answer
        self.chunked: bool | None = None  # not decided yet
        self.task: asyncio.Task[None]  # the application's, while it runs
        self.left: int | None = 0  # bytes of an answer that told its length
        if version == "1.0":  # knows no chunks: an answer of unknown length ends with everything
            self.chunked = False
            self.left = None

    # The application

    def start(self, app: Any, scope: Any) -> None:
        connection = self._connection
        context = contextvars.copy_context()
        task = connection.loop.create_task(app(scope, self.receive, self.send), context=context)
        self.task = task
        connection.server_state.tasks.add(task)
        task.add_done_callback(self._ended, context=context)

    def _ended(self, task: asyncio.Task[None]) -> None:
        connection = self._connection
        connection.server_state.tasks.discard(task)
        try:
            fault = task.exception()
        except asyncio.CancelledError as cancelled:  # a task keeps that to itself
            fault = cancelled
        if fault is not None:
            log.error("Exception in ASGI application\n", exc_info=fault)
        elif not self.response_complete and not self.disconnected:
            log.error("ASGI callable returned without completing response.")
        if not self.disconnected and (fault is not None or not self.response_complete):
            if not self.response_started:
                self._apologise()
            connection.close()
        self.disconnected = self.response_complete = True  # for whoever still asks or sends
        if self.event is not None:
            self.event.set()
        # The connection knows its last cycle; each would keep the other until the collector comes.
        del self._connection, self.task

    def _apologise(self) -> None:
        self.keep_alive = False
        self.begin(500, SORRY_HEADERS)
        self._connection.transport.write(self.head + (b"" if self._method == "HEAD" else SORRY))

    # The request

    def heard(self, body: bytes) -> None:
        self._pieces.append(body)
        self._unread += len(body)
        if self._unread > READ_AHEAD:
            self._connection.pause_reading()
        if self.event is not None:
            self.event.set()

    def whole_body(self) -> bytes | None:
        """The body where all of it is here and nobody has asked for any of it; None elsewhere."""
        if self.more_body or self.continues or self.disconnected:
            return None
        self._told_all = True
        body, self._pieces = b"".join(self._pieces), []
        return body

    def when_left(self, listener: Callable[[], None]) -> None:
        """Call this when the client leaves before it has the whole answer.

        To wait for ``http.disconnect`` takes a task for each request, which is 25 calls. A large
        body may have stopped the reading, and who does not read hears of no end.
        """
        connection = self._connection
        connection.listener = listener
        if connection.read_paused:
            connection.resume_reading()

    async def receive(self) -> dict[str, Any]:
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        if self.continues:
            self.continues = False
            if not self._connection.transport.is_closing():
                self._connection.transport.write(CONTINUE)
        self._connection.resume_reading()
        while not self._pieces and (self.more_body or self._told_all):
            if self.event is None:
                self.event = asyncio.Event()
            self.event.clear()
            await self.event.wait()
            if self.disconnected or self.response_complete:
                return {"type": "http.disconnect"}
        self._told_all = not self.more_body
        body, self._pieces = b"".join(self._pieces), []
        self._unread = 0
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    # The answer

    @property
    def keeps_up(self) -> bool:
        """The client is there and takes what it is told: ``put`` says it at once."""
        return not self.disconnected and self._connection.writable is None

    async def send(self, message: dict[str, Any]) -> None:
        """Raises RuntimeError when the application does not keep to HTTP or ASGI."""
        while not self.disconnected and self._connection.writable is not None:
            await self._connection.writable.wait()  # for a client that reads too slowly
        if self.disconnected:
            return
        kind = message["type"]
        if not self.response_started and kind == "http.response.start":
            self.begin(message["status"], message.get("headers", ()))
        elif self.response_started and kind == "http.response.body":
            self.put(message.get("body", b""), more=message.get("more_body", False))
        else:
            raise RuntimeError(f"there is no place for {kind!r} here")

    def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Make the head, and note how the end of the body will be known. RuntimeError: as above."""
        lines = []
        for name, value in headers:
            if name not in KNOWN_NAMES:
                self._look_at(name, value)
            elif name == b"content-length" and self.chunked is None:
                self.chunked, self.left = False, int(value)
            lines.append(b"%b: %b\r\n" % (name, value))
        told = b"".join(lines)
        if len(told) - len(told.translate(None, CONTROL)) != 2 * len(lines):
            raise RuntimeError("a header's value has control bytes")
        self._begin(status, told)

    def begin_well(
        self, headers: tuple[tuple[bytes, bytes], ...], name: bytes, length: int | None
    ) -> None:
        """Begin a 200 of the gateway's own, whose ``headers`` are sound and of few kinds.

        ``name`` is the request's, ``length`` the body's, None for a stream. 1.3 µs, where a look
        at each header takes 3.1.
        """
        lines = lines_of(headers)
        if length is not None:
            self.chunked, self.left = False, length
            lines += b"content-length: %d\r\n" % length
        self._begin(200, b"%brequest-id: %b\r\nx-bridge-request-id: %b\r\n" % (lines, name, name))

    def _begin(self, status: int, lines: bytes) -> None:
        if self.continues:  # the client may send its body now or not: nothing can follow that
            self.continues = self.keep_alive = False
        head = STATUS_LINE[status]
        for pair in self._connection.server_state.default_headers:
            head += b"%b: %b\r\n" % pair
        head += lines
        if not self.keep_alive and b"\r\n" + CLOSE not in head.lower():
            head += CLOSE
        if self.chunked is None and self._method != "HEAD" and status not in BODILESS:
            self.chunked = True
            head += b"transfer-encoding: chunked\r\n"
        self.head = head + b"\r\n"
        self.response_started = True

    def put(self, body: bytes, *, more: bool) -> bool:
        """Another piece of the answer. False: the client reads too slowly; ``send`` waits for it.

        RuntimeError: as ``send``.
        """
        if self.disconnected:
            return True
        connection = self._connection
        if connection.writable is not None:
            return False
        if self.response_complete:
            raise RuntimeError("the answer is complete, and there is more of it")
        if self._method == "HEAD":
            body, self.left = b"", 0
        elif self.chunked:
            piece = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body = piece if more else piece + LAST_CHUNK
        elif self.left is not None:
            self.left -= len(body)
            if self.left < 0 or (self.left and not more):
                raise RuntimeError("the answer is not as long as its content-length")
        if self.head:
            body, self.head = self.head + body, b""
        connection.transport.write(body)
        if not more:
            self._complete(connection)
        return True

    def _complete(self, connection: "GuardedConnection") -> None:
        self.response_complete = True
        if self.event is not None:
            self.event.set()
        connection.on_response_complete()

    def lose(self) -> None:
        """The client has left, or is not to get this answer."""
        if not self.response_complete:
            self.disconnected = True
        if self.event is not None:
            self.event.set()

    def _look_at(self, name: bytes, value: bytes) -> None:
        if not NAME.fullmatch(name):
            raise RuntimeError(f"{name!r} is no name of a header")
        if name == b"transfer-encoding" and value.lower() == b"chunked":
            self.chunked = True
        elif name == b"connection" and b"close" in [
            token.strip() for token in value.lower().split(b",")
        ]:
            self.keep_alive = False
