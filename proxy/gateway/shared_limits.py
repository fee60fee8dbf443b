"""Limits that several processes count together, by the same buckets as one process alone.

The state of a key or team is read, changed and written back as one step (``States``); who is
running where is kept by process, with a lease, so that the seats of a dead process become free.
While the store is away each process counts for itself.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from proxy.counters.shared import limit_states
from proxy.counters.states import States, Texts
from proxy.counters.store import LEASE_S, StoreAway
from proxy.record.recorder import recorder

from .directory import NO_LIMITS, Caller
from .keeper import keeper
from .limits import Bucket, Limiter, Meter, Seat, headers_of, limits, take

log = logging.getLogger("proxy.gateway")

PAUSE_S: Final = 5.0

_pool: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="limits")


class Stored(msgspec.Struct):
    """A meter as text. Times are Unix seconds: monotonic clocks differ between machines."""

    requests: tuple[int, float, float] | None = None  # size, left, at
    tokens: tuple[int, float, float] | None = None
    running: dict[str, tuple[int, float]] = {}  # process: seats, and until when they are believed


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Stored).decode


def _read(text: str | None, now: float) -> Stored:
    """What nobody of us can have written is nothing; so are the seats of dead processes."""
    try:
        stored = _decode(text) if text else Stored()
    except msgspec.DecodeError:
        stored = Stored()
    stored.running = {who: said for who, said in stored.running.items() if said[1] > now}
    return stored


def _meter(name: str, stored: Stored) -> Meter:
    requests, tokens = (
        None if said is None else Bucket(*said) for said in (stored.requests, stored.tokens)
    )
    elsewhere = sum(seats for seats, _ in stored.running.values())
    return Meter(name, elsewhere=elsewhere, requests=requests, tokens=tokens)


def _write(stored: Stored, meter: Meter) -> str:
    requests, tokens = (
        None if bucket is None else (bucket.size, bucket.left, bucket.at)
        for bucket in (meter.requests, meter.tokens)
    )
    return _encode(Stored(requests, tokens, stored.running)).decode()


@dataclass(slots=True)
class SharedSeat(Seat):
    """A seat whose meters are a copy; what becomes of it is written by the pool."""

    common: "Common | None" = None

    def settle(self, tokens: int | None) -> None:
        if self.settled or tokens is None or self.common is None:
            return
        self.settled = True
        self.common.later(self, tokens=self.estimate - tokens)

    def leave(self) -> None:
        if self.common is not None:
            self.common.later(self, seats=1)


class Common:
    """The limits that this process has in common with others."""

    def __init__(self, states: States, holder: str) -> None:
        self._states = states
        self._holder = holder
        self._seated: Counter[str] = Counter()  # only the pool's thread and the keeper look
        self._again = 0.0

    @property
    def away(self) -> bool:
        return time.monotonic() < self._again

    async def taken(self, caller: Caller, estimate: int) -> SharedSeat:
        """A seat in all meters. Raises Refusal 429 or StoreAway."""
        taking = _pool.submit(self.take, caller, estimate)
        try:
            return await asyncio.wrap_future(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(self._unwanted)
            raise
        except StoreAway as exc:
            log.warning("limits: %s; each process counts for itself meanwhile", exc)
            self._again = time.monotonic() + PAUSE_S
            raise

    def take(self, caller: Caller, estimate: int) -> SharedSeat:
        team = caller.team
        names = (f"key {caller.meter}", f"team {team.name}")
        meters: list[Meter] = []

        def change(texts: Texts) -> Sequence[str]:
            now = time.time()
            stored = [_read(text, now) for text in texts]
            meters[:] = [_meter(name, each) for name, each in zip(names, stored, strict=True)]
            take(list(zip(meters, (caller.limits, team.limits), strict=True)), estimate, now)
            for each in stored:
                self._seat(each, +1, now)
            return [_write(each, meter) for each, meter in zip(stored, meters, strict=True)]

        self._states.update(names, change)
        self._seated.update(names)
        seat = SharedSeat(tuple(meters), estimate, common=self)
        seat.headers = headers_of(seat.meters)
        return seat

    def look(self, names: Sequence[str]) -> list[Meter]:
        """The meters as they are, times in Unix seconds. Raises StoreAway."""
        now = time.time()
        texts = self._states.read(names)
        return [_meter(name, _read(text, now)) for name, text in zip(names, texts, strict=True)]

    def later(self, seat: Seat, *, tokens: float = 0, seats: int = 0) -> None:
        _pool.submit(self.give, seat, tokens, seats)

    def give(self, seat: Seat, tokens: float, seats: int) -> None:
        """Give tokens back (or take more), and seats."""
        names = [meter.name for meter in seat.meters]

        def change(texts: Texts) -> Sequence[str]:
            now = time.time()
            changed = []
            for name, text in zip(names, texts, strict=True):
                stored = _read(text, now)
                meter = _meter(name, stored)
                if meter.tokens is not None:
                    meter.tokens.left += tokens
                self._seat(stored, -seats, now)
                changed.append(_write(stored, meter))
            return changed

        self._seated.subtract(dict.fromkeys(names, seats))
        try:
            self._states.update(names, change)
        except StoreAway as exc:
            log.warning("limits: %s; a seat becomes free when its lease ends", exc)

    def renew(self) -> None:
        """We live: our seats are believed for another lease. Raises StoreAway."""

        def change(texts: Texts) -> Sequence[str]:
            now = time.time()
            stored = _read(texts[0], now)
            if self._seated[name] > 0:
                stored.running[self._holder] = (self._seated[name], now + LEASE_S)
            else:
                stored.running.pop(self._holder, None)
            return [_write(stored, _meter(name, stored))]

        for name in [*self._seated]:
            self._states.update([name], change)
            if self._seated[name] <= 0:
                del self._seated[name]

    def _seat(self, stored: Stored, seats: int, now: float) -> None:
        mine = stored.running.get(self._holder, (0, 0.0))[0] + seats
        if mine > 0:
            stored.running[self._holder] = (mine, now + LEASE_S)
        else:
            stored.running.pop(self._holder, None)

    def _unwanted(self, taking: "Future[SharedSeat]") -> None:
        if not taking.cancelled() and taking.exception() is None:
            self.later(taking.result(), seats=1)


_common: dict[int, Common] = {}


def common() -> Common | None:
    """None: this process serves alone."""
    states = limit_states()
    if states is None:
        return None
    made = _common.get(id(states))
    if made is None:
        made = _common[id(states)] = Common(states, recorder.worker)
        keeper.renewals.append(made.renew)
        _pool.submit(keeper.start)
    return made


async def take_seat(caller: Caller, estimate: int, limiter: Limiter = limits) -> Seat:
    """Let a request in, or raise Refusal 429 that says which limit and when to come back."""
    limited = caller.limits is not NO_LIMITS or caller.team.limits is not NO_LIMITS
    shared = common() if limited else None
    if shared is not None and not shared.away:
        with suppress(StoreAway):
            return await shared.taken(caller, estimate)
    return limiter.take(caller, estimate)


@asynccontextmanager
async def admit(caller: Caller, estimate: int, limiter: Limiter = limits) -> AsyncIterator[Seat]:
    """A seat for as long as the ``async with`` lasts."""
    seat = await take_seat(caller, estimate, limiter)
    try:
        yield seat
    finally:
        seat.leave()
