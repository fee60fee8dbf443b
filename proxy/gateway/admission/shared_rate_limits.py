"""Rate limits that several processes share. The token buckets work as in a single process.

The limit state of a key or team is read, changed and written in one atomic operation. The store
counts running requests per process with a lease, so that the slots of a dead process become free.
While the store is unavailable, each process counts only its own requests.
"""

import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from proxy.counters.backends import limit_states
from proxy.counters.budget_store import LEASE_S, StoreUnavailable
from proxy.counters.shared_state import Texts
from proxy.gateway.snapshot.config_snapshot import NO_LIMITS, Caller, Limits
from proxy.ledger.recorder import recorder

from .budget_maintenance import budget_maintenance
from .counter_thread import CounterThread
from .rate_limits import (
    Bucket,
    ConcurrencySlot,
    Limiter,
    LimitState,
    limits,
    limits_by_state,
    rate_limit_headers,
    take_slot,
)

log = logging.getLogger("proxy.gateway")

PAUSE_S: Final = 5.0

thread: Final = CounterThread("limits")


class StoredLimitState(msgspec.Struct):
    """A limit state as stored.

    Times are Unix seconds, as monotonic clocks differ between machines.
    """

    requests: tuple[int, float, float] | None = None  # size, left, time of the last refill
    tokens: tuple[int, float, float] | None = None
    running: dict[str, tuple[int, float]] = {}  # process -> number of slots, end of the lease


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(StoredLimitState).decode


def read_state(text: str | None, now: float) -> StoredLimitState:
    """Decode a stored limit state; drop expired leases.

    A malformed text counts as an empty state.
    """
    try:
        stored = _decode(text) if text else StoredLimitState()
    except msgspec.DecodeError:
        stored = StoredLimitState()
    stored.running = {who: lease for who, lease in stored.running.items() if lease[1] > now}
    return stored


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitChange:
    """A change of the limit states of a request; the Lua script computes the same.

    Adds ``tokens`` to the token buckets and ``slots`` to the running requests of ``holder``.
    """

    names: Sequence[str]
    holder: str
    now: float
    """Unix seconds."""
    take: Sequence[Limits] = ()
    """The limits of each state, if the change takes a slot for a request; then it is refused with
    HttpError 429 if a limit is reached."""
    estimate: int = 0
    tokens: float = 0
    slots: int = 0
    held: int | None = None
    """The number of slots that the holder has; None: as counted."""

    def __call__(self, texts: Texts) -> Sequence[str]:
        stored = [read_state(text, self.now) for text in texts]
        states = [_state_from(*each) for each in zip(self.names, stored, strict=True)]
        if self.take:
            pairs = list(zip(states, self.take, strict=True))
            take_slot(pairs, self.estimate, self.now)
        for each, state in zip(stored, states, strict=True):
            if state.tokens is not None:
                state.tokens.left += self.tokens
            count = each.running.get(self.holder, (0, 0.0))[0] + self.slots
            count = count if self.held is None else self.held
            if count > 0:
                each.running[self.holder] = (count, self.now + LEASE_S)
            else:
                each.running.pop(self.holder, None)
        return [_write(each, state) for each, state in zip(stored, states, strict=True)]

    @property
    def arguments(self) -> Sequence[object]:
        tokens = -self.estimate if self.take else self.tokens
        held = "" if self.held is None else self.held
        return (
            repr(self.now), self.holder, LEASE_S, int(bool(self.take)), self.estimate, tokens,
            self.slots, held,
        )  # fmt: skip

    @property
    def limit_arguments(self) -> Sequence[Sequence[object]]:
        return [
            ["" if size is None else size for size in (each.rpm, each.tpm, each.concurrency)]
            for each in self.take or [NO_LIMITS] * len(self.names)
        ]


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

    The thread of the limits writes changes to the store.
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


class LimitStates(Protocol):
    """A store of limit states: a file of this machine, or Redis with a failover."""

    def update(self, names: Sequence[str], change: LimitChange) -> Sequence[str]: ...

    def read(self, names: Sequence[str]) -> Texts: ...


