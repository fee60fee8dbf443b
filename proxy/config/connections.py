"""Connections of clients: a state, a deadline for each state, one timer.

A client may be silent, send one byte now and then, declare a body that never comes, or not read
its answer. Each of these is a ``State``, and none lasts for ever: ``SECONDS`` is the table. The
exception is ``ANSWER``, when the application works and the client can only wait.
Beyond its limits (``connection_limits.py``) a connection is answered 503 and closed at once.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

from proxy.conf import conf
from proxy.metrics.connections import count_closed

from .connection_limits import connection_limits
from .cycles import CONTINUE
from .heads import REFUSED, HeadReader

PROBES: Final = 2  # the first one makes a peer that is gone say so, the second one hears it
PROBE_S: Final = 0.2
LAST_CALL_S: Final = 1.0
"""How long a client that connected just before the end may take for its head."""
DISCARD_S: Final = 5.0
"""How long the rest of a body may take that nothing reads; ``conf.max_body_bytes`` is its bound."""
BODY_GRACE_S: Final = 5.0
"""The application's own deadline comes first: its answer is the better one."""
MIB: Final = 2**20
SLOWEST_READ: Final = 256
"""Bytes in a second: less than a client of any use takes."""


class State(Enum):
    HEAD = "head"  # connected, or a head has begun
    IDLE = "idle"  # answered; the next request has not begun
    BODY = "body"  # the head is there, its body is not
    ANSWER = "answer"  # the application works
    WRITE = "write"  # the client has not read what was sent
    DISCARD = "discard"  # answered before the body came, which is read and dropped
    LINGER = "linger"  # the last answer was sent, our side is shut: what still comes is dropped
    CLOSE = "close"  # closed, but some bytes are not sent yet


SECONDS: Final[Mapping[State, Callable[["GuardedConnection"], float]]] = {
    State.HEAD: lambda _: conf.head_timeout_s,
    State.IDLE: lambda connection: connection.config.timeout_keep_alive,
    State.BODY: lambda _: conf.body_timeout_s + conf.max_body_bytes / MIB + BODY_GRACE_S,
    State.WRITE: lambda _: conf.write_timeout_s,
    State.DISCARD: lambda _: DISCARD_S,
    State.LINGER: lambda _: DISCARD_S,
    State.CLOSE: lambda _: conf.write_timeout_s,
}
ENDING: Final = frozenset({State.LINGER, State.CLOSE})


