"""Rate limits that several processes share. The token buckets work as in a single process.

The limit state of a key or team is read, changed and written in one atomic operation (``States``).
The store counts running requests per process with a lease, so that the slots of a dead process
become free. While the store is unavailable, each process counts only its own requests.
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

from proxy.counters.backends import limit_states
from proxy.counters.budget_store import LEASE_S, StoreUnavailable
from proxy.counters.shared_state import States, Texts
from proxy.gateway.snapshot.config_snapshot import NO_LIMITS, Caller
from proxy.ledger.recorder import recorder

from .budget_maintenance import budget_maintenance
from .rate_limits import (
    Bucket,
    ConcurrencySlot,
    Limiter,
    LimitState,
    limits,
    rate_limit_headers,
    take_slot,
)

log = logging.getLogger("proxy.gateway")

PAUSE_S: Final = 5.0

_pool: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="limits")


class StoredLimitState(msgspec.Struct):
    """A limit state as stored.

    Times are Unix seconds, as monotonic clocks differ between machines.
    """

    requests: tuple[int, float, float] | None = None  # size, left, time of the last refill
    tokens: tuple[int, float, float] | None = None
    running: dict[str, tuple[int, float]] = {}  # by process: number of slots, end of the lease


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(StoredLimitState).decode


def _read(text: str | None, now: float) -> StoredLimitState:
    """Decode a stored limit state; drop expired leases.

    A malformed text counts as an empty state.
    """
    try:
        stored = _decode(text) if text else StoredLimitState()
    except msgspec.DecodeError:
        stored = StoredLimitState()
    stored.running = {who: lease for who, lease in stored.running.items() if lease[1] > now}
    return stored


def _state_from(name: str, stored: StoredLimitState) -> LimitState:
    requests, tokens = (
        None if fields is None else Bucket(*fields) for fields in (stored.requests, stored.tokens)
    )
    elsewhere = sum(slots for slots, _ in stored.running.values())
    return LimitState(name, elsewhere=elsewhere, requests=requests, tokens=tokens)


def _write(stored: StoredLimitState, state: LimitState) -> str:
    requests, tokens = (
        None if bucket is None else (bucket.size, bucket.left, bucket.at)
        for bucket in (state.requests, state.tokens)
    )
    return _encode(StoredLimitState(requests, tokens, stored.running)).decode()


@dataclass(slots=True)
class SharedConcurrencySlot(ConcurrencySlot):
    """A concurrency slot with copies of the limit states.

    The thread pool writes changes to the store.
    """

    limiter: "SharedLimiter | None" = None

    def settle(self, tokens: int | None) -> None:
        if self.settled or tokens is None or self.limiter is None:
            return
        self.settled = True
        self.limiter.release_later(self, tokens=self.estimate - tokens)

    def release(self) -> None:
        if self.limiter is not None:
            self.limiter.release_later(self, slots=1)


class SharedLimiter:
    """The rate limits that this process shares with other processes."""

    def __init__(self, states: States, holder: str) -> None:
        self._states = states
        self._holder = holder
        # slots by limit state; the thread pool and the maintenance thread use it
        self._taken: Counter[str] = Counter()
        self._retry_at = 0.0

    @property
    def is_unavailable(self) -> bool:
        return time.monotonic() < self._retry_at

    async def acquire_async(self, caller: Caller, estimate: int) -> SharedConcurrencySlot:
        """Take a concurrency slot for the caller's key and team.

        Raises HttpError 429 or StoreUnavailable.
        """
        acquisition = _pool.submit(self.acquire, caller, estimate)
        try:
            return await asyncio.wrap_future(acquisition)
        except asyncio.CancelledError:
            acquisition.add_done_callback(self._release_cancelled)
            raise
        except StoreUnavailable as exc:
            log.warning("limits: %s; each process counts for itself until it is back", exc)
            self._retry_at = time.monotonic() + PAUSE_S
            raise

    def acquire(self, caller: Caller, estimate: int) -> SharedConcurrencySlot:
        team = caller.team
        names = (f"key {caller.meter}", f"team {team.name}")
        states: list[LimitState] = []

        def change(texts: Texts) -> Sequence[str]:
            now = time.time()
            stored = [_read(text, now) for text in texts]
            states[:] = [_state_from(name, each) for name, each in zip(names, stored, strict=True)]
            take_slot(list(zip(states, (caller.limits, team.limits), strict=True)), estimate, now)
            for each in stored:
                self._add_slots(each, +1, now)
            return [_write(each, state) for each, state in zip(stored, states, strict=True)]

        self._states.update(names, change)
        self._taken.update(names)
        slot = SharedConcurrencySlot(tuple(states), estimate, limiter=self)
        slot.headers = rate_limit_headers(slot.states)
        return slot

    def read_states(self, names: Sequence[str]) -> list[LimitState]:
        """Return the current limit states, with times in Unix seconds. Raises StoreUnavailable."""
        now = time.time()
        texts = self._states.read(names)
        return [
            _state_from(name, _read(text, now)) for name, text in zip(names, texts, strict=True)
        ]

    def release_later(self, slot: ConcurrencySlot, *, tokens: float = 0, slots: int = 0) -> None:
        _pool.submit(self.release, slot, tokens, slots)

    def release(self, slot: ConcurrencySlot, tokens: float, slots: int) -> None:
        """Add ``tokens``, which may be negative, to the token buckets, and free ``slots`` slots."""
        names = [state.name for state in slot.states]

        def change(texts: Texts) -> Sequence[str]:
            now = time.time()
            changed = []
            for name, text in zip(names, texts, strict=True):
                stored = _read(text, now)
                state = _state_from(name, stored)
                if state.tokens is not None:
                    state.tokens.left += tokens
                self._add_slots(stored, -slots, now)
                changed.append(_write(stored, state))
            return changed

        self._taken.subtract(dict.fromkeys(names, slots))
        try:
            self._states.update(names, change)
        except StoreUnavailable as exc:
            log.warning("limits: %s; the slot is free when its lease ends", exc)

    def renew(self) -> None:
        """Extend the leases of this process's slots in the store. Raises StoreUnavailable."""

        def change(texts: Texts) -> Sequence[str]:
            now = time.time()
            stored = _read(texts[0], now)
            if self._taken[name] > 0:
                stored.running[self._holder] = (self._taken[name], now + LEASE_S)
            else:
                stored.running.pop(self._holder, None)
            return [_write(stored, _state_from(name, stored))]

        for name in [*self._taken]:
            self._states.update([name], change)
            if self._taken[name] <= 0:
                del self._taken[name]

    def _add_slots(self, stored: StoredLimitState, slots: int, now: float) -> None:
        count = stored.running.get(self._holder, (0, 0.0))[0] + slots
        if count > 0:
            stored.running[self._holder] = (count, now + LEASE_S)
        else:
            stored.running.pop(self._holder, None)

    def _release_cancelled(self, acquisition: "Future[SharedConcurrencySlot]") -> None:
        if not acquisition.cancelled() and acquisition.exception() is None:
            self.release_later(acquisition.result(), slots=1)


