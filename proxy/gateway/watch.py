"""The clock of one exchange: all its deadlines on one timer.

A timer for each wait would cost more than the work between two waits. So the exchange only notes
what it waits for and since when; a tick looks a few times a second whether that took too long.
Times are the event loop's own (monotonic), so that no clock jump ends a stream.
"""

import asyncio
import enum
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .targets import Timeouts


class Stop(enum.Enum):
    """Why a running exchange is stopped from outside."""

    CLIENT_GONE = "client_gone"
    BODY = "body_timeout_s"  # the client's own body did not come in time
    FIRST_BYTE = "first_byte_s"  # no status line and headers from upstream in time
    IDLE = "idle_s"  # upstream began and fell silent
    TOTAL = "total_s"  # the whole answer took too long
    WRITE = "write_timeout_s"  # the client does not read
    STOPPED = "stopped"  # somebody stopped it in the admin

    __hash__ = object.__hash__  # Enum's own is Python


TIMEOUTS: Final = frozenset({Stop.FIRST_BYTE, Stop.IDLE, Stop.TOTAL})
FINEST_TICK_S: Final = 0.02
COARSEST_TICK_S: Final = 0.5


def _nobody(_: Stop) -> None:
    """Who is told after the end; an exchange that has ended is not to be kept by its watch."""


@lru_cache(maxsize=64)  # nearly all requests have the same ones
def pace(*waits: float) -> float:
    """How often to look, so that each of these many seconds is measured well enough."""
    return min(COARSEST_TICK_S, max(FINEST_TICK_S, min(waits) / 4))


class Watch:
    """Tells ``stop`` when a wait lasts too long, and ``tick`` that time goes by."""

    __slots__ = (
        "_limits",
        "_stop",
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

    def __init__(self, stop: Callable[[Stop], None], loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop  # ``get_running_loop`` is a system call in Python 3.11, for 0.2 µs
        self.now: Callable[[], float] = self.loop.time
        self._stop = stop
        self._tick: Callable[[float], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._limits: Timeouts  # from ``begin`` on
        self._write_s = 0.0
        self._total = float("inf")
        self._tick_s = COARSEST_TICK_S
        self.wait: Stop | None = None  # what is being waited for; None: nothing
        self.since = 0.0

    def soon(self, work: Callable[[], None]) -> None:
        """Do this in the exchange's own event loop; from any thread."""
        self.loop.call_soon_threadsafe(work)

    def later(self, seconds: float, why: Stop) -> asyncio.TimerHandle:
        """Stop for this reason then, unless it is cancelled before."""
        return self.loop.call_later(seconds, self._stop, why)

    def begin(
        self, limits: "Timeouts", write_s: float, tick: Callable[[float], None], *silences: float
    ) -> None:
        """Start ticking; ``limits`` are the upstream's, ``write_s`` is the client's.

        ``silences`` are the times, in seconds, that ``tick`` has to measure.
        """
        self._limits = limits
        self._write_s = write_s
        self._tick = tick
        self._total = self.now() + limits.total_s
        self._tick_s = pace(write_s, limits.first_byte_s, limits.idle_s, limits.total_s, *silences)
        if self._timer is None:
            self._timer = self.loop.call_later(self._tick_s, self._look)

    def expect(self, wait: Stop | None) -> None:
        """From now on this is waited for. Who waits twice for each read sets both for itself."""
        self.wait = wait
        self.since = self.now()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._tick = None
        self._stop = _nobody

    def _limit(self, wait: Stop) -> float:
        seconds: float = self._write_s if wait is Stop.WRITE else getattr(self._limits, wait.value)
        return seconds

    def _look(self) -> None:
        now = self.loop.time()
        late = now - self._timer.when() if self._timer is not None else 0.0
        if late > COARSEST_TICK_S:  # we stood still ourselves: nobody else was slow meanwhile
            self.since += late
        self._timer = self.loop.call_later(self._tick_s, self._look)
        if now >= self._total:
            self._total = float("inf")
            self._stop(Stop.TOTAL)
        elif self.wait is not None and now - self.since >= self._limit(self.wait):
            wait, self.wait = self.wait, None
            self._stop(wait)
        elif self._tick is not None:
            self._tick(now)