class GuardedConnection(HeadReader):
    """What uvicorn serves a connection with. See each method for what it adds."""

    __slots__ = (
        "_deadline", "_dropped", "_half_closed", "_ignores", "_timer", "_unread", "counted",
        "listener", "state", "writable",
    )  # fmt: skip

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.state = State.HEAD
        self._deadline = 0.0  # of this state; the event loop's time
        self._timer: asyncio.TimerHandle | None = None
        self._dropped = 0  # bytes, since something is dropped
        self._ignores = False  # what comes after a request that was refused
        self._unread = 0  # bytes that the client has not taken, when it was last looked at
        self._half_closed = False
        self.counted: str | None = None  # the address that the limits count this connection under
        self.listener: Callable[[], None] | None = None  # of the request that is being answered
        self.writable: asyncio.Event | None = None  # where the client reads too slowly

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        exceeded = connection_limits().take(address)
        if exceeded is None:
            self.counted = address
            self._enter(State.HEAD)
        else:
            count_closed(f"limit_{exceeded}", address)
            self._send_refusal(503)
            self.close()

    def data_received(self, data: bytes) -> None:
        if self._ignores or self.state in ENDING:
            self._drop(len(data))
            return
        if self.state is State.DISCARD:
            self._drop(len(data))
        self.feed(data)
        self._update_state()

    def connection_lost(self, exc: Exception | None) -> None:
        for cycle in filter(None, (self.cycle, *(cycle for cycle, _ in self._pipeline))):
            cycle.lose()
        self.resume_writing()
        if self.counted is not None:
            connection_limits().give_back(self.counted)
        self._ended()
        self._call_listener()

    def _call_listener(self) -> None:
        listener, self.listener = self.listener, None
        if listener is not None:
            listener()

    def _ended(self) -> None:
        """Drop every reference: the garbage collector runs rarely."""
        self.state = State.CLOSE
        self.server_state.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pipeline.clear()
        self._parser = self.cycle = self._incoming = None

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self.listener = None
        cycle = self.cycle
        if cycle is None or self.state in ENDING or self.transport.is_closing():
            return
        if self.read_paused:
            self.resume_reading()
        if not cycle.keep_alive:
            if cycle.more_body or self._ignores:
                self._linger()
            else:
                self.close()
        elif self._pipeline:
            self.cycle, scope = self._pipeline.pop(0)
            self.cycle.start(self.app, scope)
        elif self._half_closed:
            self.close()
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
        """One timer for all states: it is set again where it would be late, and else looks."""
        self.state = state
        if state is State.ANSWER:
            return
        if state is State.DISCARD:
            self._dropped = 0
        self._deadline = self.loop.time() + SECONDS[state](self)
        if self._timer is None:
            self._timer = self.loop.call_at(self._deadline, self._look_at_deadline)
        elif self._timer.when() > self._deadline:
            self._timer.cancel()
            self._timer = self.loop.call_at(self._deadline, self._look_at_deadline)

    def _look_at_deadline(self) -> None:
        self._timer = None
        if self.state is State.ANSWER:
            return
        if self.loop.time() < self._deadline:
            self._timer = self.loop.call_at(self._deadline, self._look_at_deadline)
        elif self.state in {State.WRITE, State.CLOSE} and self._is_read():
            self._enter(self.state)
        else:
            self._expire()

    def _expire(self) -> None:
        state = self.state
        if state is not State.IDLE:
            count_closed(f"timeout_{state.value}", self.counted)
        if state in {State.HEAD, State.BODY}:
            self.refuse(408)
        elif state is State.IDLE:
            self.close()
        else:
            self.reset()

    def close(self) -> None:
        """Send what is to be sent, and close."""
        self.transport.close()
        self._watch_reader()
        self._enter(State.CLOSE)

    def reset(self) -> None:
        """Close though not all is sent: in our buffer or in the kernel's it would wait for ever."""
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _linger(self) -> None:
        """Shut our side and drop what comes: to close before would reset, and lose the answer."""
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

    # Refusals

    def refuse(self, status: int) -> None:
        """Answer one of ``REFUSED`` and close.

        While earlier requests are being answered the connection closes after them, without this
        answer: a proxy that parses the bytes in another way would hand it to another client.
        """
        if self.state in ENDING or self.transport.is_closing():
            return
        cycle, incoming = self.cycle, self._incoming
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            self._ignores = True
            self._pipeline = [pair for pair in self._pipeline if not pair[0].more_body]
            last = self._pipeline[-1][0] if self._pipeline else cycle
            last.keep_alive = False
            return
        if incoming is not None and incoming.more_body:
            if incoming.response_started:
                self.close()
                return
            incoming.lose()
        self._send_refusal(status)
        if status == 408:
            self.close()
        else:
            count_closed(f"refused_{status}", self.counted)
            self._linger()
        self._call_listener()

    def _send_refusal(self, status: int) -> None:
        reason, kind, message = REFUSED[status]
        body = b'{"type":"error","error":{"type":"%b","message":"%b"}}' % (kind, message)
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%b" % (status, reason, len(body), body)
        )

    # The end of the process

    def shutdown(self) -> None:
        """Who has connected, or begun a head, came before the listener was closed: it is served."""
        if self.state is State.LINGER:
            self.close()
        elif self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        elif not self._in_head:
            self.close()
        elif not self._last:
            self._last = True
            self.loop.call_later(LAST_CALL_S, self._last_call)

    def _last_call(self) -> None:
        if self._in_head and self.state not in ENDING:
            self.close()

    # Readers that do not read

    def pause_writing(self) -> None:
        """From now on the client must take something within ``conf.write_timeout_s``."""
        if self.writable is None:
            self.writable = asyncio.Event()
        self._watch_reader()
        self._update_state()

    def resume_writing(self) -> None:
        if self.writable is not None:
            self.writable.set()
            self.writable = None
        self._update_state()

    def _watch_reader(self) -> None:
        self._unread = self.transport.get_write_buffer_size()

    def _is_read(self) -> bool:
        """Whether the client took its share since the last look."""
        unread, taken = self._unread, self._unread - self.transport.get_write_buffer_size()
        self._watch_reader()
        return bool(taken >= min(unread, SLOWEST_READ * conf.write_timeout_s) > 0)

    # Half-closed connections

    def eof_received(self) -> Any:
        """The client says no more: it has left, or only shut its own side down.

        Both look the same until something is sent: who has left answers that with RST. So what
        may stand there without harm is sent, twice. True keeps our side open.
        """
        if self.state in ENDING or self._probe() is None:
            self.close()
            return None
        self._half_closed = True
        self._send_probe(PROBES)
        return True

    def _probe(self) -> bytes | None:
        """100 before the answer, a ping in a stream; None where there is no such thing.

        Nothing where the last request waits for its turn: another answer is on its way.
        """
        if self._pipeline:
            return b""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            return None
        if cycle.head or not cycle.response_started:
            return CONTINUE if self.http_version == "1.1" else None
        if cycle.ping is None or not cycle.chunked:
            return cycle.ping
        return b"%x\r\n%b\r\n" % (len(cycle.ping), cycle.ping)

    def _send_probe(self, left: int) -> None:
        probe = self._probe()
        if probe is None or not left or self.transport.is_closing():
            return
        self.transport.write(probe)
        self.loop.call_later(PROBE_S, self._send_probe, left - 1)

    # WebSockets

    def _open_websocket(self, head: bytes) -> None:
        """Hand the connection to uvicorn's WebSocket, which reads the head again.

        uvicorn is silent about a handshake that is wrong: it is refused here. One that is sound
        must be accepted before the deadline of a head.
        """
        websocket = self.config.ws_protocol_class(
            config=self.config, server_state=self.server_state, app_state=self.app_state
        )
        websocket.connection_made(self.transport)
        websocket.data_received(head)
        if not websocket.handshake_initiated:
            self.server_state.connections.discard(websocket)
            self.refuse(400)
            return
        websocket.guard(self.counted)
        self._ended()
        self.transport.set_protocol(websocket)
