"""Each request measures its own waits, on one timer that checks a few times a second."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from proxy.gateway.http.deadlines import (
    LONGEST_TICK_S,
    SHORTEST_TICK_S,
    CancelReason,
    Deadlines,
    tick_interval,
)
from proxy.models.setup.columns import Timeouts
from tests.for_each import for_each

LONG = Timeouts(first_byte_s=60, idle_s=60, total_s=60)
SHORT_S = 0.08  # a silence to measure: a tick is a quarter of it
PATIENCE_S = 30


class Waiting:
    """A request that waits for its upstream; it collects the calls of its deadlines."""

    def __init__(self, *, limits: Timeouts = LONG, silence_s: float = SHORT_S) -> None:
        self.reasons: list[CancelReason] = []
        self.ticks = 0
        self.called = asyncio.Event()
        self.deadlines = Deadlines(self._cancel, asyncio.get_running_loop())
        self.begin(limits, silence_s)

    def begin(self, limits: Timeouts, silence_s: float) -> None:
        self.deadlines.begin(limits, 60, self._tick, silence_s)
        self.deadlines.start_wait(CancelReason.IDLE)

    def _cancel(self, reason: CancelReason) -> None:
        self.reasons.append(reason)
        self.called.set()

    def _tick(self, _: float) -> None:
        self.ticks += 1
        self.called.set()

    async def next_call(self) -> None:
        self.called.clear()
        await asyncio.wait_for(self.called.wait(), PATIENCE_S)


async def test_a_tick_that_raises_delays_no_deadline():
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    limits = Timeouts(idle_s=SHORT_S)
    broken, other = Waiting(limits=limits), Waiting(limits=limits)
    broken.deadlines.begin(limits, 60, lambda _: 1 // 0, SHORT_S)

    while not (broken.reasons and other.reasons):
        await (broken if other.reasons else other).next_call()

    assert broken.reasons == other.reasons == [CancelReason.IDLE]
    assert errors
    broken.deadlines.end()
    other.deadlines.end()


async def test_after_the_end_nothing_is_called():
    ended, other = Waiting(), Waiting()
    await other.next_call()
    ended.deadlines.end()
    ticks = ended.ticks

    await other.next_call()
    await other.next_call()

    assert ended.ticks == ticks
    ended.deadlines.end()  # a second call does nothing
    other.deadlines.end()


async def test_the_next_attempt_may_have_shorter_waits():
    one = Waiting(silence_s=60)

    one.begin(Timeouts(idle_s=SHORT_S), SHORT_S)
    while not one.reasons:
        await one.next_call()

    assert one.reasons == [CancelReason.IDLE]
    one.deadlines.end()


@for_each(
    ("waits", "seconds"),
    [((60, 120), LONGEST_TICK_S), ((60, 1), 0.25), ((0.001, 60), SHORTEST_TICK_S)],
)
def test_the_shortest_wait_sets_the_tick_interval(waits: tuple[float, ...], seconds: float):
    assert tick_interval(*waits) == seconds


class FakeLoop:
    """An event loop with a clock that the test sets; it records each timer."""

    def __init__(self) -> None:
        self.at = 100.0
        self.timers: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.at

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Any:
        self.timers.append(callback)
        due = self.at + seconds
        return SimpleNamespace(when=lambda: due, cancel=lambda: None)


@for_each(
    ("late_s", "reasons"), [(LONGEST_TICK_S - 0.1, [CancelReason.IDLE]), (LONGEST_TICK_S + 0.1, [])]
)
def test_time_in_which_this_process_did_not_run_is_not_charged_to_the_upstream(
    late_s: float, reasons: list[CancelReason]
):
    loop, cancelled = FakeLoop(), []
    deadlines = Deadlines(cancelled.append, loop)
    deadlines.begin(Timeouts(idle_s=0.3), 60, lambda _: None)  # a tick is 0.075 s
    deadlines.start_wait(CancelReason.IDLE)

    loop.at += 0.075 + late_s
    loop.timers[-1]()

    assert cancelled == reasons


def test_events_of_a_response_do_not_reset_the_timer():
    loop = FakeLoop()
    deadlines = Deadlines(lambda _: None, loop)
    deadlines.begin(LONG, 60, lambda _: None)

    for _ in range(100):
        deadlines.start_wait(CancelReason.IDLE)
        deadlines.start_wait(CancelReason.WRITE)
    deadlines.begin(LONG, 60, lambda _: None)  # another attempt with the same limits

    assert len(loop.timers) == 1
