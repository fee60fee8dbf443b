"""The status of each budget in its current period: spent, reserved by running requests, and left.

The values come from the counters with which the gateway enforces budgets, or from the usage rollups
if a budget has no counter yet.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from django.db.models import Q, Sum
from django.utils.timezone import now

from proxy.admin.core.number_format import dollars
from proxy.counters.backends import shared_store
from proxy.counters.budget_periods import BudgetPeriod, window
from proxy.counters.store import Standing, StoreUnavailable
from proxy.ledger.posting import budget_sync
from proxy.models import Budget, UsageQuarterHour
from proxy.models.setup.config_row_validation import first_problem
from proxy.money import nanousd_of

NEAR_PERCENT: Final = 80  # percent of the limit; from this value on, the budget shows a warning


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStatus:
    """The status of one budget, in nano-dollars.

    ``spent_part`` and ``reserved_part`` are percentages of the limit, together at most 100.
    """

    spent: int
    reserved: int
    limit: int
    resets: datetime
    zone: str

    @property
    def used_percent(self) -> float:
        return 100 * self.spent / self.limit if self.limit else 100.0

    @property
    def spent_part(self) -> float:
        return round(min(100.0, self.used_percent), 2)

    @property
    def reserved_part(self) -> float:
        reserved = 100 * self.reserved / self.limit if self.limit else 0.0
        return round(min(100.0 - self.spent_part, reserved), 2)

    @property
    def tone(self) -> str:
        if self.used_percent >= 100:
            return "over"
        return "near" if self.used_percent >= NEAR_PERCENT else "ok"

    @property
    def spent_text(self) -> str:
        return dollars(self.spent)

    @property
    def reserved_text(self) -> str:
        return dollars(self.reserved) if self.reserved else ""

    @property
    def left_text(self) -> str:
        over = self.spent - self.limit
        return f"{dollars(over)} over" if over > 0 else f"{dollars(-over)} left"

    @property
    def resets_text(self) -> str:
        return f"{self.resets:%a} {self.resets.day} {self.resets:%b, %H:%M} {self.zone}"


def budget_statuses(budgets: Sequence[Budget]) -> dict[int, BudgetStatus]:
    """Return the status of each budget that can be read, by budget id.

    This takes at most one database query, and one for each budget of some models only.
    """
    at = now().timestamp()
    windows: dict[int, BudgetPeriod] = {}
    counters: dict[int, Standing] = {}
    known = [budget for budget in budgets if first_problem(budget) is None]
    for budget in known:
        windows[budget.pk] = window(budget.period, budget.zone, at)
        with contextlib.suppress(StoreUnavailable):
            name = budget_sync.counter_name(budget.pk, windows[budget.pk])
            if (standing := shared_store().standing(name)) is not None:
                counters[budget.pk] = standing
    posted = _posted_costs([budget for budget in known if budget.pk not in counters], windows)
    return {
        budget.pk: BudgetStatus(
            spent=counters[budget.pk].used if budget.pk in counters else posted.get(budget.pk, 0),
            reserved=counters[budget.pk].reserved if budget.pk in counters else 0,
            limit=nanousd_of(budget.usd),
            resets=windows[budget.pk].end,
            zone=budget.zone,
        )
        for budget in known
    }


def _posted_costs(budgets: Sequence[Budget], windows: dict[int, BudgetPeriod]) -> dict[int, int]:
    """Return the cost by budget id from the usage rollups, for budgets that have no counter yet."""
    of_models = {
        budget.pk: budget_sync.spent_nanousd(budget, windows[budget.pk])
        for budget in budgets
        if budget.models_covered
    }
    budgets = [budget for budget in budgets if budget.pk not in of_models]
    if not budgets:
        return of_models
    first = min(windows[budget.pk].start for budget in budgets).astimezone(UTC)
    sums = {
        f"b{budget.pk}": Sum(
            "cost_nanousd",
            filter=budget.is_of_owner & Q(start__gte=windows[budget.pk].start.astimezone(UTC)),
            default=0,
        )
        for budget in budgets
    }
    found = UsageQuarterHour.objects.filter(start__gte=first).aggregate(**sums)
    return of_models | {budget.pk: int(found[f"b{budget.pk}"]) for budget in budgets}
