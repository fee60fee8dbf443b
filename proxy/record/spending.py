"""Keeps the budgets' counters in step with the ledger.

The ledger's sum is the truth. Posting moves the cost of each closed row from its hold into the
counter, before the transaction ends and while the ledger is held; so whoever holds the ledger may
publish a sum that nothing changes meanwhile. What went wrong on the way (the store was away, the
transaction failed after all, a row was priced anew) is mended by publishing the sum again.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import UTC
from typing import Final

from django.db import transaction
from django.db.models import Q, Sum

from proxy.counters.shared import budget_store
from proxy.counters.store import StoreAway
from proxy.counters.windows import Window, window
from proxy.models import Budget, Exchange, QuarterUsage, State

from .database import check_present
from .rows import AnyRow
from .seals import hold_ledger
from .statements import has_rows

log = logging.getLogger(__name__)

LATE_S: Final = 3 * 86_400.0
"""Rows of an ended period may still be posted for so long; then its counter is forgotten."""
DIRTY: Final = threading.Event()
"""Some counter may differ from the ledger: publish them all soon."""
NOBODYS: Final = Q(pk__in=())


def counter_of(budget_id: int, when: Window) -> str:
    """The name of a budget's counter in one period."""
    return f"{budget_id}:{int(when.start.timestamp())}"


def fold(rows: Iterable[AnyRow]) -> None:
    """Closed rows were written: take them into the counters. The ledger is held; never raises."""
    budgets = _all_budgets()
    if not budgets:
        return
    costs: dict[str, dict[str, int]] = defaultdict(dict)
    for row in rows:
        for budget in budgets:
            if _covers(budget, row):
                when = window(budget.period, budget.zone, row.created.timestamp())
                costs[counter_of(budget.pk, when)][row.pk] = row.cost_nanousd or 0
    try:
        for counter, some in costs.items():
            missing = budget_store().fold(counter, some)
            if any(some[request_id] for request_id in missing):
                DIRTY.set()
    except StoreAway as exc:
        log.warning("budgets: %s; the counters are published again later", exc)
        DIRTY.set()


def amended(rows: Iterable[Exchange]) -> None:
    """Rows that were closed before have another cost now. The ledger is held; never raises."""
    wanted: dict[str, tuple[Budget, Window]] = {}
    budgets = _all_budgets()
    for row in rows:
        for budget in budgets:
            when = window(budget.period, budget.zone, row.created.timestamp())
            if _covers(budget, row) and time.time() - when.end.timestamp() < LATE_S:
                wanted[counter_of(budget.pk, when)] = (budget, when)
    try:
        for budget, when in wanted.values():
            publish(budget, when)
    except StoreAway as exc:
        log.warning("budgets: %s; the counters are published again later", exc)
        DIRTY.set()


def publish_all(now: float | None = None) -> None:
    """Make every counter of the running periods, and of those just over, equal to the ledger.

    Raises StoreAway, LedgerAway and database errors; then it must be done again.
    """
    at = time.time() if now is None else now
    DIRTY.clear()
    try:
        check_present()
        for budget in _all_budgets():
            here = window(budget.period, budget.zone, at)
            publish(budget, here)
            before = window(budget.period, budget.zone, here.start.timestamp() - 1)
            if at - before.end.timestamp() < LATE_S:
                publish(budget, before)
            else:
                budget_store().forget([counter_of(budget.pk, before)])
    except BaseException:
        DIRTY.set()
        raise


def publish(budget: Budget, when: Window) -> None:
    """Make one counter equal to the ledger, while nobody posts."""
    counter = counter_of(budget.pk, when)
    with transaction.atomic():
        hold_ledger()
        posted = _posted(budget_store().held(counter))
        budget_store().publish(counter, spent(budget, when), posted)


def spent(budget: Budget, when: Window) -> int:
    """What the ledger says, in nano-dollars. Periods begin at quarter hours in every zone."""
    start, end = (edge.astimezone(UTC) for edge in when)
    usage = QuarterUsage.objects.filter(_owner(budget), start__gte=start, start__lt=end)
    return int(usage.aggregate(sum=Sum("cost_nanousd"))["sum"] or 0)


def _all_budgets() -> list[Budget]:
    if not has_rows(Budget):  # the query takes 3,000 calls, and is made for each batch
        return []
    budgets = Budget.objects.select_related("team", "key", "user")
    return list(budgets.prefetch_related("key__retiring"))


def _owner(budget: Budget) -> Q:
    if budget.team is not None:
        return Q(team=budget.team.name)
    if budget.key_id is not None:
        return Q(key_id__in=budget.key_ids)
    return Q(user=budget.user.get_username()) if budget.user is not None else NOBODYS


def _covers(budget: Budget, row: AnyRow) -> bool:
    if budget.team is not None:
        return row.team == budget.team.name
    if budget.key_id is not None:
        return row.key_id in budget.key_ids
    return budget.user is not None and row.user == budget.user.get_username()


def _posted(ids: Collection[str]) -> set[str]:
    found: set[str] = set()
    asked = list(ids)
    for at in range(0, len(asked), 400):
        rows = Exchange.objects.filter(pk__in=asked[at : at + 400], state=State.CLOSED)
        found.update(rows.values_list("pk", flat=True))
    return found
