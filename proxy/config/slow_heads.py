"""HTTP connections that must send their head in time; uvicorn itself waits for ever."""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from proxy.conf import conf

BODY: Final = (
    b'{"type":"error","error":{"type":"timeout_error",'
    b'"message":"the request headers did not arrive in time"}}'
)
ANSWER: Final = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(BODY), BODY)
)


class TimedHeads(HttpToolsProtocol):
    """Closes a connection whose request head takes longer than ``conf.head_timeout_s``."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start_timer()

    def on_message_begin(self) -> None:
        if self._timer is None:  # a later request on a kept connection
            self._start_timer()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(conf.head_timeout_s, self._give_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.write(ANSWER)
            self.transport.close()
