"""A team with budgets, and functions that wait for their settled state."""

import itertools
import time
from decimal import Decimal

from proxy.counters.backends import shared_store
from proxy.counters.budget_periods import window
from proxy.counters.store import Standing
from proxy.ledger.posting import budget_sync
from proxy.models import ApiKey, Budget, Exchange, Team
from proxy.models.ledger_names import person_ids, team_ids

MODEL = "chat-priced"
numbers = itertools.count()


class BudgetTeam:
    """A team with one key, and its budgets. The gateway knows it from its first budget on."""

    def __init__(self, reload) -> None:
        self.team = Team.objects.create(name=f"spending-{next(numbers)}")
        self.key, self.secret = ApiKey.issue(self.team, "cleo", scopes=["messages"])
        self.reload = reload

    def budget(self, usd: str, **fields) -> Budget:
        owner = {} if "key" in fields or "user" in fields else {"team": self.team}
        budget = Budget.objects.create(usd=Decimal(usd), **{"period": "month", **owner, **fields})
        self.reload()
        return budget


def standing(budget: Budget) -> Standing | None:
    when = window(budget.period, budget.zone, time.time())
    return shared_store().standing(budget_sync.counter_name(budget.pk, when))


def settled(budget: Budget) -> Standing:
    """Wait until all rows are in the ledger and nothing is reserved; return the state."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = standing(budget)
        if found is not None and not found.settled and not found.reserved:
            return found
        time.sleep(0.02)
    raise AssertionError(f"still reserved: {standing(budget)}")


def settled_cost(budget: Budget, *, team: str = "", user: str = "") -> int:
    """Wait until the cost of the rows equals the budget's counter, which changes first."""
    spent, deadline = settled(budget).spent, time.monotonic() + 60
    of_owner = {"team__in": team_ids(team)} if team else {"user__in": person_ids(user)}
    rows = Exchange.objects.filter(**of_owner, state="closed")
    while (costs := sum(row.cost_nanousd or 0 for row in rows.all())) != spent:
        assert time.monotonic() < deadline, f"the rows cost {costs}, the budget has {spent}"
        time.sleep(0.02)
    return costs
