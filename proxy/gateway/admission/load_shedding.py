"""Load shedding: reject new requests when the event loop of this process lags behind.

A repeated timer measures how late it runs. A single late tick is only a pause. Many late ticks in a
row mean overload: then new requests are rejected, so that the running ones can continue.
"""

import asyncio
from typing import Final

from proxy.conf import conf

TICK_S: Final = 0.05
IN_A_ROW: Final = 8
"""The event loop is overloaded after this many late timer calls in succession.

One blocking call, however long, causes only one late timer call.
"""


class LoadShedder:
    """Measures the event loop's lag; each request checks ``is_overloaded``."""

    def __init__(self) -> None:
        self.late = 0  # late ticks in a row
        self.lag_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_overloaded(self) -> bool:
        return self.late >= IN_A_ROW

    def start(self) -> None:
        """Measure the lag of the running event loop, unless a loop is measured already."""
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.get_running_loop()
            self.late = 0
            self._wait(self._loop)

    def stop(self) -> None:
        if self._timer is not None and self._loop is asyncio.get_running_loop():
            self._timer.cancel()
            self._timer = self._loop = None
            self.late = 0

    def record_lag(self, lag_s: float) -> None:
        """Record by how many seconds one timer tick was late."""
        self.lag_s = lag_s
        self.late = self.late + 1 if lag_s >= conf.shed_lag_s else 0

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + TICK_S
        self._timer = loop.call_at(due, self._tick, loop, due)

    def _tick(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self.record_lag(loop.time() - due)
        self._wait(loop)


load_shedder: Final = LoadShedder()
"""The load shedder of this process."""
