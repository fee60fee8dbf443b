"""Looks after the counters of this process while it lives: a thread, started by the first hold.

It renews what this process holds, publishes the ledger's sums anew where something went wrong and
once a minute, and tells people when a budget reaches a threshold.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from django.db import DatabaseError, connection
from django.db.utils import InterfaceError

from proxy.counters.shared import budget_store
from proxy.counters.store import LEASE_S, StoreAway
from proxy.counters.windows import window
from proxy.models import Budget
from proxy.record import spending
from proxy.record.database import check_present
from proxy.record.errors import LedgerAway
from proxy.record.recorder import recorder

from . import notices
from .ceilings import NANOUSD, BudgetEntry

log = logging.getLogger("proxy.gateway")

TICK_S: Final = 1.0
RENEW_S: Final = LEASE_S / 4
PUBLISH_S: Final = 60.0
MEND_S: Final = 2.0  # when a counter may be wrong
NOTICE_S: Final = 2.0
MOST_HELD: Final = 10_000  # counters: names of long ended periods are dropped beyond that


class Keeper:
    """``start`` it as often as you like."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self.renewals: list[Callable[[], None]] = []  # what else lasts as long as we live
        self._held: set[str] = set()
        self._reached: set[notices.Reached] = set()
        self._told: set[notices.Reached] = set()
        self._done: dict[str, float] = {}
        self._failing: set[str] = set()  # told once, not every second of an outage

    def start(self) -> None:
        """The first time, the counters are published before it returns: after a crash they lag."""
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is not None:
                return
            self._ending.clear()
            self._try("publish", spending.publish_all)
            self._thread = threading.Thread(target=self._work, name="budget-keeper", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._ending.set()
            thread.join(5)

    def holding(self, counters: Iterable[str]) -> None:
        """Reservations of ours are there."""
        if not self._held.issuperset(counters):
            self._held = {*counters} if len(self._held) > MOST_HELD else {*self._held, *counters}

    def exhausted(self, budget: BudgetEntry, at: float) -> None:
        """A request was refused: people are told as if the last cent were spent."""
        self._reached.add(notices.Reached(budget.id, budget.window(at).start, 100))

    def _work(self) -> None:
        while not self._ending.wait(TICK_S):
            if self._is_due("renew", RENEW_S):
                self._try("renew", self._renew)
            if self._is_due("publish", MEND_S if spending.DIRTY.is_set() else PUBLISH_S):
                self._try("publish", spending.publish_all)
            if self._is_due("notice", NOTICE_S):
                self._try("notice", self._notice)
        connection.close()

    def _renew(self) -> None:
        if self._held:
            budget_store().renew(recorder.worker, self._held)
        for renewal in self.renewals:
            renewal()

    def _is_due(self, work: str, every_s: float) -> bool:
        return time.monotonic() - self._done.get(work, 0.0) >= every_s

    def _try(self, work: str, do: Callable[[], None]) -> None:
        """It is done again in a while, whatever went wrong."""
        self._done[work] = time.monotonic()
        try:
            do()
            self._failing.discard(work)
        except (StoreAway, LedgerAway, DatabaseError, InterfaceError) as exc:
            if work not in self._failing:
                log.warning("budgets: cannot %s: %s", work, exc)
            self._failing.add(work)
            connection.close()
        except Exception:  # a bug must not end the thread: reservations would die with it
            log.exception("budgets: cannot %s", work)

    def _notice(self) -> None:
        check_present()
        now = time.time()
        reached = {*self._reached}
        for budget in Budget.objects.all():
            when = window(budget.period, budget.zone, now)
            standing = budget_store().standing(spending.counter_of(budget.pk, when))
            limit = int(budget.usd * NANOUSD)
            for threshold in notices.THRESHOLDS:
                if standing and limit and standing.used * 100 >= limit * threshold:
                    reached.add(notices.Reached(budget.pk, when.start, threshold))
        notices.remember(reached - self._told)
        self._told |= reached
        notices.send_due()


keeper: Final = Keeper()
