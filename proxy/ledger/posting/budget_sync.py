"""Keep the budget counters equal to the costs in the ledger.

The sum of the ledger's rows is authoritative. The code that writes ledger rows moves the cost of
each closed row from its reservation to the spent amount of the counter, under the ledger lock and
before its transaction ends. So the sum cannot change while another process has the lock and sets
a counter to the sum. When a counter may be wrong (counter store unavailable, transaction rolled
back, cost of a row changed), it is set to the sum again.

A change that makes the used amount of a budget reach a threshold creates the notice for it.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Final

from django.db import transaction

from proxy.audit_log.record import team_of
from proxy.counters.backends import shared_store
from proxy.counters.budget_periods import BudgetPeriod, window
from proxy.counters.store import StoreUnavailable
from proxy.ledger.database.access import check_present
from proxy.ledger.database.bulk_sql import has_rows
from proxy.ledger.webhooks import record_event
from proxy.models import Budget, BudgetNotice, EventType, Exchange, State
from proxy.models.ledger_names import person_id
from proxy.models.setup.columns import matches_any
from proxy.models.setup.config_row_validation import fetch_rows, first_problem
from proxy.money import nanousd_of, usd
from proxy.times import rfc3339

from .exchange_columns import AnyRow
from .hash_chain import lock_ledger

log = logging.getLogger(__name__)

LATE_S: Final = 3 * 86_400.0
"""Seconds after a period's end in which its rows may be written; then its counter is deleted."""
AHEAD_S: Final = 86_400.0
DIRTY: Final = threading.Event()
"""Set if a budget counter may differ from the ledger: all counters must be published again soon."""
EXHAUSTED_PERCENT: Final = 100


def counter_name(budget_id: int, when: BudgetPeriod) -> str:
    """Return the name of the counter for a budget in one period."""
    return f"{budget_id}:{int(when.start.timestamp())}"


def apply_closed_rows(rows: Iterable[AnyRow]) -> None:
    """Add the costs of newly closed rows to their budgets' counters.

    The caller has the ledger lock. Never raises StoreUnavailable.
    """
    budgets = all_budgets()
    if not budgets:
        return
    periods: dict[str, tuple[Budget, BudgetPeriod]] = {}
    costs: dict[str, dict[str, int]] = defaultdict(dict)
    for row in rows:
        for budget in budgets:
            if covers(budget, row):
                when = window(budget.period, budget.zone, row.created.timestamp())
                counter = counter_name(budget.pk, when)
                periods[counter] = (budget, when)
                costs[counter][row.pk] = row.cost_nanousd or 0
    try:
        for counter, some in costs.items():
            applied = shared_store().apply_posted(counter, some)
            if any(some[request_id] for request_id in applied.missing):
                DIRTY.set()
            if applied.used is not None:
                budget, when = periods[counter]
                reached = applied.used.crossed(limit_nanousd(budget))
                record_notices(budget, when.start, reached, applied.used.after)
    except StoreUnavailable as exc:
        log.warning("budgets: %s; the counters are published again later", exc)
        DIRTY.set()


def apply_amended_rows(rows: Iterable[Exchange]) -> None:
    """Update the budget counters after the cost of closed rows has changed.

    The caller has the ledger lock. Never raises StoreUnavailable.
    """
    periods: dict[str, tuple[Budget, BudgetPeriod]] = {}
    budgets = all_budgets()
    for row in rows:
        for budget in budgets:
            when = window(budget.period, budget.zone, row.created.timestamp())
            if covers(budget, row) and time.time() - when.end.timestamp() < LATE_S:
                periods[counter_name(budget.pk, when)] = (budget, when)
    try:
        for budget, when in periods.values():
            publish(budget, when)
    except StoreUnavailable as exc:
        log.warning("budgets: %s; the counters are published again later", exc)
        DIRTY.set()


def publish_all(now: float | None = None, only: Collection[int] | None = None) -> None:
    """Set the counters of all current and recently ended periods to the ledger's sums.

    ``only``: the ids of the budgets; None: all budgets, also for periods that begin within a day,
    so that the counters are known if the database is unavailable when a period begins. Raises
    StoreUnavailable, LedgerUnavailable and DatabaseError; then the caller must retry.
    """
    at = time.time() if now is None else now
    if only is None:
        DIRTY.clear()
    try:
        check_present()
        for budget in all_budgets():
            if only is None:
                _publish_periods(budget, at, ahead_s=AHEAD_S)
            elif budget.pk in only:
                _publish_periods(budget, at)
    except BaseException:
        DIRTY.set()
        raise


