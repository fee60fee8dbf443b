"""Take turns: an iteration of the event loop handles one large read, whatever their number.

Translating a large read takes some 10 ms, a stream that a client does not read ends many of them in
a row, and the event loop accepts one connection in an iteration (libuv, since 1.45): with fifty
such streams, a new connection waited for 10 s. Streams of models have reads of some 100 bytes.
"""

import asyncio
from collections import deque


class LargeReads:
    """The large reads of one event loop that wait for their turn, in their order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Return when this read is the next one, in a later iteration of the event loop."""
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._waiting.append(waiter)
        if len(self._waiting) == 1:
            self.loop.call_soon(self._next)
        await waiter

    def _next(self) -> None:
        """End the wait of the first read that was not cancelled."""
        while self._waiting:
            waiter = self._waiting[0]
            if waiter.done():
                self._waiting.popleft()
                continue
            waiter.set_result(None)  # it stays first, so that no other call schedules this method
            self.loop.call_soon(self._next)
            return


_current: LargeReads | None = None


def large_reads(loop: asyncio.AbstractEventLoop) -> LargeReads:
    """Return the turns of this event loop."""
    global _current  # noqa: PLW0603 - a process has one event loop; tests have several
    if _current is None or _current.loop is not loop:
        _current = LargeReads(loop)
    return _current
