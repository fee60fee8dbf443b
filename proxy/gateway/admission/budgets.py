"""Reserve the worst-case cost of a request in each budget that covers the request.

Requests of a caller without a budget are not reserved. A single thread calls the counter store. Its
queue preserves the order: a reservation is made before it is settled, even if the client
disconnects.
"""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, NamedTuple

from django.db import DatabaseError, InterfaceError, connection

from proxy.admission_checks import CheckFinding, CheckResult
from proxy.conf import conf
from proxy.counters.backends import shared_store
from proxy.counters.store import Standing, StoreUnavailable, Take
from proxy.gateway.http.errors import HttpError
from proxy.gateway.snapshot.budget_snapshot import BudgetConfig
from proxy.gateway.snapshot.config_snapshot import Caller, directory
from proxy.gateway.snapshot.targets import Target
from proxy.ledger.database.access import check_present
from proxy.ledger.errors import LedgerUnavailable
from proxy.ledger.journal.records import CloseRecord
from proxy.ledger.posting import budget_sync
from proxy.ledger.recorder import recorder
from proxy.ledger.usage.pricing import (
    PriceList,
    charge_of,
    cost_of,
    name_of_usage,
    variant_of,
)
from proxy.metrics.definitions import BUDGETS_UNCHECKED
from proxy.metrics.node_state import MAX_BUDGETS, TeamBudget
from proxy.models import Budget
from proxy.money import usd
from translator.anthropic.usage import OPENAI_TIERS
from translator.notes import Note

from .budget_maintenance import budget_maintenance
from .checks import CHECK_BY_NAME, Rule, commit, require
from .counter_thread import CounterThread
from .route_selection import Route

log = logging.getLogger("proxy.gateway")

SEEDINGS: Final = 3
UNPRICED: Final = 1
"""The nano-dollars reserved for a model without a price, so that an exhausted budget rejects its
requests, too."""
PAYMENT_REQUIRED: Final = 402


class SpendingUnknown(Exception):
    """Neither a counter nor the ledger knows what a hard budget has spent."""


UNCHECKED: Final[Mapping[type[BaseException], str]] = {
    StoreUnavailable: "counters",
    SpendingUnknown: "ledger",
}
"""Errors because of which budgets cannot be checked, and what the metric reports as unavailable."""

thread: Final = CounterThread("budgets")


@dataclass(slots=True)
class Reservation:
    """The budget reservation of one request.

    It must be settled exactly once, whatever the outcome.
    """

    request_id: str
    counters: Mapping[str, BudgetConfig]
    """The budgets in which the cost is reserved, by counter."""
    worst_case: Mapping[str, int] | None = None
    """The ``input`` and ``output`` tokens that are reserved in a hard budget; None: no budget is
    hard."""
    at: float = 0.0
    """Seconds since 1970, in the period of all counters."""
    notes: list[Note] = field(default_factory=list)
    """Notes about targets without a price, for which nothing is reserved."""

    def settle(self, closing: CloseRecord | None) -> None:
        """Replace the reservation by the actual cost, in the background.

        If ``closing`` is None, release it.
        """
        cost = closing and (charge_of(closing.usage, closing.price, closing.attempts) or 0)
        change = thread.submit(self._settle_in_store, cost)
        change.add_done_callback(_log_store_failure)

    def _settle_in_store(self, cost: int | None) -> None:
        budget_maintenance.remove_reservation(self.request_id)
        if cost is None:
            shared_store().release(self.request_id, self.counters)
            return
        changes = shared_store().settle(self.request_id, self.counters, cost)
        for counter, used in changes.items():
            budget = self.counters[counter]
            budget_maintenance.reached(budget, self.at, used.crossed(budget.limit))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """The data from which the highest possible cost of a request is computed."""

    id: str
    model: str
    """The model name in the client's request."""
    created: float
    """Seconds since 1970."""
    prices: PriceList
    input_tokens: int
    """The estimated number of input tokens."""
    max_tokens: int
    dimensions: Mapping[str, str] = field(default_factory=dict)
    """The ``speed`` and ``inference_geo`` that the request asks for."""


def covering(caller: Caller, model: str) -> tuple[BudgetConfig, ...]:
    """Return the budgets of the caller in which a request for this model counts."""
    return tuple(budget for budget in caller.budgets if budget.covers(model))


