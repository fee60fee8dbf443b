"""Watches of one event loop share a timer, and nothing else."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from types import SimpleNamespace
from typing import Any

import pytest

from proxy.gateway import watch as watches
from proxy.gateway.targets import Timeouts
from proxy.gateway.watch import COARSEST_TICK_S, SLOTS, Stop, Watch, Wheel

LONG = Timeouts(first_byte_s=60, idle_s=60, total_s=60)
SHORT_S = 0.08  # a silence to measure: a tick is a quarter of it
PATIENCE_S = 30


class Patient:
    """A watch that waits for an upstream, and what it told."""

    def __init__(self, *, limits: Timeouts = LONG, silence_s: float = SHORT_S) -> None:
        self.stops: list[Stop] = []
        self.ticks = 0
        self.told = asyncio.Event()
        self.watch = Watch(self._stop, asyncio.get_running_loop())
        self.begin(limits, silence_s)

    def begin(self, limits: Timeouts, silence_s: float) -> None:
        self.watch.begin(limits, 60, self._tick, silence_s)
        self.watch.expect(Stop.IDLE)

    def _stop(self, why: Stop) -> None:
        self.stops.append(why)
        self.told.set()

    def _tick(self, _: float) -> None:
        self.ticks += 1
        self.told.set()

    async def hear(self) -> None:
        self.told.clear()
        await asyncio.wait_for(self.told.wait(), PATIENCE_S)


def wheels() -> list[Wheel]:
    loop = asyncio.get_running_loop()
    return [wheel for (of, _), wheel in watches._wheels.items() if of is loop]


def due(wheel: Wheel) -> None:
    """Its timer's time has come."""
    wheel._timer.cancel()
    wheel._turn()


async def test_all_that_tick_alike_share_a_timer():
    some = [Patient() for _ in range(3 * SLOTS)]

    assert len(wheels()) == 1
    await asyncio.gather(*(one.hear() for one in some))
    for one in some:
        one.watch.end()


async def test_one_that_fails_keeps_none_from_its_deadline():
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: faults.append(told))
    broken, late = Patient(), Patient(limits=Timeouts(idle_s=SHORT_S))
    broken.watch.begin(LONG, 60, lambda _: 1 // 0, SHORT_S)

    while not late.stops:
        await late.hear()

    assert late.stops == [Stop.IDLE]
    assert faults
    broken.watch.end()
    late.watch.end()


async def test_who_has_ended_hears_nothing_more():
    ended, other = Patient(), Patient()
    await other.hear()
    ended.watch.end()
    ticks = ended.ticks

    await other.hear()
    await other.hear()

    assert ended.ticks == ticks
    ended.watch.end()  # twice is once
    other.watch.end()


async def test_another_upstream_may_call_for_another_pace():
    one = Patient(silence_s=60)
    (slow,) = wheels()
    slow._timer.cancel()  # it is due when we say so

    one.begin(LONG, SHORT_S)
    await one.hear()

    assert len(wheels()) == 2
    due(slow)  # nobody is left on it
    assert len(wheels()) == 1
    one.watch.end()


async def test_a_wheel_stops_when_nobody_is_left_and_another_turns():
    first = Patient()
    first.watch.end()
    (wheel,) = wheels()
    due(wheel)
    assert not wheels()

    second = Patient()
    await second.hear()

    assert len(wheels()) == 1
    second.watch.end()


def test_a_closed_loop_is_not_kept():
    async def leave() -> object:
        Patient().watch.end()
        return asyncio.get_running_loop()

    before = asyncio.run(leave())
    asyncio.run(leave())

    assert before not in [of for of, _ in watches._wheels]


class Stalled:
    """An event loop whose time is told, and whose one timer is due when it is asked to be."""

    def __init__(self) -> None:
        self.at = 100.0

    def time(self) -> float:
        return self.at

    def is_closed(self) -> bool:
        return True  # so that nobody keeps its wheel

    def call_later(self, seconds: float, work: Callable[[], None], *, context: Context) -> Any:
        self.due, due = work, self.at + seconds
        return SimpleNamespace(when=lambda: due)

    def call_soon(self, work: Callable[..., None], now: float, *, context: Context) -> None:
        work(now)


@pytest.mark.parametrize(
    ("late_s", "stops"), [(COARSEST_TICK_S - 0.1, [Stop.IDLE]), (COARSEST_TICK_S + 0.1, [])]
)
def test_nobody_else_was_slow_while_we_stood_still(late_s: float, stops: list[Stop]):
    loop, heard = Stalled(), []
    watch = Watch(heard.append, loop)
    watch.begin(Timeouts(idle_s=0.3), 60, lambda _: None)  # a tick is 0.075 s
    watch.expect(Stop.IDLE)

    loop.at += 0.075 / SLOTS + late_s
    loop.due()
    for _ in range(SLOTS - 1):
        loop.due()

    assert heard == stops
