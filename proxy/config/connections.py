"""Connections of clients, on guard.

Against readers that do not read and connections that nobody uses; and patient with clients that
only shut their own side down. What guards against heads that are too much is in ``heads.py``.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any, Final

from proxy.conf import conf

from .cycles import CONTINUE
from .heads import HeadReader

PROBES: Final = 2  # the first one makes a peer that is gone say so, the second one hears it
PROBE_S: Final = 0.2
LAST_CALL_S: Final = 1.0
"""How long a client that connected just before the end may take for its head."""


class GuardedConnection(HeadReader):
    """What uvicorn serves a connection with. See each method for what it adds."""

    __slots__ = ("_half_closed", "_unread", "listener", "writable")

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._unread = 0  # bytes that the client has not taken, when it was last looked at
        self._half_closed = False
        self.listener: Callable[[], None] | None = None  # of the request that is being answered
        self.writable: asyncio.Event | None = None  # where the client reads too slowly

    def connection_lost(self, exc: Exception | None) -> None:
        cycle = self.cycle
        if cycle is not None:
            if not cycle.response_complete:
                cycle.disconnected = True
            if cycle.event is not None:
                cycle.event.set()
        self.resume_writing()
        self._ended()
        listener, self.listener = self.listener, None
        if listener is not None:
            listener()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self.listener = None
        if self.transport.is_closing():
            return
        if self.read_paused:
            self.resume_reading()
        if self._pipeline:
            cycle, scope = self._pipeline.pop(0)
            cycle.start(self.app, scope)
        elif self._half_closed:
            self.transport.close()
        else:
            self._rests_since = self.loop.time()
            if self._rest_timer is None:
                keep_s = self.config.timeout_keep_alive
                self._rest_timer = self.loop.call_later(keep_s, self._look_at_rest)

    # Connections at rest

    def _look_at_rest(self) -> None:
        """One timer looks now and then; to set and cancel one for each request costs more."""
        self._rest_timer = None
        if self._rests_since is None:
            return
        left_s = self._rests_since + self.config.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self._rest_timer = self.loop.call_later(left_s, self._look_at_rest)
        else:
            self.transport.close()

    # The end of the process

    def shutdown(self) -> None:
        """Who has connected, or begun a head, came before the listener was closed: it is served."""
        if self._in_head:
            if not self._last:
                self._last = True
                self.loop.call_later(LAST_CALL_S, self._last_call)
        elif self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def _last_call(self) -> None:
        if self._in_head:
            self.transport.close()

    # Readers that do not read

    def pause_writing(self) -> None:
        """From now on the client must take something within ``conf.write_timeout_s``."""
        if self.writable is None:
            self.writable = asyncio.Event()
        if self._reader_timer is None:
            self._watch_reader()

    def resume_writing(self) -> None:
        if self.writable is not None:
            self.writable.set()
            self.writable = None
        self._forget_reader()

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


class LiveFeedConnection(asyncio.Protocol):
    """A WebSocket, which is uvicorn's: its library is imported when the first one is opened."""

    def __new__(cls, **connection: Any) -> Any:
        from uvicorn.protocols.websockets import websockets_sansio_impl  # noqa: PLC0415 - see above

        return websockets_sansio_impl.WebSocketsSansIOProtocol(**connection)
