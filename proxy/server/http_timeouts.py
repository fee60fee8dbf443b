"""Client connections with timeouts: one state at a time, a deadline for each state, one timer.

A client may send nothing, send one byte at a time, declare a body and not send it, or not read its
response. Each case is a ``State`` with a timeout in ``SECONDS``. Only ``ANSWER`` has none: the
application works, and the client waits for it.
A connection above the limits (``connection_limits.py``) gets a 503 and is closed.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, ClassVar, Final

from proxy.conf import conf
from proxy.metrics.connections import count_closed

from .connection_limits import connection_limits
from .http_cycle import CONTINUE
from .http_protocol import REJECTIONS, HttpProtocol

PROBES: Final = 2  # the first one makes a closed peer send RST, the second one detects that
PROBE_S: Final = 0.2
MIB: Final = 2**20
MIN_READ_RATE: Final = 256
"""Bytes per second that a client must read at least; every real client is faster."""


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


SECONDS: Final[Mapping[State, Callable[["GatewayHttpProtocol"], float]]] = {
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


class GatewayHttpProtocol(HttpProtocol):
    """The protocol class for uvicorn: HTTP with timeouts, limits and half-closed connections."""

    __slots__ = (
        "_deadline", "_dropped", "_half_closed", "_ignores_input", "_timer", "_unread", "counted",
        "state",
    )  # fmt: skip

    last_request_s: ClassVar = 1.0
    """Time for a request head on a connection that is idle at the shutdown, or becomes idle later.
    Its client may send one before it learns of the shutdown (RFC 9112, 9.5)."""
    discard_s: ClassVar = 5.0
    """Time for the rest of a body that is dropped, which is at most ``conf.max_body_bytes``."""
    body_grace_s: ClassVar = 5.0
    """Added to the application's own timeout, which then ends first with a more specific error."""

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.state = State.HEAD
        self._deadline = 0.0  # deadline of the current state, in the event loop's time
        self._timer: asyncio.TimerHandle | None = None
        self._dropped = 0  # bytes dropped in the current state
        self._ignores_input = False  # whether input is dropped, because a request was rejected
        self._unread = 0  # bytes in the write buffer at the last check
        self._half_closed = False
        self.counted: str | None = None  # the address in the connection limits; None: not counted

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        exceeded = connection_limits().acquire(address)
        if exceeded is None:
            self.counted = address
            self._enter(State.HEAD)
        else:
            count_closed(f"limit_{exceeded}", address)
            self._send_rejection(503)
            self.close()

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
