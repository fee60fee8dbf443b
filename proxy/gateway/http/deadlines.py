"""The deadlines of one request, checked by one timer.

A timer for each wait would cost more than the work between two waits. So the request only records
what it waits for and since when, and its single timer checks a few times a second whether the wait
is too long. Times are the event loop's (monotonic), so a jump of the system clock does not end a
stream.
"""

import asyncio
import enum
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from proxy.models.setup.columns import Timeouts


class CancelReason(enum.Enum):
    """The reasons for which another task or a timer cancels a running request."""

    CLIENT_GONE = "client_gone"
    BODY = "body_timeout_s"  # the client did not send the request body in time
    FIRST_BYTE = "first_byte_s"  # the upstream did not send the response headers in time
    IDLE = "idle_s"  # the upstream stopped sending in the middle of its response
    TOTAL = "total_s"  # the whole upstream response took too long
    WRITE = "write_timeout_s"  # the client does not read the response
    STOPPED = "stopped"  # a user of the admin stopped the request

    __hash__ = object.__hash__  # faster than Enum's ``__hash__``, which is written in Python


TIMEOUTS: Final = frozenset({CancelReason.FIRST_BYTE, CancelReason.IDLE, CancelReason.TOTAL})
SHORTEST_TICK_S: Final = 0.02
LONGEST_TICK_S: Final = 0.5


@lru_cache(maxsize=64)  # nearly all requests have the same time limits
def tick_interval(*waits: float) -> float:
    """Return the interval of the timer in seconds: a quarter of the shortest of ``waits``."""
    return min(LONGEST_TICK_S, max(SHORTEST_TICK_S, min(waits) / 4))


class Deadlines:
    """Checks the waits of one request.

    Calls ``cancel`` when a wait is too long, and ``tick`` at each check.
    """

    __slots__ = (
        "_cancel",
        "_limits",
        "_tick",
        "_tick_s",
        "_timer",
        "_total",
        "_write_s",
        "loop",
        "now",
        "since",
        "wait",
    )

    def __init__(
        self, cancel: Callable[[CancelReason], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        # The loop is stored, because ``get_running_loop`` makes a system call in Python 3.11 (0.2
        # µs).
        self.loop = loop
        self.now: Callable[[], float] = self.loop.time
        self._cancel = cancel
        self._tick: Callable[[float], None] | None = None
        self._timer: asyncio.TimerHandle | None = None  # the timer is set from ``begin`` to ``end``
        self._tick_s = 0.0
        self._limits: Timeouts
        self._write_s = 0.0
        self._total = float("inf")
        self.wait: CancelReason | None = None  # the current wait; None: no deadline applies
        self.since = 0.0

    def later(self, seconds: float, reason: CancelReason) -> asyncio.TimerHandle:
        """Cancel the request for this reason after ``seconds``. Return the timer handle."""
        return self.loop.call_later(seconds, self._cancel, reason)

    def begin(
        self, limits: "Timeouts", write_s: float, tick: Callable[[float], None], *silences: float
    ) -> None:
        """Start the timer with the upstream's ``limits`` and the time limit of client writes.

        ``silences`` are other times in seconds that ``tick`` measures, so the timer must run often
        enough for them. Each upstream attempt of a request calls ``begin`` again, with the limits
        of its upstream.
        """
        self._limits = limits
        self._write_s = write_s
        self._tick = tick
        self._total = self.now() + limits.total_s
        waits = (write_s, limits.first_byte_s, limits.idle_s, limits.total_s, *silences)
        tick_s = tick_interval(*waits)
        if self._timer is None or tick_s != self._tick_s:
            self._stop_timer()
            self._tick_s = tick_s
            self._timer = self.loop.call_later(tick_s, self._on_timer)

    def start_wait(self, wait: CancelReason | None) -> None:
        """Start a wait now. Its reason selects the time limit; for None, there is no limit."""
        self.wait = wait
        self.since = self.now()

    def end(self) -> None:
        self._stop_timer()
        self._tick = None
        self._cancel = lambda _: None  # releases the request

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        now = self.now()
        late = now - self._timer.when() if self._timer is not None else 0.0
        if late > LONGEST_TICK_S:  # this process was suspended, so do not count that time
            self.since += late
        # The next call is scheduled first, because the callbacks may raise.
        self._timer = self.loop.call_later(self._tick_s, self._on_timer)
        if now >= self._total:
            self._total = float("inf")
            self._cancel(CancelReason.TOTAL)
            return
        wait = self.wait
        if wait is not None:
            is_write = wait is CancelReason.WRITE
            limit: float = self._write_s if is_write else getattr(self._limits, wait.value)
            if now - self.since >= limit:
                self.wait = None
                self._cancel(wait)
                return
        if self._tick is not None:
            self._tick(now)
