"""The budgets of the configuration snapshot, by the team, key or user that they cover."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Self

from proxy.counters.budget_periods import BudgetPeriod, window
from proxy.ledger.posting.budget_sync import counter_name
from proxy.models import ApiKey, Budget
from proxy.models.setup.columns import matches_any
from proxy.money import nanousd_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetConfig:
    """One budget. Amounts are in nano-dollars."""

    id: int
    owner: str  # the owner as named in error messages, for example "team platform"
    limit: int
    period: str
    zone: str
    hard: bool
    models: tuple[str, ...] = ()  # names or globs; empty: all models

    def covers(self, model: str) -> bool:
        """Return whether the cost of requests for this model counts."""
        return not self.models or matches_any(model, self.models)

    def window(self, at: float) -> BudgetPeriod:
        return window(self.period, self.zone, at)

    def counter(self, at: float) -> str:
        return counter_name(self.id, self.window(at))


@dataclass(frozen=True, slots=True)
class Budgets:
    """All budgets, by kind and id of the object that each covers, such as ``("team", 3)``."""

    by_owner: Mapping[tuple[str, int], tuple[BudgetConfig, ...]]

    @classmethod
    def from_rows(cls, budgets: Iterable[Budget]) -> Self:
        found: dict[tuple[str, int], tuple[BudgetConfig, ...]] = defaultdict(tuple)
        for budget in budgets:
            config = BudgetConfig(
                id=budget.pk,
                owner=budget.owner,
                limit=nanousd_of(Decimal(budget.usd)),
                period=budget.period,
                zone=budget.zone,
                hard=budget.hard,
                models=tuple(budget.models_covered),
            )
            for kind in ("team", "key", "user"):
                owner = getattr(budget, f"{kind}_id")
                if owner is not None:
                    found[kind, owner] += (config,)
        return cls(found)

    def for_key(self, key: ApiKey) -> tuple[BudgetConfig, ...]:
        """Return the budgets of a key (if rotated, of its successor), its team and its user."""
        owners = (
            ("key", key.pk),
            ("key", key.successor_id or 0),
            ("team", key.team_id),
            ("user", key.user_id or 0),
        )
        return tuple(config for owner in owners for config in self.by_owner.get(owner, ()))
