"""The clock of one exchange: all its deadlines on one timer, which it shares with others.

A timer for each wait would cost more than the work between two waits. So the exchange only notes
what it waits for and since when; a tick looks a few times a second whether that took too long.
Times are the event loop's own (monotonic), so that no clock jump ends a stream.
"""

import asyncio
import enum
from collections.abc import Callable
from contextvars import Context
from functools import lru_cache
from itertools import chain
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
SLOTS: Final = 8
"""Of a wheel: so many shares of all streams are looked at one after the other in each tick, for a
look may write a checkpoint, and a thousand at once would hold every delta up."""


def _nobody(_: Stop) -> None:
    """Who is told after the end; an exchange that has ended is not to be kept by its watch."""


@lru_cache(maxsize=64)  # nearly all requests have the same ones
def pace(*waits: float) -> float:
    """How often to look, so that each of these many seconds is measured well enough."""
    return min(COARSEST_TICK_S, max(FINEST_TICK_S, min(waits) / 4))


class Wheel:
    """One timer for all watches of an event loop that tick alike: each is in one of its slots.

    A timer for each took 0.7 KB of an open stream, and 0.5 µs of a request. The wheel turns while
    there is anybody on it, in a context of its own: what is logged there is no single request's.
    """

    __slots__ = ("_at", "_context", "_key", "_loop", "_slots", "_step_s", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, tick_s: float) -> None:
        self._loop = loop
        self._key = loop, tick_s
        self._step_s = tick_s / SLOTS
        # In the order in which they came, as a set would not keep it.
        self._slots: list[dict[Watch, None]] = [{} for _ in range(SLOTS)]
        self._at = 0  # the slot that was looked at last
        self._context = Context()
        self._timer = self._timed()

    @classmethod
    def made(cls, loop: asyncio.AbstractEventLoop, tick_s: float) -> "Wheel":
        """A new one, which turns."""
        for key in [key for key in _wheels if key[0].is_closed()]:
            del _wheels[key]
        wheel = _wheels[loop, tick_s] = cls(loop, tick_s)
        return wheel

    def join(self, watch: "Watch") -> "dict[Watch, None]":
        """Look at it a tick from now, and again each tick. Its slot: it leaves when it is out."""
        slot = self._slots[self._at]
        slot[watch] = None
        return slot

    def _turn(self) -> None:
        if not any(self._slots):
            del _wheels[self._key]
            return
        now = self._loop.time()
        late = now - self._timer.when()
        self._timer = self._timed()
        if late > COARSEST_TICK_S:  # we stood still ourselves: nobody else was slow meanwhile
            for watch in chain.from_iterable(self._slots):
                watch.since += late
        self._at = (self._at + 1) % SLOTS
        for watch in self._slots[self._at]:  # later: what one of them raises is not the others'
            self._loop.call_soon(watch.look, now, context=self._context)

    def _timed(self) -> asyncio.TimerHandle:
        return self._loop.call_later(self._step_s, self._turn, context=self._context)


_wheels: Final[dict[tuple[asyncio.AbstractEventLoop, float], Wheel]] = {}
NOWHERE: Final[dict["Watch", None]] = {}


class Watch:
    """Tells ``stop`` when a wait lasts too long, and ``tick`` that time goes by."""

    __slots__ = (
        "_limits",
        "_slot",
        "_stop",
        "_tick",
        "_total",
        "_wheel",
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
        self._wheel: Wheel | None = None  # from ``begin`` to ``end``
        self._slot = NOWHERE  # of the wheel
        self._limits: Timeouts
        self._write_s = 0.0
        self._total = float("inf")
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
        tick_s = pace(write_s, limits.first_byte_s, limits.idle_s, limits.total_s, *silences)
        wheel = _wheels.get((self.loop, tick_s)) or Wheel.made(self.loop, tick_s)
        if self._wheel is not wheel:
            if self._wheel is not None:
                del self._slot[self]
            self._wheel, self._slot = wheel, wheel.join(self)

    def expect(self, wait: Stop | None) -> None:
        """From now on this is waited for. Who waits twice for each read sets both for itself."""
        self.wait = wait
        self.since = self.now()

    def end(self) -> None:
        self._slot.pop(self, None)
        self._wheel = self._tick = None
        self._stop = _nobody

    def _limit(self, wait: Stop) -> float:
        seconds: float = self._write_s if wait is Stop.WRITE else getattr(self._limits, wait.value)
        return seconds

    def look(self, now: float) -> None:
        """Each tick; once more, maybe, when it has ended: then there is nothing to tell."""
        if now >= self._total:
            self._total = float("inf")
            self._stop(Stop.TOTAL)
        elif self.wait is not None and now - self.since >= self._limit(self.wait):
            wait, self.wait = self.wait, None
            self._stop(wait)
        elif self._tick is not None:
            self._tick(now)
