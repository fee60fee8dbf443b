"""Connections of clients, on guard.

Against heads that are too much and readers that do not read; and patient with clients that only
shut their own side down.
"""

import asyncio
import functools
import re
import socket
import struct
from collections.abc import Callable
from typing import Any, Final

from proxy.conf import conf

from .slow_heads import TimedHeads

MOST_HEADERS: Final = 100
MOST_HEAD_BYTES: Final = 64 * 1024
CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
PROBES: Final = 2  # the first one makes a peer that is gone say so, the second one hears it
PROBE_S: Final = 0.2
LAST_CALL_S: Final = 1.0
"""How long a client that connected just before the end may take for its head."""
REASONS: Final = {400: "Bad Request", 431: "Request Header Fields Too Large"}
TOLD: Final = {
    400: "this is not a sound HTTP request",
    431: f"the headers are more than {MOST_HEADERS}, or larger than {MOST_HEAD_BYTES} bytes",
}


class HeldHead:
    """The transport of an answer whose head waits for its first bytes, to leave in one packet.

    A second system call, and a client that wakes up for the head alone, cost 9 % of a small answer.
    """

    def __init__(self, cycle: Any) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        self._head = b""
        self.close = self._transport.close
        self.is_closing = self._transport.is_closing

    def write(self, raw: bytes) -> None:
        if not self._cycle.response_started:  # "100 Continue"
            self._transport.write(raw)
        elif not self._head:
            self._head = raw
        else:
            self._cycle.transport = self._transport
            self._transport.write(self._head + raw)


class BadHead(Exception):
    """Ends the parsing; the connection knows what to answer."""


class UntilTheEnd(int):
    """The length of a body that ends with its connection, as uvicorn's count of what is left."""

    def __lt__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return False

    def __sub__(self, other: object) -> "UntilTheEnd":
        return self

    __hash__ = int.__hash__
    __eq__ = int.__eq__


class GuardedConnection(TimedHeads):
    """What uvicorn serves a connection with. See each method for what it adds."""

    # Beyond thirty names, and uvicorn has 28, Python gives each a table of its own, of 1.5 KB.
    __slots__ = (
        "_bridge", "_half_closed", "_head_bytes", "_last", "_listeners", "_reader_timer",
        "_refused_with", "_unread", "_value_bytes",
    )  # fmt: skip

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._reader_timer: asyncio.TimerHandle | None = None
        self._unread = 0  # bytes that the client has not taken, when it was last looked at
        self._head_bytes = self._value_bytes = 0
        self._refused_with = 400
        self._half_closed = False
        self._last = False  # the next request is the last one here
        self._listeners: set[Callable[[], None]] = set()  # called when the client has left
        # What the application and we let each other know of a request.
        self._bridge: Any = {}

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        self._value_bytes = 0
        super().on_message_begin()
        # To wait for ``http.disconnect`` takes a task for each request, which is 25 calls.
        self._bridge = {"when_left": self.when_left}
        self.scope["extensions"] = {"bridge": self._bridge}

    def when_left(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call this when the client leaves; what is returned makes us forget it.

        A large body may have stopped the reading, and who does not read hears of no end.
        """
        self._listeners.add(listener)
        self.flow.resume_reading()
        return functools.partial(self._listeners.discard, listener)

    def data_received(self, data: bytes) -> None:
        """A head that goes on and on is refused before it is whole."""
        if self._timer is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._timer is not None and self._head_bytes > MOST_HEAD_BYTES:
            self._refuse(431)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Control bytes are refused; a name with an underscore could pass for another."""
        if CONTROL.search(value):
            raise BadHead
        if b"_" in name:
            return
        self._value_bytes += len(name) + len(value)
        if len(self.headers) >= MOST_HEADERS or self._value_bytes > MOST_HEAD_BYTES:
            self._refused_with = 431
            raise BadHead
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self.cycle is None or self.cycle.scope is not self.scope:  # it becomes a WebSocket
            return
        if self.scope["method"] != "HEAD":  # whose answer has nothing but its head
            held: Any = HeldHead(self.cycle)
            self.cycle.transport = held
        if self.scope["http_version"] == "1.0":
            self.cycle.chunked_encoding = False  # it knows no chunks
            self.cycle.expected_content_length = UntilTheEnd()
        if self._last:
            self.cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:
        """The parser's verdict; within an answer it would be taken for a part of it."""
        if self.cycle is not None and not self.cycle.response_complete and self._timer is None:
            self.transport.close()
        else:
            self._refuse(self._refused_with)

    def _refuse(self, status: int) -> None:
        if self.transport.is_closing():
            return
        kind = "invalid_request_error" if status == 400 else "request_too_large"
        body = b'{"type":"error","error":{"type":"%s","message":"%s"}}' % (
            kind.encode(), TOLD[status].encode(),
        )  # fmt: skip
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%s" % (status, REASONS[status].encode(), len(body), body)
        )
        self.transport.close()

    # The end of the process

    def shutdown(self) -> None:
        """Who has connected, or begun a head, came before the listener was closed: it is served."""
        if self._timer is None:
            super().shutdown()
        elif not self._last:
            self._last = True
            self.loop.call_later(LAST_CALL_S, self._last_call)

    def _last_call(self) -> None:
        if self._timer is not None:
            self.transport.close()

    # Readers that do not read

    def pause_writing(self) -> None:
        """From now on the client must take something within ``conf.write_timeout_s``."""
        super().pause_writing()
        if self._reader_timer is None:
            self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_reader()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_reader()
        super().connection_lost(exc)
        for listener in [*self._listeners]:
            listener()
        self._bridge.clear()  # it knows us, so neither would go before the collector comes

    def _watch_reader(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._reader_timer = self.loop.call_later(conf.write_timeout_s, self._look_at_reader)

    def _look_at_reader(self) -> None:
        if self.transport.get_write_buffer_size() < self._unread:
            self._watch_reader()
            return
        # To close it would wait for the reader, in our buffer or in the kernel's.
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _forget_reader(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    # Half-closed connections

    def eof_received(self) -> Any:
        """The client says no more: it has left, or only shut its own side down.

        Both look the same until something is sent: who has left answers that with RST. So what
        may stand there without harm is sent, twice. True keeps our side open.
        """
        if self._probe() is None:
            return None
        self._half_closed = True
        self._send_probe(PROBES)
        return True

    def _probe(self) -> bytes | None:
        """100 before the answer, a ping in a stream; None where there is no such thing."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            return None
        if not cycle.response_started or cycle.transport is not self.transport:
            return CONTINUE if self.scope["http_version"] == "1.1" else None
        ping: bytes | None = self._bridge.get("ping")
        if ping is None or not cycle.chunked_encoding:
            return ping
        return b"%x\r\n%b\r\n" % (len(ping), ping)

    def _send_probe(self, left: int) -> None:
        probe = self._probe()
        if probe is None or not left or self.transport.is_closing():
            return
        self.transport.write(probe)
        self.loop.call_later(PROBE_S, self._send_probe, left - 1)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._half_closed and not self.pipeline:
            self.transport.close()


class LiveFeedConnection(asyncio.Protocol):
    """A WebSocket, which is uvicorn's: its library is imported when the first one is opened."""

    def __new__(cls, **connection: Any) -> Any:
        from uvicorn.protocols.websockets import websockets_sansio_impl  # noqa: PLC0415 - see above

        return websockets_sansio_impl.WebSocketsSansIOProtocol(**connection)
