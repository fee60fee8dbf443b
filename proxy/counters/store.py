"""What a store of counters does, whichever engine keeps it: a SQLite file or Redis.

A counter is the spending of one budget in one period. It has three parts: ``spent``, which is the
ledger's own sum, and one *hold* for each request that the ledger's sum does not have yet: reserved
(the worst case, dies with its process) or settled (the real cost, waits until its row is posted).
So a counter can always be made again from the ledger, and never drifts from it for long.

Amounts are nano-dollars. Every method is atomic and may be called from any thread; all raise
``StoreAway`` when the engine cannot be reached.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

LEASE_S: Final = 20.0
"""A reservation whose process no longer renews it ends after so long."""


class StoreAway(Exception):
    """The store cannot be reached or does not answer in time."""


@contextmanager
def asking_redis() -> Iterator[None]:
    """Whatever goes wrong with Redis in here is ``StoreAway``."""
    import redis  # noqa: PLC0415 - most installations have no Redis

    try:
        yield
    except redis.RedisError as exc:
        raise StoreAway(str(exc)) from exc


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A counter that a request is held against; ``limit`` None only counts."""

    counter: str
    limit: int | None


@dataclass(frozen=True, slots=True)
class Standing:
    """What a counter says. All in nano-dollars."""

    spent: int  # posted in the ledger
    settled: int  # closed, and soon in the ledger
    reserved: int  # still running: the worst case

    @property
    def used(self) -> int:
        return self.spent + self.settled


@dataclass(frozen=True, slots=True)
class Verdict:
    """Granted when both are empty."""

    unknown: tuple[str, ...] = ()
    """Counters that were never seeded: nothing was reserved, seed them and ask again."""
    full: tuple[tuple[str, Standing], ...] = ()
    """Counters without room: nothing was reserved."""

    @property
    def granted(self) -> bool:
        return not self.unknown and not self.full


class BudgetStore(Protocol):
    """See the module; ``request_id`` as the client saw it."""

    def reserve(
        self, request_id: str, holder: str, amount: int, ceilings: Sequence[Ceiling]
    ) -> Verdict:
        """Hold ``amount`` against every ceiling, or against none of them."""
        ...

    def settle(self, request_id: str, counters: Collection[str], cost: int) -> None:
        """The request is over: its hold becomes its cost, and stays until the ledger has it."""
        ...

    def release(self, request_id: str, counters: Collection[str]) -> None:
        """The request never ran."""
        ...

    def fold(self, counter: str, costs: Mapping[str, int]) -> set[str]:
        """These requests are posted: their costs move from holds into ``spent``.

        Returns the ids that had no hold: they are not added, the counter must be published anew.
        """
        ...

    def publish(self, counter: str, spent: int, posted: Collection[str] = ()) -> None:
        """The ledger's own sum, absolute; holds of ``posted`` requests are in it already."""
        ...

    def held(self, counter: str) -> list[str]:
        """The requests that have a hold, whether it expired or not."""
        ...

    def standing(self, counter: str) -> Standing | None:
        """None: never seeded."""
        ...

    def renew(self, holder: str, counters: Collection[str]) -> None:
        """We live: our reservations last for another ``LEASE_S``."""
        ...

    def forget(self, counters: Collection[str]) -> None:
        """These periods are over."""
        ...
