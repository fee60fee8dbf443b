"""How each budget stands in its running period: spent, held by running requests, and left.

From the counters that the gateway itself asks; from the books where there is none yet.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfoNotFoundError

from django.db.models import Q, Sum
from django.utils.timezone import now

from proxy.counters.shared import budget_store
from proxy.counters.store import Standing, StoreAway
from proxy.counters.windows import Window, window
from proxy.models import Budget, QuarterUsage
from proxy.record.spending import counter_of

from .figures import dollars

NEAR: Final = 80  # per cent of a budget that are worth a word
NANO: Final = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One budget now. Parts are per cent of the limit, at most 100 together."""

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
        held = 100 * self.reserved / self.limit if self.limit else 0.0
        return round(min(100.0 - self.spent_part, held), 2)

    @property
    def tone(self) -> str:
        if self.used_percent >= 100:
            return "over"
        return "near" if self.used_percent >= NEAR else "ok"

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


def states_of(budgets: Sequence[Budget]) -> dict[int, State]:
    """By the budget's id. One query, and none while every counter is known."""
    at = now().timestamp()
    windows: dict[int, Window] = {}
    counted: dict[int, Standing] = {}
    for budget in budgets:
        with contextlib.suppress(ZoneInfoNotFoundError, ValueError, KeyError):
            windows[budget.pk] = window(budget.period, budget.zone, at)
            standing = _standing(counter_of(budget.pk, windows[budget.pk]))
            if standing is not None:
                counted[budget.pk] = standing
    missing = [b for b in budgets if b.pk in windows and b.pk not in counted]
    booked = _booked(missing, windows)
    return {
        budget.pk: State(
            spent=counted[budget.pk].used if budget.pk in counted else booked.get(budget.pk, 0),
            reserved=counted[budget.pk].reserved if budget.pk in counted else 0,
            limit=int(budget.usd * NANO),
            resets=windows[budget.pk].end,
            zone=budget.zone,
        )
        for budget in budgets
        if budget.pk in windows
    }


def _standing(counter: str) -> Standing | None:
    try:
        return budget_store().standing(counter)
    except StoreAway:
        return None


def _booked(budgets: Sequence[Budget], windows: dict[int, Window]) -> dict[int, int]:
    """What the rollups say of budgets that nobody has asked for yet, all in one query."""
    if not budgets:
        return {}
    first = min(windows[budget.pk].start for budget in budgets).astimezone(UTC)
    sums = {
        f"b{budget.pk}": Sum(
            "cost_nanousd",
            filter=_owned(budget) & Q(start__gte=windows[budget.pk].start.astimezone(UTC)),
            default=0,
        )
        for budget in budgets
    }
    found = QuarterUsage.objects.filter(start__gte=first).aggregate(**sums)
    return {budget.pk: int(found[f"b{budget.pk}"]) for budget in budgets}


def _owned(budget: Budget) -> Q:
    if budget.team is not None:
        return Q(team=budget.team.name)
    if budget.key_id is not None:
        return Q(key_id__in=budget.key_ids)
    return Q(user=budget.user.get_username()) if budget.user is not None else Q(pk__in=())