_shared_limiters: dict[int, SharedLimiter] = {}


def shared_limiter() -> SharedLimiter | None:
    """Return the limiter shared with other processes, or None if there is only one process."""
    states = limit_states()
    if states is None:
        return None
    limiter = _shared_limiters.get(id(states))
    if limiter is None:
        limiter = _shared_limiters[id(states)] = SharedLimiter(states, recorder.worker)
        budget_maintenance.renewals.append(limiter.renew)
        _pool.submit(budget_maintenance.start)
    return limiter


async def acquire_slot(caller: Caller, estimate: int, limiter: Limiter = limits) -> ConcurrencySlot:
    """Take a concurrency slot. Raises HttpError 429, which names the limit and when to retry."""
    limited = caller.limits is not NO_LIMITS or caller.team.limits is not NO_LIMITS
    shared = shared_limiter() if limited else None
    if shared is not None and not shared.is_unavailable:
        with suppress(StoreUnavailable):
            return await shared.acquire_async(caller, estimate)
    return limiter.acquire(caller, estimate)


@asynccontextmanager
async def admit(
    caller: Caller, estimate: int, limiter: Limiter = limits
) -> AsyncIterator[ConcurrencySlot]:
    """Take a concurrency slot for the duration of the ``async with`` block."""
    slot = await acquire_slot(caller, estimate, limiter)
    try:
        yield slot
    finally:
        slot.release()
