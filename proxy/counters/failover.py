"""Redis where it answers, this machine's own file while it does not.

Holds, postings and sums go to both, so that the file is up to date when it is needed.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeVar

from .store import BudgetStore, Ceiling, Standing, StoreAway, Verdict

log = logging.getLogger("proxy.counters")

PAUSE_S: Final = 5.0
"""How long Redis is left alone after it failed; and how soon it is used again at the latest."""

Answer = TypeVar("Answer")


class FailoverBudgets:
    """A ``BudgetStore`` that asks ``shared`` first and ``local`` while that is away."""

    def __init__(
        self,
        shared: BudgetStore,
        local: BudgetStore,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shared = shared
        self._local = local
        self._clock = clock
        self._again = 0.0
        self._lock = threading.Lock()

    @property
    def degraded(self) -> bool:
        return self._clock() < self._again

    def reserve(
        self, request_id: str, holder: str, amount: int, ceilings: Sequence[Ceiling]
    ) -> Verdict:
        if self.degraded:
            return self._local.reserve(request_id, holder, amount, ceilings)
        try:
            verdict = self._shared.reserve(request_id, holder, amount, ceilings)
        except StoreAway as exc:
            self._failed(exc)
            return self._local.reserve(request_id, holder, amount, ceilings)
        if verdict.granted:  # held here too, so that an outage does not forget who is running
            counted = [Ceiling(ceiling.counter, None) for ceiling in ceilings]
            with contextlib.suppress(StoreAway):
                self._local.reserve(request_id, holder, amount, counted)
        return verdict

    def settle(self, request_id: str, counters: Collection[str], cost: int) -> None:
        self._both(lambda store: store.settle(request_id, counters, cost))

    def release(self, request_id: str, counters: Collection[str]) -> None:
        self._both(lambda store: store.release(request_id, counters))

    def fold(self, counter: str, costs: Mapping[str, int]) -> set[str]:
        """What one of them did not hold is told as missing only if the store in use says so."""
        self._local.fold(counter, costs)
        return self._shared_only(lambda store: store.fold(counter, costs))

    def publish(self, counter: str, spent: int, posted: Collection[str] = ()) -> None:
        self._local.publish(counter, spent, posted)
        self._shared_only(lambda store: store.publish(counter, spent, posted))

    def held(self, counter: str) -> list[str]:
        found = self._first(lambda store: store.held(counter))
        return list({*found, *self._local.held(counter)})

    def standing(self, counter: str) -> Standing | None:
        return self._first(lambda store: store.standing(counter))

    def renew(self, holder: str, counters: Collection[str]) -> None:
        self._both(lambda store: store.renew(holder, counters))

    def forget(self, counters: Collection[str]) -> None:
        self._both(lambda store: store.forget(counters))

    def _first(self, ask: Callable[[BudgetStore], Answer]) -> Answer:
        if not self.degraded:
            try:
                return ask(self._shared)
            except StoreAway as exc:
                self._failed(exc)
        return ask(self._local)

    def _both(self, change: Callable[[BudgetStore], None]) -> None:
        change(self._local)
        if not self.degraded:
            try:
                change(self._shared)
            except StoreAway as exc:
                self._failed(exc)

    def _shared_only(self, ask: Callable[[BudgetStore], Answer]) -> Answer:
        """Raises StoreAway: who posts must know that the shared sum is behind."""
        if self.degraded:
            raise StoreAway("Redis is away")
        try:
            return ask(self._shared)
        except StoreAway as exc:
            self._failed(exc)
            raise

    def _failed(self, exc: StoreAway) -> None:
        with self._lock:
            if not self.degraded:
                log.warning("redis: %s; this machine counts for itself meanwhile", exc)
            self._again = self._clock() + PAUSE_S
