"""Maintain the budget counters in a thread of this process, which the first reservation starts.

The thread renews the leases of this process's reservations, sets the counters to the sums of the
ledger (once a minute, and soon after an error), and sends a notice when a budget reaches a
threshold.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from django.db import DatabaseError, connection
from django.db.utils import InterfaceError

from proxy.counters.backends import budget_store
from proxy.counters.budget_periods import window
from proxy.counters.budget_store import LEASE_S, StoreUnavailable
from proxy.gateway.snapshot.budget_snapshot import NANOUSD, BudgetConfig
from proxy.ledger.database.availability import check_present
from proxy.ledger.errors import LedgerUnavailable
from proxy.ledger.posting import budget_sync
from proxy.ledger.recorder import recorder
from proxy.models import Budget

from . import budget_alerts

log = logging.getLogger("proxy.gateway")

TICK_S: Final = 1.0
RENEW_S: Final = LEASE_S / 4
PUBLISH_S: Final = 60.0
REPAIR_S: Final = 2.0  # replaces ``PUBLISH_S`` while a counter may be wrong
NOTICE_S: Final = 2.0
MAX_TRACKED: Final = 10_000  # counters; above this number, those of ended periods are dropped


class BudgetMaintenance:
    """The thread that maintains the budget counters. ``start`` may be called more than once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self.renewals: list[Callable[[], None]] = []  # renew the leases of other modules
        self._tracked: set[str] = set()
        self._reached: set[budget_alerts.ThresholdReached] = set()
        self._recorded: set[budget_alerts.ThresholdReached] = set()
        self._done: dict[str, float] = {}
        # failing tasks: each is logged once per outage, not every second
        self._failing: set[str] = set()

    def start(self) -> None:
        """Start the thread.

        First write the ledger's sums to the counters: after a crash they are out of date.
        """
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is not None:
                return
            self._ending.clear()
            self._try("publish", budget_sync.publish_all)
            self._thread = threading.Thread(
                target=self._work, name="budget-maintenance", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._ending.set()
            thread.join(5)

    def track_reservations(self, counters: Iterable[str]) -> None:
        """From now on, renew the leases of this process's reservations in these budget counters."""
        if not self._tracked.issuperset(counters):
            self._tracked = (
                {*counters} if len(self._tracked) > MAX_TRACKED else {*self._tracked, *counters}
            )

    def exhausted(self, budget: BudgetConfig, at: float) -> None:
        """Record that the budget rejected a request.

        This causes the same notice as reaching 100 %.
        """
        self._reached.add(budget_alerts.ThresholdReached(budget.id, budget.window(at).start, 100))

    def _work(self) -> None:
        while not self._ending.wait(TICK_S):
            if self._is_due("renew", RENEW_S):
                self._try("renew", self._renew)
            if self._is_due("publish", REPAIR_S if budget_sync.DIRTY.is_set() else PUBLISH_S):
                self._try("publish", budget_sync.publish_all)
            if self._is_due("notice", NOTICE_S):
                self._try("notice", self.send_notices)
        connection.close()

    def _renew(self) -> None:
        if self._tracked:
            budget_store().renew(recorder.worker, self._tracked)
        for renewal in self.renewals:
            renewal()

    def _is_due(self, work: str, every_s: float) -> bool:
        return time.monotonic() - self._done.get(work, 0.0) >= every_s

    def _try(self, work: str, run: Callable[[], None]) -> None:
        """Run one task of the thread, and log its errors. The thread runs the task again later."""
        self._done[work] = time.monotonic()
        try:
            run()
            self._failing.discard(work)
        except (StoreUnavailable, LedgerUnavailable, DatabaseError, InterfaceError) as exc:
            if work not in self._failing:
                log.warning("budgets: cannot %s: %s", work, exc)
            self._failing.add(work)
            connection.close()
        except Exception:  # a bug must not end the thread: the leases would expire
            log.exception("budgets: cannot %s", work)

    def send_notices(self) -> None:
        """Record each budget that has reached a threshold, and send the notices that are due."""
        check_present()
        now = time.time()
        reached = {*self._reached}
        for budget in Budget.objects.all():
            when = window(budget.period, budget.zone, now)
            standing = budget_store().standing(budget_sync.counter_name(budget.pk, when))
            limit = int(budget.usd * NANOUSD)
            for threshold in budget_alerts.THRESHOLDS:
                if standing and limit and standing.used * 100 >= limit * threshold:
                    reached.add(budget_alerts.ThresholdReached(budget.pk, when.start, threshold))
        budget_alerts.record_alerts(reached - self._recorded)
        self._recorded |= reached
        budget_alerts.send_due()


budget_maintenance: Final = BudgetMaintenance()
