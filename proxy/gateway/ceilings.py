"""The budgets that cover a caller, as the directory keeps them in memory."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Self

from proxy.counters.windows import Window, window
from proxy.models import ApiKey, Budget
from proxy.record.spending import counter_of

NANOUSD: Final = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetEntry:
    """One budget; money in nano-dollars."""

    id: int
    owner: str  # as people are told: "team platform"
    limit: int
    period: str
    zone: str
    hard: bool

    def window(self, at: float) -> Window:
        return window(self.period, self.zone, at)

    def counter(self, at: float) -> str:
        return counter_of(self.id, self.window(at))


@dataclass(frozen=True, slots=True)
class Budgets:
    """All budgets, by what they cover: ``("team", 3)``."""

    by_owner: Mapping[tuple[str, int], tuple[BudgetEntry, ...]]

    @classmethod
    def over(cls, budgets: Iterable[Budget]) -> Self:
        found: dict[tuple[str, int], tuple[BudgetEntry, ...]] = defaultdict(tuple)
        for budget in budgets:
            entry = BudgetEntry(
                id=budget.pk,
                owner=budget.owner,
                limit=int(Decimal(budget.usd) * NANOUSD),
                period=budget.period,
                zone=budget.zone,
                hard=budget.hard,
            )
            for kind in ("team", "key", "user"):
                owner = getattr(budget, f"{kind}_id")
                if owner is not None:
                    found[kind, owner] += (entry,)
        return cls(found)

    def of(self, key: ApiKey) -> tuple[BudgetEntry, ...]:
        """Those of the key (of a rotated one: of its successor too), its team and its user."""
        owners = (
            ("key", key.pk),
            ("key", key.successor_id or 0),
            ("team", key.team_id),
            ("user", key.user_id or 0),
        )
        return tuple(entry for owner in owners for entry in self.by_owner.get(owner, ()))
