"""Failover of the shared store from Redis to a SQLite file of this machine.

All changes are made in both stores, so that the file is current when Redis becomes unavailable.
What this machine counted during an outage is a floor for the limits in Redis, which may have lost
them; budgets are set to the ledger's sums again.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from .store import (
    AppliedCosts,
    Kind,
    Standing,
    Store,
    StoreUnavailable,
    Take,
    Taken,
    UsedChange,
)

log = logging.getLogger("proxy.counters")

PAUSE_S: Final = 5.0
"""Seconds after a failed call in which Redis is not called again."""

Answer = TypeVar("Answer")


class FailoverStore(Store):
    """A ``Store`` that uses ``shared``, or ``local`` while ``shared`` is unavailable."""

    def __init__(
        self, shared: Store, local: Store, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.shared = shared
        self.local = local
        self._clock = clock
        self._retry_at = 0.0
        self._mirror_at = 0.0
        self._lock = threading.Lock()

    @property
    def degraded(self) -> bool:
        return self._clock() < self._retry_at

    def take(self, request_id: str, holder: str, takes: Sequence[Take]) -> Taken:
        def take_shared(store: Store) -> Taken:
            result = store.take(request_id, holder, self._with_floors(takes))
            if result.granted:
                counted = [each._replace(limit=None) for each in takes]
                self._mirror(lambda local: local.take(request_id, holder, counted))
            return result

        return self._first(take_shared, lambda store: store.take(request_id, holder, takes))

    def _with_floors(self, takes: Sequence[Take]) -> Sequence[Take]:
        if all(each.kind is Kind.BUDGET for each in takes):
            return takes
        try:
            known = self.local.peek(takes)
        except StoreUnavailable:
            return takes
        return [
            each if each.kind is Kind.BUDGET or value is None else each._replace(floor=value.total)
            for each, value in zip(takes, known, strict=True)
        ]

    def add(self, holder: str, takes: Sequence[Take]) -> None:
        self._both(lambda store: store.add(holder, takes))

    def peek(self, takes: Sequence[Take]) -> list[Standing | None]:
        return self._first(
            lambda store: store.peek(self._with_floors(takes)), lambda store: store.peek(takes)
        )

    def renew(self, holder: str, held: Mapping[str, int | None]) -> None:
        self._both(lambda store: store.renew(holder, held))

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

    def standings(self, counters: Collection[str]) -> dict[str, Standing]:
        return self._first(lambda store: store.standings(counters))

    def forget(self, counters: Collection[str]) -> None:
        self._both(lambda store: store.forget(counters))

    def close(self) -> None:
        for store in (self.shared, self.local):
            store.close()

    def _first(
        self,
        call: Callable[[Store], Answer],
        call_local: Callable[[Store], Answer] | None = None,
    ) -> Answer:
        if not self.degraded:
            try:
                return call(self.shared)
            except StoreUnavailable as exc:
                self._failed(exc)
        return (call_local or call)(self.local)

    def _both(self, change: Callable[[Store], Answer]) -> Answer:
        """Change both stores; return the result of the shared one if it is available."""
        if not self.degraded:
            try:
                result = change(self.shared)
            except StoreUnavailable as exc:
                self._failed(exc)
            else:
                self._mirror(change)
                return result
        return change(self.local)

    def _mirror(self, change: Callable[[Store], object]) -> None:
        """Make a change of the shared store in the local one, too, for an outage.

        Requests wait for it. So it is left out for ``PAUSE_S`` if others lock the file too long.
        """
        if self._clock() < self._mirror_at:
            return
        try:
            change(self.local)
        except StoreUnavailable as exc:
            log.warning("counters: %s; the file of this machine misses changes", exc)
            self._mirror_at = self._clock() + PAUSE_S

    def _shared_only(self, call: Callable[[Store], Answer]) -> Answer:
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
