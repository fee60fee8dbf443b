"""A team with budgets, and what its budgets say of it."""

import itertools
import time
from decimal import Decimal

from proxy.counters.shared import budget_store
from proxy.counters.store import Standing
from proxy.counters.windows import window
from proxy.models import ApiKey, Budget, Exchange, Team
from proxy.record import spending

MODEL = "chat-priced"
numbers = itertools.count()


class Cast:
    """A team with one key and budgets of its own."""

    def __init__(self, reload) -> None:
        self.team = Team.objects.create(name=f"spending-{next(numbers)}")
        self.key, self.secret = ApiKey.issue(self.team, "cleo", scopes=["messages"])
        self.reload = reload
        reload()

    def budget(self, usd: str, **fields) -> Budget:
        owner = {} if "key" in fields or "user" in fields else {"team": self.team}
        made = Budget.objects.create(usd=Decimal(usd), **{"period": "month", **owner, **fields})
        self.reload()
        return made


def standing(budget: Budget) -> Standing | None:
    when = window(budget.period, budget.zone, time.time())
    return budget_store().standing(spending.counter_of(budget.pk, when))


def settled(budget: Budget) -> Standing:
    """When every row is in the ledger and nothing is held."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = standing(budget)
        if found is not None and not found.settled and not found.reserved:
            return found
        time.sleep(0.02)
    raise AssertionError(f"still held: {standing(budget)}")


def booked(budget: Budget, **whose: str) -> int:
    """What the rows cost, once it is what the budget says: its counter moves just before them."""
    spent, deadline = settled(budget).spent, time.monotonic() + 60
    rows = Exchange.objects.filter(**whose, state="closed")
    while (costs := sum(row.cost_nanousd or 0 for row in rows.all())) != spent:
        assert time.monotonic() < deadline, f"the rows cost {costs}, the budget says {spent}"
        time.sleep(0.02)
    return costs
