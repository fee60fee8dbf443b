"""Failover of the budget store from Redis to a SQLite file of this machine.

All changes are made in both stores, so that the file is current when Redis becomes unavailable.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from .budget_store import (
    AppliedCosts,
    BudgetLimit,
    BudgetStore,
    ReservationResult,
    Standing,
    StoreUnavailable,
    UsedChange,
)

log = logging.getLogger("proxy.counters")

PAUSE_S: Final = 5.0
"""Seconds after a failed call in which Redis is not called again."""

Answer = TypeVar("Answer")


class FailoverBudgets:
    """A ``BudgetStore`` that uses ``shared``, or ``local`` while ``shared`` is unavailable."""

    def __init__(
        self,
        shared: BudgetStore,
        local: BudgetStore,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shared = shared
        self.local = local
        self._clock = clock
        self._retry_at = 0.0
        self._lock = threading.Lock()

    @property
    def degraded(self) -> bool:
        return self._clock() < self._retry_at

    def reserve(
        self, request_id: str, holder: str, amount: int, limits: Sequence[BudgetLimit]
    ) -> ReservationResult:
        if self.degraded:
            return self.local.reserve(request_id, holder, amount, limits)
        try:
            result = self.shared.reserve(request_id, holder, amount, limits)
        except StoreUnavailable as exc:
            self._failed(exc)
            return self.local.reserve(request_id, holder, amount, limits)
        # The request is also counted locally, for an outage of the shared store.
        if result.granted:
            counted = [BudgetLimit(limit.counter, None) for limit in limits]
            with contextlib.suppress(StoreUnavailable):
                self.local.reserve(request_id, holder, amount, counted)
        return result

    def settle(
        self, request_id: str, counters: Collection[str], cost: int
    ) -> dict[str, UsedChange]:
        return self._both(lambda store: store.settle(request_id, counters, cost))

    def release(self, request_id: str, counters: Collection[str]) -> None:
        self._both(lambda store: store.release(request_id, counters))

    def apply_posted(self, counter: str, costs: Mapping[str, int]) -> AppliedCosts:
        """Return the result of the shared store; ignore the local one."""
        self.local.apply_posted(counter, costs)
        return self._shared_only(lambda store: store.apply_posted(counter, costs))

    def mark_posted(self, counter: str, request_ids: Collection[str]) -> None:
        self._both(lambda store: store.mark_posted(counter, request_ids))

    def publish(self, counter: str, spent: int) -> Standing:
        self.local.publish(counter, spent)
        return self._shared_only(lambda store: store.publish(counter, spent))

    def reserved_ids(self, counter: str) -> Iterator[list[str]]:
        if not self.degraded:
            try:
                yield from self.shared.reserved_ids(counter)
            except StoreUnavailable as exc:
                self._failed(exc)
        yield from self.local.reserved_ids(counter)

    def standing(self, counter: str) -> Standing | None:
        return self._first(lambda store: store.standing(counter))

    def standings(self, counters: Collection[str]) -> dict[str, Standing]:
        return self._first(lambda store: store.standings(counters))

    def renew(self, holder: str, counters: Collection[str]) -> None:
        self._both(lambda store: store.renew(holder, counters))

    def forget(self, counters: Collection[str]) -> None:
        self._both(lambda store: store.forget(counters))

    def _first(self, call: Callable[[BudgetStore], Answer]) -> Answer:
        if not self.degraded:
            try:
                return call(self.shared)
            except StoreUnavailable as exc:
                self._failed(exc)
        return call(self.local)

    def _both(self, change: Callable[[BudgetStore], Answer]) -> Answer:
        """Change both stores; return the result of the shared one if it is available."""
        result = change(self.local)
        if not self.degraded:
            try:
                return change(self.shared)
            except StoreUnavailable as exc:
                self._failed(exc)
        return result

    def _shared_only(self, call: Callable[[BudgetStore], Answer]) -> Answer:
        """Call the shared store. Raises StoreUnavailable: the caller must know that it failed."""
        if self.degraded:
            raise StoreUnavailable("Redis is unavailable")
        try:
            return call(self.shared)
        except StoreUnavailable as exc:
            self._failed(exc)
            raise

    def _failed(self, exc: StoreUnavailable) -> None:
        with self._lock:
            if not self.degraded:
                log.warning("redis: %s; this machine counts for itself until it is back", exc)
            self._retry_at = self._clock() + PAUSE_S
