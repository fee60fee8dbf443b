"""The WebSocket protocol of the live view: uvicorn's protocol with timeouts."""

import asyncio
from functools import lru_cache
from typing import Any

from proxy.conf import conf
from proxy.metrics.connections import count_closed

from .connection_limits import connection_limits


class LiveFeedConnection(asyncio.Protocol):
    """Create uvicorn's WebSocket protocol; its library is imported on the first connection."""

    def __new__(cls, **connection: Any) -> Any:
        return _websocket_class()(**connection)


@lru_cache(maxsize=1)
def _websocket_class() -> Any:
    from uvicorn.protocols.websockets import websockets_sansio_impl  # noqa: PLC0415 - most workers never need this import

    class GuardedWebSocket(websockets_sansio_impl.WebSocketsSansIOProtocol):
        """A WebSocket that releases its connection slot, and closes if the client does not read."""

        counted: str | None = None
        guard_timer: asyncio.TimerHandle | None = None

        def guard(self, counted: str | None) -> None:
            self.counted = counted
            self.guard_timer = self.loop.call_later(conf.head_timeout_s, self.check)

        def check(self) -> None:
            """Abort if the handshake is not complete, or if a close waits for the client."""
            is_closing = self.transport.is_closing() and self.transport.get_write_buffer_size()
            if is_closing or not self.handshake_complete:
                count_closed("timeout_websocket", self.counted)
                self.transport.abort()
            else:
                self.guard_timer = self.loop.call_later(conf.write_timeout_s, self.check)

        def data_received(self, data: bytes) -> None:
            """Drop input before the handshake is complete: clients must wait (RFC 6455, 4.1)."""
            if self.handshake_complete or not self.handshake_initiated:
                super().data_received(data)

        def connection_lost(self, exc: Exception | None) -> None:
            if self.guard_timer is not None:
                self.guard_timer.cancel()
            if self.counted is not None:
                connection_limits().release(self.counted)
            super().connection_lost(exc)

    return GuardedWebSocket
