"""Rate limits of a key and its team, for all models or some: requests, tokens and concurrency.

The size of a token bucket is the limit of one minute, and the bucket refills evenly. Admission
takes the estimated tokens of a request; ``settle`` corrects the estimate when the usage is known.
Every outcome of a request releases its concurrency slot. A single process counts in memory; several
processes share the counts. While the store is unavailable, each process counts only its own.
"""

import fnmatch
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import ClassVar, Final

from proxy.admission_checks import CheckFinding
from proxy.conf import conf
from proxy.counters.backends import shared_store
from proxy.counters.failover import PAUSE_S
from proxy.counters.memory_store import MemoryStore
from proxy.counters.store import Kind, LimitCounters, Standing, Store, StoreUnavailable, Take
from proxy.gateway.http.errors import Header, HttpError
from proxy.gateway.snapshot.config_snapshot import NO_LIMITS, Caller, Limits
from proxy.ledger.recorder import recorder

from .budget_maintenance import budget_maintenance
from .checks import commit, finding
from .counter_thread import CounterThread

log = logging.getLogger("proxy.gateway")

MINUTE_S: Final = 60.0
MINUTE_US: Final = 60_000_000
RENEWED: Final = 20
"""Counters of slots that one call renews: requests wait for one call, not for all of them."""

thread: Final = CounterThread("limits")


@dataclass(slots=True)
class Bucket:
    """A token bucket that refills evenly, by ``size`` a minute; for what one process limits."""

    size: int
    left: float
    at: float

    def refill(self, now: float) -> None:
        self.left = min(self.size, self.left + (now - self.at) * self.size / MINUTE_S)
        self.at = now

    def seconds_until(self, amount: float) -> float:
        """Return the seconds until the bucket has ``amount`` or is full, whichever is first."""
        return max(0.0, (min(amount, self.size) - self.left) * MINUTE_S / self.size)


class Limit:
    """One limit of a key or team: a ``Check`` for a request that takes ``units`` of it."""

    __slots__ = ("owner", "size", "subject", "take", "units")
    name: ClassVar[str]

    def __init__(self, owner: str, subject: str, counter: str, size: int, units: int) -> None:
        """``owner``: "key" or "team"; ``subject``: as error messages name it, with the models."""
        self.owner = owner
        self.subject = subject
        self.size = size
        self.units = units
        self.take = self.take_from(counter)

    def take_from(self, counter: str) -> Take:
        raise NotImplementedError

    def used(self, standing: Standing) -> float:
        """Return the units in use; more than ``size`` if an estimate was too low."""
        raise NotImplementedError

    def seconds_until(self, units: float, standing: Standing) -> float:
        """Return the seconds until so many units are free."""
        raise NotImplementedError

    def evaluate(self, standing: Standing | None) -> CheckFinding:
        passes = None if standing is None else self.take.fits(standing)
        found = finding(f"{self.owner}_{self.name}", self.subject, passes=passes)
        if standing is None:
            return found
        used = math.ceil(self.used(standing))
        return replace(found, limit=self.size, used=used, takes=self.units)

    def error(self, standing: Standing) -> HttpError:
        seconds = max(1, int(self.seconds_until(self.units, standing) + 0.999))
        reset = datetime.fromtimestamp(time.time() + seconds, UTC).strftime("%H:%M:%SZ")
        return HttpError(
            429,
            "rate_limit_error",
            f"{self.subject} is at its limit: {self.name} {self.size}, used "
            f"{math.ceil(self.used(standing))}; try again in {seconds} s, at {reset}",
            {
                "retry-after": str(seconds),
                **{
                    name.decode(): text.decode()
                    for name, text in rate_limit_headers([(self, standing)])
                },
            },
            detail=self.name,
        )


class Concurrency(Limit):
    __slots__ = ()
    name = "concurrency"

    def take_from(self, counter: str) -> Take:
        return Take(counter, 1, self.size, Kind.SLOTS)

    def used(self, standing: Standing) -> float:
        return standing.total

    def seconds_until(self, units: float, standing: Standing) -> float:
        del units, standing
        return 1.0


