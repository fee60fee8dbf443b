"""Sheds load before everybody's answers are late: how far this process's event loop lags behind.

A timer notes how late it is. One long pause is only a delay; when it is late many times in a row,
there is more to do than this process can, and what is new is refused, so that what runs goes on.
"""

import asyncio
from typing import Final

from proxy.conf import conf

TICK_S: Final = 0.05
IN_A_ROW: Final = 8  # ticks: one block of the loop is one of them, however long it was


class Pressure:
    """``start`` it as often as you like; ``too_much`` is for every request."""

    def __init__(self) -> None:
        self.late = 0  # ticks in a row
        self.lag_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def too_much(self) -> bool:
        return self.late >= IN_A_ROW

    def start(self) -> None:
        """Watch the running loop, unless another one is watched."""
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.get_running_loop()
            self.late = 0
            self._wait(self._loop)

    def stop(self) -> None:
        if self._timer is not None and self._loop is asyncio.get_running_loop():
            self._timer.cancel()
            self._timer = self._loop = None
            self.late = 0

    def noted(self, lag_s: float) -> None:
        """One tick was so late."""
        self.lag_s = lag_s
        self.late = self.late + 1 if lag_s >= conf.shed_lag_s else 0

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + TICK_S
        self._timer = loop.call_at(due, self._tick, loop, due)

    def _tick(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self.noted(loop.time() - due)
        self._wait(loop)


pressure: Final = Pressure()
"""Of this process."""
