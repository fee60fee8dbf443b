"""An event loop whose clock jumps: what waits for an hour waits for no time at all.

Time moves only when nothing is left to do at the present moment, and then straight to the next
timer. Nothing outside of the loop has a say, so what happens is a function of the seed.
"""

import asyncio
import selectors
from typing import Any


class Stuck(AssertionError):
    """Somebody waits for what will never happen."""


class _Clock(selectors.SelectSelector):
    """Where a loop would sleep until a timer is due, it is that time already."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck("nothing will ever happen again, and somebody still waits")
        self.now += max(0.0, timeout)
        return []  # no socket is ever asked: that is a sixth of a world's time


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Clock()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now