def _publish_periods(budget: Budget, at: float, ahead_s: float = 0) -> None:
    here = window(budget.period, budget.zone, at)
    publish(budget, here)
    following = window(budget.period, budget.zone, here.end.timestamp())
    if following.start.timestamp() < at + ahead_s:
        publish(budget, following)
    before = window(budget.period, budget.zone, here.start.timestamp() - 1)
    if at - before.end.timestamp() < LATE_S:
        publish(budget, before)
    else:
        shared_store().forget([counter_name(budget.pk, before)])


def publish(budget: Budget, when: BudgetPeriod) -> None:
    """Set the counter of a budget and period to the ledger's sum, with the ledger locked.

    First delete the reservations of posted requests, in batches and without the lock: while the
    database was unavailable, many may have accumulated.
    """
    counter = counter_name(budget.pk, when)
    for ids in shared_store().reserved_ids(counter):
        posted = posted_among(ids)
        if posted:
            shared_store().mark_posted(counter, posted)
    with transaction.atomic():
        lock_ledger()
        standing = shared_store().publish(counter, spent_nanousd(budget, when))
        reached = standing.reached(limit_nanousd(budget))
        record_notices(budget, when.start, reached, standing.used)


def record_notices(
    budget: Budget, start: datetime, thresholds: Iterable[int], used_nanousd: int
) -> None:
    """Create the notice, with its event, for each reached threshold that has none in the period."""
    for threshold in thresholds:
        with transaction.atomic():
            notice, is_new = BudgetNotice.objects.get_or_create(
                budget=budget,
                start=start,
                threshold=threshold,
                defaults={"used_nanousd": used_nanousd},
            )
            if is_new:
                _record_event(notice)


def _record_event(notice: BudgetNotice) -> None:
    """Notify webhooks and the budget's mail addresses. Amounts are decimal strings in dollars."""
    budget = notice.budget
    when = window(budget.period, budget.zone, notice.start.timestamp())
    is_exhausted = notice.threshold >= EXHAUSTED_PERCENT
    record_event(
        EventType.BUDGET_EXHAUSTED if is_exhausted else EventType.BUDGET_THRESHOLD,
        team=team_of(budget),
        data={
            "budget_id": f"budget_{budget.pk}",
            "owner": budget.owner,
            "models": budget.models_covered,
            "threshold_percent": notice.threshold,
            "hard": budget.hard,
            "limit_usd": usd(limit_nanousd(budget)),
            "spent_usd": usd(notice.used_nanousd),
            "period": budget.period,
            "starts_at": rfc3339(when.start),
            "resets_at": rfc3339(when.end),
        },
        emails=budget.emails,
    )


def limit_nanousd(budget: Budget) -> int:
    return nanousd_of(budget.usd)


def spent_nanousd(budget: Budget, when: BudgetPeriod) -> int:
    """Return the ledger's cost of a budget in one period, in nano-dollars.

    The sum uses the rollup by quarter hours: periods begin at a quarter hour in every time zone.
    """
    start, end = (edge.astimezone(UTC) for edge in when)
    [cost] = budget.sums_of_usage(start, end, "cost_nanousd")
    return cost


def all_budgets() -> list[Budget]:
    """Load all budgets with their owners, except unreadable rows: see ``split_readable``.

    Such a row must not prevent rows from being written.
    """
    if not has_rows(Budget):  # avoids the queries below, which make 3,000 function calls
        return []
    unreadable = [row.pk for row in fetch_rows(Budget.objects.order_by()) if first_problem(row)]
    budgets = Budget.objects.exclude(pk__in=unreadable)
    budgets = budgets.select_related("team", "key", "user__person")
    return list(budgets.prefetch_related("key__retiring"))


def covers(budget: Budget, row: AnyRow) -> bool:
    """Return whether the cost of the row counts towards the budget."""
    if budget.team is not None:
        pays = row.team == budget.team.ledger_id
    elif budget.key_id is not None:
        pays = row.key_id in budget.key_ids
    else:
        pays = budget.user is not None and row.user == person_id(budget.user)
    models = budget.models_covered
    return pays and (not models or matches_any(row.model_requested, models))


def posted_among(ids: Collection[str]) -> set[str]:
    """Return those of the request ids whose closed row is in the ledger."""
    rows = Exchange.objects.filter(pk__in=ids, state=State.CLOSED)
    return set(rows.values_list("pk", flat=True))
