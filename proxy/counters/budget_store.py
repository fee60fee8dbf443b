"""The interface of a store of budget counters, implemented by a SQLite file and by Redis.

A counter is the spending of one budget in one period. It consists of ``spent``, the cost of the
budget's rows in the ledger, and of one reservation for each request whose cost is not in ``spent``
yet. A reservation is open while its request runs (its amount is the request's worst case, and it
expires if its process dies), then settled (its amount is the actual cost, until the request's row
is in the ledger). So a counter can always be rebuilt from the ledger.

A store also has the sum of the settled amounts, and for each process one lease with the sum of
its open amounts. So the time of a call does not depend on the number of reservations, which grows
without a limit while the database is unavailable.

Amounts are nano-dollars. Every method is atomic and thread-safe, and raises StoreUnavailable when
the file or Redis cannot be reached.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

LEASE_S: Final = 20.0
"""Seconds after which the open reservations of a process expire if it does not renew its lease."""
BATCH: Final = 1_000
"""The maximum number of reservations that one call reads or changes, because other calls wait until
it ends."""


THRESHOLDS: Final = (80, 100)
"""Shares of a budget, in percent. A notice is sent when its used amount reaches one of them."""


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


@dataclass(frozen=True, slots=True)
class BudgetLimit:
    """A counter in which to reserve an amount, and its limit in nano-dollars; None: no limit."""

    counter: str
    limit: int | None


@dataclass(frozen=True, slots=True)
class Standing:
    """The values of a counter, in nano-dollars."""

    spent: int  # cost of the requests in the ledger
    settled: int  # cost of closed requests that are not in the ledger yet
    reserved: int  # worst-case cost of running requests

    @property
    def used(self) -> int:
        return self.spent + self.settled

    def reached(self, limit: int) -> list[int]:
        """Return the thresholds of a budget with this limit that the used amount has reached."""
        return UsedChange(-1, self.used).crossed(limit)


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


@dataclass(frozen=True, slots=True)
class ReservationResult:
    """The result of ``reserve``: the amount was reserved if both fields are empty."""

    unknown: tuple[str, ...] = ()
    """Counters whose ``spent`` is not set. Nothing was reserved; call ``publish``, then retry."""
    full: tuple[tuple[str, Standing], ...] = ()
    """Counters whose limit would be exceeded, with their values. Nothing was reserved."""

    @property
    def granted(self) -> bool:
        return not self.unknown and not self.full


class BudgetStore(Protocol):
    """A store of budget counters; ``request_id`` is the request's id in the ledger.

    ``holder`` identifies the process that made a reservation.
    """

    def reserve(
        self, request_id: str, holder: str, amount: int, limits: Sequence[BudgetLimit]
    ) -> ReservationResult:
        """Reserve ``amount`` in all counters, or in none of them."""
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

    def standing(self, counter: str) -> Standing | None:
        """Return the counter's values; None if ``publish`` was not called for it yet."""
        ...

    def standings(self, counters: Collection[str]) -> dict[str, Standing]:
        """Return the values of the counters for which ``publish`` was called.

        Each counter is read atomically, but the store may change between two of them.
        """
        ...

    def renew(self, holder: str, counters: Collection[str]) -> None:
        """Let the holder's open reservations expire ``LEASE_S`` from now."""
        ...

    def forget(self, counters: Collection[str]) -> None:
        """Delete the counters of ended periods."""
        ...