class TokenBucket(Limit):
    """The bucket as a debt: a unit costs its share of a minute, and the debt falls with time."""

    __slots__ = ()
    header: ClassVar[tuple[bytes, ...]]
    """The names of the headers for the limit, what remains, and when the bucket is full."""

    def take_from(self, counter: str) -> Take:
        cost = self.cost(self.units)
        # A request that is larger than the bucket needs a full one.
        return Take(counter, cost, max(MINUTE_US, cost), Kind.RATE)

    def cost(self, units: int) -> int:
        return units * MINUTE_US // self.size

    def used(self, standing: Standing) -> float:
        return standing.spent * self.size / MINUTE_US

    def seconds_until(self, units: float, standing: Standing) -> float:
        missing = min(units, self.size) - (self.size - self.used(standing))
        return max(0.0, missing * MINUTE_S / self.size)

    def evaluate(self, standing: Standing | None) -> CheckFinding:
        found = super().evaluate(standing)
        if standing is None:
            return found
        full_s = time.time() + self.seconds_until(self.size, standing)
        return replace(found, resets=datetime.fromtimestamp(full_s, UTC))

    def headers(self, standing: Standing) -> list[Header]:
        full_s = time.time() + self.seconds_until(self.size, standing)
        texts = (
            str(self.size),
            str(max(0, int(self.size - self.used(standing)))),
            datetime.fromtimestamp(full_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        return [(name, text.encode()) for name, text in zip(self.header, texts, strict=True)]


def _header_names(kind: str) -> tuple[bytes, ...]:
    fields = ("limit", "remaining", "reset")
    return tuple(f"anthropic-ratelimit-{kind}-{field}".encode() for field in fields)


class Requests(TokenBucket):
    __slots__ = ()
    name, header = "rpm", _header_names("requests")


class Tokens(TokenBucket):
    __slots__ = ()
    name, header = "tpm", _header_names("tokens")


def limits_of(caller: Caller, estimate: int, model: str) -> list[Limit]:
    """Return the limits of a caller's request for a model, in the order of their evaluation.

    Counters go by the ids of team and key. The size of a bucket is part of its counter's name, so a
    changed limit begins with a full bucket.
    """
    if not _is_limited(caller):
        return []
    team = caller.team
    owners = (
        ("key", f"key {caller.meter}", f"limit {team.id} key {caller.meter_id}", caller),
        ("team", f"team {team.name}", f"limit {team.id} team", team),
    )
    return [
        limit
        for owner, subject, counter, row in owners
        for suffix, sizes in (
            ("", row.limits),
            *(
                (f" for {pattern}", sizes)
                for pattern, sizes in row.model_limits
                if fnmatch.fnmatchcase(model, pattern)
            ),
        )
        if sizes is not NO_LIMITS
        for limit in _limits(owner, subject + suffix, counter + suffix, sizes, estimate)
    ]


def _limits(
    owner: str, subject: str, counter: str, sizes: Limits, estimate: int
) -> Iterator[Limit]:
    if (size := sizes.concurrency) is not None:
        yield Concurrency(owner, subject, f"{counter} concurrency", size, 1)
    if (size := sizes.rpm) is not None:
        yield Requests(owner, subject, f"{counter} rpm {size}", size, 1)
    if (size := sizes.tpm) is not None:
        yield Tokens(owner, subject, f"{counter} tpm {size}", size, estimate)


def rate_limit_headers(standings: Sequence[tuple[Limit, Standing]]) -> tuple[Header, ...]:
    """Return Anthropic's rate limit headers.

    They describe the bucket with the smallest share left.
    """
    headers: list[Header] = []
    for kind in (Requests, Tokens):
        buckets = [each for each in standings if isinstance(each[0], kind)]
        if buckets:
            limit, standing = max(buckets, key=lambda each: each[1].spent)
            headers += limit.headers(standing)  # type: ignore[attr-defined]
    return tuple(headers)


class ConcurrencySlot:
    """What an admitted request holds of all limits that apply to it."""

    __slots__ = ("_limiter", "_limits", "headers", "settled")

    def __init__(
        self,
        limiter: "Limiter | None" = None,
        limits: Sequence[Limit] = (),
        headers: tuple[Header, ...] = (),
    ) -> None:
        self._limiter = limiter
        self._limits = limits
        self.headers = headers
        self.settled = not limits
        """Whether the token estimate is corrected, or there is no estimate."""

    def settle(self, tokens: int | None) -> None:
        """Replace the estimate by the tokens used.

        ``tokens`` None: unknown, so the estimate stays.
        """
        if self.settled or tokens is None:
            return
        self.settled = True
        self._add(
            [
                Take(each.take.counter, each.cost(tokens) - each.take.amount, kind=Kind.RATE)
                for each in self._limits
                if isinstance(each, Tokens)
            ]
        )

    def release(self) -> None:
        """Free the concurrency slot. Call this when the request has ended."""
        self._add([Take(counter, -1, kind=Kind.SLOTS) for counter in self.counters])

    @property
    def counters(self) -> list[str]:
        """The counters in which the request holds a slot."""
        return [each.take.counter for each in self._limits if isinstance(each, Concurrency)]

    def _add(self, takes: Sequence[Take]) -> None:
        if takes and self._limiter is not None:
            self._limiter.add_later(takes)


UNLIMITED: Final = ConcurrencySlot()
"""The slot of a caller without limits, which holds nothing."""


class Limiter:
    """The rate limits of keys and teams, counted in this process."""

    def __init__(self, store: LimitCounters | None = None, holder: str = "") -> None:
        self.store = MemoryStore() if store is None else store
        self.holder = holder

    def acquire(self, caller: Caller, estimate: int, model: str = "") -> ConcurrencySlot:
        """Take a concurrency slot, which the calling code must release.

        Raises HttpError 429, which names the limit and when to retry.
        """
        limits = limits_of(caller, estimate, model)
        if not limits:
            return UNLIMITED
        taken = commit(limits, lambda takes: self.store.take("", self.holder, takes))
        after = [
            (limit, Standing(standing.spent + limit.take.amount))
            for limit, standing in zip(limits, taken.standings, strict=True)
            if isinstance(limit, TokenBucket)
        ]
        return ConcurrencySlot(self, limits, rate_limit_headers(after))

    def peek(self, limits: Sequence[Limit]) -> list[Standing | None]:
        return self.store.peek([each.take for each in limits]) if limits else []

    def add_later(self, takes: Sequence[Take]) -> None:
        self.store.add(self.holder, takes)


class SharedLimiter(Limiter):
    """The rate limits that this process shares with other processes.

    The thread of the limits makes all changes. So it knows what this process holds, and a renewal
    corrects a store that has missed a change.
    """

    store: Store

    def __init__(self, store: Store, holder: str) -> None:
        super().__init__(store, holder)
        self.held: Counter[str] = Counter()  # slots by counter
        self._retry_at = 0.0

    @property
    def is_unavailable(self) -> bool:
        return time.monotonic() < self._retry_at

    async def acquire_async(
        self, caller: Caller, estimate: int, model: str = ""
    ) -> ConcurrencySlot:
        """Take a concurrency slot for the caller's key and team.

        Raises HttpError 429, HttpError 529 if it takes too long, or StoreUnavailable.
        """
        acquisition = thread.submit(self.acquire, caller, estimate, model)
        try:
            return await thread.wait_for(acquisition)
        except BaseException:  # canceled or shed: the thread may still take a slot
            acquisition.add_done_callback(_release_unused)
            raise

    def acquire(self, caller: Caller, estimate: int, model: str = "") -> ConcurrencySlot:
        if self.is_unavailable:  # an earlier call of the queue failed: do not wait again
            raise StoreUnavailable("an earlier call failed")
        try:
            slot = super().acquire(caller, estimate, model)
        except StoreUnavailable as exc:
            log.warning("limits: %s; each process counts for itself until it is back", exc)
            self._retry_at = time.monotonic() + PAUSE_S
            raise
        self.held.update(slot.counters)
        return slot

    def add_later(self, takes: Sequence[Take]) -> None:
        thread.submit(self.add, takes)

    def add(self, takes: Sequence[Take]) -> None:
        for each in takes:
            if each.kind is Kind.SLOTS:
                self.held[each.counter] += each.amount
        if self.is_unavailable:  # the next renewal corrects the slots
            return
        try:
            self.store.add(self.holder, takes)
        except StoreUnavailable as exc:
            log.warning("limits: %s; the next renewal corrects the slots", exc)

    def renew(self) -> None:
        """Extend the leases of this process's slots in the store. Raises StoreUnavailable."""
        counters = sorted(thread.submit(lambda: [*self.held]).result())  # one team after the other
        for at in range(0, len(counters), RENEWED):
            thread.submit(self._renew, counters[at : at + RENEWED]).result()

    def _renew(self, counters: Sequence[str]) -> None:
        held = {counter: self.held[counter] for counter in counters}
        self.store.renew(self.holder, held)
        for counter, amount in held.items():
            if amount <= 0:
                del self.held[counter]


def _release_unused(acquisition: "Future[ConcurrencySlot]") -> None:
    if not acquisition.cancelled() and acquisition.exception() is None:
        acquisition.result().release()


limits = Limiter()
shared_limiters: dict[int, SharedLimiter] = {}


def shared_limiter() -> SharedLimiter | None:
    """Return the limiter shared with other processes, or None if there is only one process."""
    if conf.workers == 1 and not conf.redis_url:
        return None
    store = shared_store()
    limiter = shared_limiters.get(id(store))
    if limiter is None:
        limiter = shared_limiters[id(store)] = SharedLimiter(store, recorder.worker)
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
    team = caller.team
    return bool(
        caller.limits is not NO_LIMITS
        or team.limits is not NO_LIMITS
        or caller.model_limits
        or team.model_limits
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
