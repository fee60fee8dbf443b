"""The interface of the shared store: a SQLite file of one machine, or Redis for several.

A store only adds and compares numbers: what a number means, and what follows when a limit is
reached, is in ``proxy.gateway.admission``. There are three kinds of counters.

``BUDGET`` is the spending of one budget in one period. It consists of ``spent``, the cost of the
budget's rows in the ledger, and of one reservation for each request whose cost is not in ``spent``
yet. A reservation is open while its request runs (its amount is the request's worst case, and it
expires if its process dies), then settled (its amount is the actual cost, until the request's row
is in the ledger). So a counter can always be rebuilt from the ledger. Amounts are nano-dollars.

``SLOTS`` are units that running requests hold: one lease with their sum for each process.

``RATE`` is a debt in microseconds. What a request takes is added, and time pays it off. It is
stored as the time when it is paid off, so of two values the later one includes the other.

A budget also has the sum of the settled amounts, and for each process one lease with the sum of its
open amounts. So the time of a call does not depend on the number of reservations, which grows
without a limit while the database is unavailable.

Every method is atomic and thread-safe, and raises StoreUnavailable when the file or Redis cannot be
reached. The texts are small states, such as those of the live view.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

LEASE_S: Final = 20.0
"""Seconds after which what a process holds expires if the process does not renew its lease."""
EXPIRE_S: Final = 3_600
"""Seconds after which an unused limit or text expires in Redis."""
LIMITS: Final = "limit "
"""The names of slots and debts begin with ``limit TEAM ``; ``TEAM`` is the id of a team."""
BATCH: Final = 1_000
"""The maximum number of reservations that one call reads or changes, because other calls wait until
it ends."""


THRESHOLDS: Final = (80, 100)
"""Shares of a budget, in percent. A notice is sent when its used amount reaches one of them."""

Texts = list[str | None]
Change = Callable[[Texts], Sequence[str]]


class StoreUnavailable(Exception):
    """The file or server of a shared store cannot be reached, or does not answer in time."""


class StoreReplaced(StoreUnavailable):
    """A new file has replaced the damaged file of a store; nothing was changed in either."""


@contextmanager
def redis_errors_as_unavailable() -> Iterator[None]:
    """Convert any Redis error in the ``with`` block to StoreUnavailable."""
    import redis  # noqa: PLC0415 - most installations have no Redis

    try:
        yield
    except (redis.RedisError, redis.exceptions.RedisClusterException) as exc:
        raise StoreUnavailable(str(exc)) from exc


class Kind(StrEnum):
    BUDGET = "budget"
    SLOTS = "slots"
    RATE = "rate"


class Standing(NamedTuple):
    """The values of a counter: nano-dollars, units, or microseconds of debt (as ``spent``)."""

    spent: int = 0  # cost of the requests in the ledger
    settled: int = 0  # cost of closed requests that are not in the ledger yet
    reserved: int = 0  # worst-case cost, or units, of running requests

    @property
    def used(self) -> int:
        return self.spent + self.settled

    @property
    def total(self) -> int:
        return self.spent + self.settled + self.reserved

    def reached(self, limit: int) -> list[int]:
        """Return the thresholds of a budget with this limit that the used amount has reached."""
        return UsedChange(-1, self.used).crossed(limit)


class Take(NamedTuple):
    """An amount to take from a counter."""

    counter: str
    amount: int
    limit: int | None = None
    """What the counter may hold with the amount; None: any amount."""
    kind: Kind = Kind.BUDGET
    floor: int = 0
    """The counter holds at least this: what is known of it elsewhere. Redis may have lost it."""

    def fits(self, standing: Standing) -> bool:
        return self.limit is None or standing.total + self.amount <= self.limit


class Taken(NamedTuple):
    """The result of ``take``. If not ``granted``, nothing was taken from any counter."""

    granted: bool
    standings: tuple[Standing, ...] = ()
    """The values of the counters before, in the order of the takes; empty if any is unknown."""
    unknown: tuple[str, ...] = ()
    """Budgets whose ``spent`` is not set: call ``publish``, then retry."""


class UsedChange(NamedTuple):
    """The amounts that a counter counts as used (spent and settled) before and after a change."""

    before: int
    after: int

    def crossed(self, limit: int) -> list[int]:
        """Return the thresholds of a budget with this limit that the change has reached."""
        return [
            threshold
            for threshold in THRESHOLDS
            if limit and self.before * 100 < limit * threshold <= self.after * 100
        ]


@dataclass(frozen=True, slots=True)
class AppliedCosts:
    """The result of ``apply_posted``. ``used`` None: the counter is unknown."""

    missing: frozenset[str] = frozenset()
    """Ids of requests without a reservation, whose costs were not added."""
    used: UsedChange | None = None


class LimitCounters(Protocol):
    """Counters of the kinds ``SLOTS`` and ``RATE``; ``holder`` identifies a process."""

    def take(self, request_id: str, holder: str, takes: Sequence[Take]) -> Taken:
        """Take all amounts, or none if one of them does not fit."""
        ...

    def add(self, holder: str, takes: Sequence[Take]) -> None:
        """Add to slots and debts. Unlike ``take``, a debt that is paid off stays so."""
        ...

    def peek(self, takes: Sequence[Take]) -> list[Standing | None]:
        """Return the values of these counters; None for a budget that is unknown."""
        ...


class Store(LimitCounters, Protocol):
    """All counters and texts; ``request_id`` is the request's id in the ledger."""

    def renew(self, holder: str, held: Mapping[str, int | None]) -> None:
        """Let the holder's leases of these counters end ``LEASE_S`` from now.

        An amount replaces what the lease counts; None: it stays, and a lease that ended stays so.
        """
        ...

    def settle(
        self, request_id: str, counters: Collection[str], cost: int
    ) -> dict[str, UsedChange]:
        """Set the reservation to the actual cost; it stays until the request is in the ledger.

        Returns the change of each counter that had a reservation of the request.
        """
        ...

    def release(self, request_id: str, counters: Collection[str]) -> None:
        """Delete the reservation of a request that will not run."""
        ...

    def apply_posted(self, counter: str, costs: Mapping[str, int]) -> AppliedCosts:
        """Add the costs of requests that are now in the ledger to ``spent``.

        The reservations of these requests are deleted. If requests are missing in the counter, the
        caller must call ``publish``.
        """
        ...

    def mark_posted(self, counter: str, request_ids: Collection[str]) -> None:
        """Move the amounts of these reservations to ``spent``; at most ``BATCH`` requests.

        The used amount stays the same. For requests whose rows were found in the ledger, before
        ``publish`` sets the exact sum.
        """
        ...

    def publish(self, counter: str, spent: int) -> Standing:
        """Set ``spent`` to the ledger's sum; delete expired reservations. Return the new values."""
        ...

    def reserved_ids(self, counter: str) -> Iterator[list[str]]:
        """Return the request ids of all reservations, in batches.

        Expired reservations are included. A reservation that changes during the call may be missing
        or be returned twice.
        """
        ...

    def standings(self, counters: Collection[str]) -> dict[str, Standing]:
        """Return the values of the budgets for which ``publish`` was called.

        Each counter is read atomically, but the store may change between two of them.
        """
        ...

    def standing(self, counter: str) -> Standing | None:
        """Return the values of a budget; None if ``publish`` was not called for it yet."""
        return self.standings([counter]).get(counter)

    def forget(self, counters: Collection[str]) -> None:
        """Delete the counters of ended periods."""
        ...

    def close(self) -> None: ...


class TextStore(Protocol):
    def update(self, names: Sequence[str], change: Change) -> Sequence[str]:
        """Replace the texts with these names by the result of ``change``, all or none of them.

        ``change`` gets the current texts (None: missing). It is called again if another process has
        written in between, so it must not have side effects; if it raises, no text is changed.
        """
        ...

    def read(self, names: Sequence[str]) -> Texts:
        """Return the current texts with these names; None for a missing one."""
        ...