@dataclass(frozen=True, slots=True)
class BudgetCheck:
    """One budget: a ``Check`` for a request that may cost ``amount``; None: unknown."""

    budget: BudgetConfig
    amount: int | None
    at: float

    @property
    def take(self) -> Take:
        # A request that costs nothing may run with a full budget.
        limit = self.budget.limit if self.budget.hard and self.amount else None
        return Take(self.budget.counter(self.at), self.amount or 0, limit)

    def evaluate(self, standing: Standing | None) -> CheckFinding:
        budget = self.budget
        used = None if standing is None else standing.total
        result = CheckResult.UNKNOWN
        if used is not None and self.amount is not None:
            refuses = CheckResult.REFUSES if budget.hard else CheckResult.WARNS
            is_full = self.amount and used + self.amount > budget.limit
            result = refuses if is_full else CheckResult.PASSES
        return CheckFinding(
            check=CHECK_BY_NAME[f"{budget.owner.partition(' ')[0]}_budget"],
            subject=budget.owner,
            result=result,
            limit=budget.limit,
            used=used,
            takes=self.amount,
            money=True,
            budget=budget.id,
            period=budget.period,
            resets=budget.window(self.at).end,
        )

    def error(self, standing: Standing) -> HttpError:
        """Return the 402. It causes the same notice as reaching 100 %."""
        budget = self.budget
        budget_maintenance.reached(budget, self.at, [budget_sync.EXHAUSTED_PERCENT])
        models = f" for {', '.join(budget.models)}" if budget.models else ""
        return HttpError(
            402,
            "billing_error",
            f"{budget.owner} has no room in its budget{models}: limit {usd(budget.limit)} USD a "
            f"{budget.period}, spent {usd(standing.used)}, reserved by running requests "
            f"{usd(standing.reserved)}, this request may cost up to {usd(self.amount or 0)}; "
            f"it resets at {budget.window(self.at).end.isoformat()}",
            {"x-should-retry": "false"},
            detail="budget",
        )


async def reserve(
    budgets: Sequence[BudgetConfig], route: Route, planned: PlannedRequest
) -> Reservation:
    """Reserve the worst-case cost of the request in each of these budgets.

    Raises HttpError 402 if a hard budget is exhausted, and 529 if the check takes too long. Raises
    HttpError 503 if no counter store can be reached, or if neither a counter nor the ledger knows
    what a hard budget has spent, because no money may be spent without a check.
    """
    at = planned.created
    cost = worst_case(budgets, route.targets, planned)
    require([cost.rule])
    checks = [BudgetCheck(budget, cost.amount, at) for budget in budgets]
    counters = {check.take.counter: check.budget for check in checks}
    is_hard = any(budget.hard for budget in budgets)
    tokens = {"input": planned.input_tokens, "output": planned.max_tokens} if is_hard else None
    reservation = Reservation(planned.id, counters, tokens, at, cost.notes)
    try:
        await thread.wait_for(thread.submit(reserve_in_store, planned.id, checks))
    except BaseException as exc:
        # A cancelled request comes here, too: its thread may still reserve the amount.
        if not isinstance(exc, HttpError) or exc.status != PAYMENT_REQUIRED:
            reservation.settle(None)
        reason = UNCHECKED.get(type(exc))
        if reason is None:
            raise
        BUDGETS_UNCHECKED.labels(reason).inc()
        log.error("budgets cannot be checked: %s", exc)  # noqa: TRY400 - not a bug, so no traceback
        raise _store_unavailable() from None
    return reservation


def team_budgets(at: float) -> list[TeamBudget]:
    """Return the current periods of the teams' budgets that the counters know.

    A counter may be unknown until the first request of its period; then the budget is left out,
    because the ledger's sum is not read just for this.
    """
    configs = (
        (budget.counter(at), (team, budget))
        for team, budgets in directory.snapshot.team_budgets.items()
        for budget in budgets
    )
    by_counter = dict(islice(configs, MAX_BUDGETS))
    try:
        standings = shared_store().standings(by_counter)
    except StoreUnavailable:
        return []
    found = []
    for counter, standing in standings.items():
        team, budget = by_counter[counter]
        remaining = budget.limit - standing.used - standing.reserved
        found.append(TeamBudget(team, budget.period, budget.limit, remaining))
    return found


class WorstCase(NamedTuple):
    """The highest possible cost of a request, in nano-dollars."""

    amount: int
    known: int | None
    """The amount as far as prices are known; None: no target has a price."""
    rule: Rule
    """Whether each target has the price that a hard budget needs."""
    notes: list[Note]


