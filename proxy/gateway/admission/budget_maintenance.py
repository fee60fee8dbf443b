"""Maintain the budget counters in a thread of this process, which the first reservation starts.

The thread renews the leases of this process's reservations and records the thresholds that budgets
have reached. It sets counters to the sums of the ledger: once a minute those that this process has
used, soon after an error and once an hour all of them.

A process that serves no requests does not call the counter store in between: no counter is polled,
because the change that makes a counter reach a threshold reports it.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from django.db import DatabaseError, connection
from django.db.utils import InterfaceError

from proxy.counters.backends import shared_store
from proxy.counters.budget_periods import window
from proxy.counters.store import LEASE_S, StoreUnavailable
from proxy.gateway.snapshot.budget_snapshot import BudgetConfig
from proxy.gateway.snapshot.config_snapshot import ConfigStore, directory
from proxy.ledger.database.access import check_present
from proxy.ledger.errors import LedgerUnavailable
from proxy.ledger.posting import budget_sync
from proxy.ledger.recorder import recorder
from proxy.models import Budget

log = logging.getLogger("proxy.gateway")

TICK_S: Final = 1.0
RENEW_S: Final = LEASE_S / 4
PUBLISH_S: Final = 60.0
PUBLISH_ALL_S: Final = 3_600.0
REPAIR_S: Final = 2.0  # replaces ``PUBLISH_ALL_S`` while a counter may be wrong
CHANGES_S: Final = 2.0
NOTICE_S: Final = 2.0


class ThresholdReached(NamedTuple):
    budget_id: int
    start: datetime
    threshold: int


class BudgetMaintenance:
    """The thread that maintains the budget counters. ``start`` may be called more than once."""

    def __init__(
        self, configuration: ConfigStore = directory, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._configuration = configuration
        self._clock = clock
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self.renewals: list[Callable[[], None]] = []  # renew the leases of other modules
        self._open: dict[str, tuple[str, ...]] = {}  # counters of the running requests, by id
        self._used: set[int] = set()  # budgets used since they were published
        self._limits: dict[int, object] = {}  # limits and periods of all budgets, as last seen
        # Revision of the configuration from which the limits were read.
        self._revision: int | None = None
        self._reached: set[ThresholdReached] = set()
        self._recorded: set[ThresholdReached] = set()
        self._done: dict[str, float] = {}
        # failing tasks: each is logged once per outage, not every second
        self.failing: set[str] = set()

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
            self.run_task("publish", budget_sync.publish_all)
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

    def add_reservation(self, request_id: str, counters: Mapping[str, BudgetConfig]) -> None:
        """From now on, renew the lease of this reservation in its counters."""
        self._open[request_id] = tuple(counters)
        self._used.update(budget.id for budget in counters.values())

    def remove_reservation(self, request_id: str) -> None:
        self._open.pop(request_id, None)

    def reached(self, budget: BudgetConfig, at: float, thresholds: Iterable[int]) -> None:
        """Record that the budget's used amount has reached these thresholds."""
        start = budget.window(at).start
        self._reached.update(ThresholdReached(budget.id, start, each) for each in thresholds)

    def _work(self) -> None:
        while not self._ending.wait(TICK_S):
            self.run_due()
        connection.close()

    def run_due(self) -> None:
        """Run each task whose interval has passed."""
        publish_s = REPAIR_S if budget_sync.DIRTY.is_set() else PUBLISH_ALL_S
        for work, every_s, run in (
            ("renew", RENEW_S, self._renew),
            ("publish", publish_s, self.publish_all),
            ("publish used budgets", PUBLISH_S, self._publish_used),
            ("publish changed budgets", CHANGES_S, self.publish_changed),
            ("record thresholds", NOTICE_S, self.record_thresholds),
        ):
            if self._clock() - self._done.get(work, 0.0) >= every_s:
                self.run_task(work, run)

    def _renew(self) -> None:
        counters = {counter for some in [*self._open.values()] for counter in some}
        if counters:
            shared_store().renew(recorder.worker, dict.fromkeys(counters))
        for renewal in self.renewals:
            renewal()

    def publish_all(self) -> None:
        """Write the ledger's sum of each budget to its counter."""
        self._used.clear()
        budget_sync.publish_all()

    def _publish_used(self) -> None:
        used, self._used = self._used, set()
        if used:
            budget_sync.publish_all(only=used)

    def publish_changed(self) -> None:
        """Publish budgets whose limit, period or models have changed.

        They may have reached a threshold, and the sum of other models is another one.
        """
        revision = self._configuration.snapshot.revision
        if revision == self._revision:
            return
        check_present()
        rows = Budget.objects.values_list("pk", "usd", "period", "zone", "models_covered")
        limits: dict[int, object] = {pk: fields for pk, *fields in rows}
        changed = {pk for pk in limits if limits[pk] != self._limits.get(pk)}
        if changed and self._revision is not None:
            budget_sync.publish_all(only=changed)
        self._limits, self._revision = limits, revision

    def run_task(self, work: str, run: Callable[[], None]) -> None:
        """Run one task of the thread, and log its errors. The thread runs the task again later."""
        self._done[work] = self._clock()
        try:
            run()
            self.failing.discard(work)
        except (StoreUnavailable, LedgerUnavailable, DatabaseError, InterfaceError) as exc:
            if work not in self.failing:
                log.warning("budgets: cannot %s: %s", work, exc)
            self.failing.add(work)
            connection.close()
        except Exception:  # a bug must not end the thread: the leases would expire
            log.exception("budgets: cannot %s", work)

    def record_thresholds(self) -> None:
        """Record each threshold that a budget has reached. Skip deleted budgets."""
        check_present()
        reached = {*self._reached}
        for each in reached - self._recorded:
            budget = Budget.objects.filter(pk=each.budget_id).first()
            if budget is None:
                continue
            when = window(budget.period, budget.zone, each.start.timestamp())
            standing = shared_store().standing(budget_sync.counter_name(budget.pk, when))
            used = standing.used if standing else 0
            budget_sync.record_notices(budget, each.start, [each.threshold], used)
        self._recorded |= reached


budget_maintenance: Final = BudgetMaintenance()