class SharedLimiter:
    """The rate limits that this process shares with other processes."""

    def __init__(
        self, states: LimitStates, holder: str, clock: Callable[[], float] = time.time
    ) -> None:
        """``clock``: returns Unix seconds."""
        self.states = states
        self._clock = clock
        self._holder = holder
        # slots by limit state; the thread of the limits and the maintenance thread use it
        self.taken: Counter[str] = Counter()
        self._retry_at = 0.0

    @property
    def is_unavailable(self) -> bool:
        return time.monotonic() < self._retry_at

    async def acquire_async(
        self, caller: Caller, estimate: int, model: str = ""
    ) -> SharedConcurrencySlot:
        """Take a concurrency slot for the caller's key and team.

        Raises HttpError 429, HttpError 529 if it takes too long, or StoreUnavailable.
        """
        acquisition = thread.submit(self.acquire, caller, estimate, model)
        try:
            return await thread.wait_for(acquisition)
        except StoreUnavailable as exc:
            log.warning("limits: %s; each process counts for itself until it is back", exc)
            self._retry_at = time.monotonic() + PAUSE_S
            raise
        except BaseException:  # canceled or shed: the thread may still take a slot
            acquisition.add_done_callback(self._release_unused)
            raise

    def acquire(self, caller: Caller, estimate: int, model: str = "") -> SharedConcurrencySlot:
        now = self._clock()
        names, take = zip(*limits_by_state(caller, model), strict=True)
        change = LimitChange(
            names=names, holder=self._holder, now=now, estimate=estimate, slots=1, take=take
        )
        texts = self.states.update(names, change)
        self.taken.update(names)
        states = tuple(
            _state_from(name, read_state(text, now))
            for name, text in zip(names, texts, strict=True)
        )
        slot = SharedConcurrencySlot(states, estimate, limiter=self)
        slot.headers = rate_limit_headers(slot.states)
        return slot

    def read_states(self, names: Sequence[str]) -> list[LimitState]:
        """Return the current limit states, with times in Unix seconds. Raises StoreUnavailable."""
        now = self._clock()
        texts = self.states.read(names)
        return [
            _state_from(name, read_state(text, now))
            for name, text in zip(names, texts, strict=True)
        ]

    def release_later(self, slot: ConcurrencySlot, *, tokens: float = 0, slots: int = 0) -> None:
        thread.submit(self.release, slot, tokens, slots)

    def release(self, slot: ConcurrencySlot, tokens: float, slots: int) -> None:
        """Add ``tokens``, which may be negative, to the token buckets, and free ``slots`` slots."""
        names = [state.name for state in slot.states]
        self.taken.subtract(dict.fromkeys(names, slots))
        change = LimitChange(
            names=names, holder=self._holder, now=self._clock(), tokens=tokens, slots=-slots
        )
        try:
            self.states.update(names, change)
        except StoreUnavailable as exc:
            log.warning("limits: %s; the slot is free when its lease ends", exc)

    def renew(self) -> None:
        """Extend the leases of this process's slots in the store. Raises StoreUnavailable."""
        for name in [*self.taken]:
            held = max(0, self.taken[name])
            change = LimitChange(names=[name], holder=self._holder, now=self._clock(), held=held)
            self.states.update([name], change)
            if self.taken[name] <= 0:
                del self.taken[name]

    def _release_unused(self, acquisition: "Future[SharedConcurrencySlot]") -> None:
        if not acquisition.cancelled() and acquisition.exception() is None:
            self.release_later(acquisition.result(), slots=1)


shared_limiters: dict[int, SharedLimiter] = {}


def shared_limiter() -> SharedLimiter | None:
    """Return the limiter shared with other processes, or None if there is only one process."""
    states = limit_states()
    if states is None:
        return None
    limiter = shared_limiters.get(id(states))
    if limiter is None:
        limiter = shared_limiters[id(states)] = SharedLimiter(states, recorder.worker)
        budget_maintenance.renewals.append(limiter.renew)
        thread.submit(budget_maintenance.start)
    return limiter


async def acquire_slot(
    caller: Caller,
    estimate: int,
    limiter: Limiter = limits,
    find_shared: Callable[[], SharedLimiter | None] = shared_limiter,
    *,
    model: str,
) -> ConcurrencySlot:
    """Take a concurrency slot. Raises HttpError 429, which names the limit and when to retry."""
    shared = find_shared() if _is_limited(caller) else None
    if shared is not None and not shared.is_unavailable:
        with suppress(StoreUnavailable):
            return await shared.acquire_async(caller, estimate, model)
    return limiter.acquire(caller, estimate, model)


def _is_limited(caller: Caller) -> bool:
    return any(
        owner.limits is not NO_LIMITS or owner.model_limits for owner in (caller, caller.team)
    )


@asynccontextmanager
async def admit(
    caller: Caller,
    estimate: int,
    limiter: Limiter = limits,
    find_shared: Callable[[], SharedLimiter | None] = shared_limiter,
    *,
    model: str,
) -> AsyncIterator[ConcurrencySlot]:
    """Take a concurrency slot for the duration of the ``async with`` block."""
    slot = await acquire_slot(caller, estimate, limiter, find_shared, model=model)
    try:
        yield slot
    finally:
        slot.release()