def worst_case(
    budgets: Sequence[BudgetConfig], targets: Sequence[Target], planned: PlannedRequest
) -> WorstCase:
    """Return the cost at the most expensive target and variant, with ``max_tokens`` output."""
    costs: list[int] = []
    notes: list[Note] = []
    unpriced: tuple[Target, str] | None = None
    day = datetime.fromtimestamp(planned.created, UTC).date()
    for target in targets:
        asked, model = _asked_of(target, planned.dimensions), target.model_for(planned.model)
        prices = planned.prices.possible(target.server.name, model, day, variant_of(asked))
        if None in prices:
            name = name_of_usage(asked, model)
            unpriced = unpriced or (target, name)
            reason = f"budget: no price is known for {name[:100]!r}, so nothing is reserved"
            notes.append(Note("model", "ignored", reason))
        costs += [
            worst_case_cost(price, planned.input_tokens, planned.max_tokens)
            for price in prices
            if price is not None
        ]
    needed = conf.refuse_unpriced and any(budget.hard for budget in budgets)

    def missing_price() -> HttpError:
        target, name = unpriced or (targets[0], planned.model)
        return missing_price_error(planned.model, target.server.name, name)

    rule = Rule("price", f"model {planned.model}", not (needed and unpriced), missing_price)
    known = max(costs, default=None)
    return WorstCase(UNPRICED if known is None else known, known, rule, notes)


def _asked_of(target: Target, dimensions: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the dimensions of prices that the target's upstream is asked for.

    OpenAI has tiers instead of speeds: ``fast`` becomes ``priority``.
    """
    server = target.server
    if server.dialect_name == "anthropic":
        return dimensions
    tier = server.extra_body.get("service_tier")
    if tier is None and server.profile.service_tier and dimensions.get("speed") == "fast":
        tier = "priority"
    return {"service_tier": OPENAI_TIERS.get(tier, tier)} if isinstance(tier, str) else {}


def worst_case_cost(price: Mapping[str, Any], tokens: int, max_tokens: int) -> int:
    """Return the cost in nano-dollars if all input has the most expensive of the input prices."""
    classes = ("input", "cache_write_5m", "cache_write_1h")
    highest = max((price[name] for name in classes if price[name] is not None), key=float)
    cost = cost_of({"input": tokens, "output": max_tokens}, {**price, "input": highest})
    return cost.total if cost else UNPRICED


def reserve_in_store(request_id: str, checks: Sequence[BudgetCheck]) -> None:
    """Reserve the amounts. First fill new counters with the ledger's sums. Raises HttpError 402."""
    budget_maintenance.start()
    by_counter = {check.take.counter: check for check in checks}
    for _ in range(SEEDINGS):
        taken = commit(
            checks, lambda takes: shared_store().take(request_id, recorder.worker, takes)
        )
        if taken.granted:
            counters = {counter: check.budget for counter, check in by_counter.items()}
            budget_maintenance.add_reservation(request_id, counters)
            return
        for counter in taken.unknown:
            seed(by_counter[counter].budget, by_counter[counter].at)
    raise StoreUnavailable("the counters disappear as soon as they are created")


def seed(budget: BudgetConfig, at: float) -> None:
    """Set a new counter to the ledger's sum.

    If the ledger is unavailable, a soft budget is counted from 0 until the ledger is back. A hard
    budget raises SpendingUnknown: counting from 0 would allow its whole limit again.
    """
    try:
        check_present()  # SQLite would create an empty ledger in place of a missing one
        row = Budget.objects.select_related("team", "key", "user").get(pk=budget.id)
        budget_sync.publish(row, budget.window(at))
    except StoreUnavailable:
        budget_sync.DIRTY.set()  # the local counter was created; Redis gets the sum later
    except Budget.DoesNotExist:  # the budget was deleted: the next snapshot does not contain it
        shared_store().publish(budget.counter(at), 0)
    except (DatabaseError, InterfaceError, LedgerUnavailable) as exc:
        budget_sync.DIRTY.set()
        if budget.hard:
            raise SpendingUnknown(
                f"the ledger is unavailable, and no counter has the spending of {budget.owner}, "
                f"whose budget is hard: {exc}"
            ) from exc
        log.warning("budget of %s: the ledger cannot be summed yet: %s", budget.owner, exc)
        shared_store().publish(budget.counter(at), 0)
    finally:
        connection.close()


def missing_price_error(requested: str, upstream: str, model: str) -> HttpError:
    """Return the 402 for a model whose price a hard budget needs."""
    alias = "" if model == requested else f" as {model[:100]!r}"
    return HttpError(
        402,
        "billing_error",
        f"model {requested[:200]} has no price at upstream {upstream!r}{alias}, and a hard budget "
        "covers this key: its cost could not be counted; ask an administrator to add a price "
        f"(`[[prices]]` with upstream = {upstream!r} and model = {model[:100]!r}, or Prices in the "
        "admin)",
        {"x-should-retry": "false"},
        detail="unpriced",
    )


def _store_unavailable() -> HttpError:
    return HttpError(
        503, "api_error", "budgets cannot be checked right now", {"retry-after": "5"},
        outcome="gateway_error", source="gateway", detail="budgets",
    )  # fmt: skip


def _log_store_failure(change: "Future[None]") -> None:
    exc = change.exception()
    if exc is not None:
        log.warning("budgets: %s; the next sum of the ledger corrects it", exc)
        budget_sync.DIRTY.set()
