"""Admits a request against the budgets that cover it: its worst case is held until it is over.

Callers without a budget cost nothing here. Stores block, so they are asked in one thread, whose
queue keeps the order: a request is held before it is settled, also when its client goes away.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from django.db import DatabaseError, connection

from proxy.conf import conf
from proxy.counters.shared import budget_store
from proxy.counters.store import Ceiling, Standing, StoreAway, Verdict
from proxy.models import Budget
from proxy.record import spending
from proxy.record.export import usd
from proxy.record.pricing import charge_of, cost_of
from proxy.record.recorder import recorder
from proxy.record.records import CloseRecord
from translator.estimate import estimate_tokens
from translator.notes import Note

from .ceilings import BudgetEntry
from .keeper import keeper
from .refusals import Refusal
from .routes import Route

if TYPE_CHECKING:
    from .ledger import Exchange

log = logging.getLogger("proxy.gateway")

SEEDINGS: Final = 3
UNPRICED: Final = 1
"""Nano-dollars held for a model without a price: a spent budget refuses it all the same."""

_pool: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="budgets")


@dataclass(slots=True)
class Hold:
    """What one request holds of its budgets. ``end`` is called once, on every way out."""

    request_id: str
    counters: tuple[str, ...]
    worst_case: Mapping[str, int] | None = None
    """``input`` and ``output`` tokens that a hard budget reserved; None: there is no hard one."""

    def end(self, closing: CloseRecord | None) -> None:
        """Settle for what it cost; None: it was never accepted. Nobody waits for that."""
        if closing is None:
            change = _pool.submit(budget_store().release, self.request_id, self.counters)
        else:
            cost = charge_of(closing.usage, closing.price, closing.attempts) or 0
            change = _pool.submit(budget_store().settle, self.request_id, self.counters, cost)
        change.add_done_callback(_watched)


async def reserve(entry: "Exchange", route: Route) -> None:
    """Hold the worst case against every budget of the caller, or raise Refusal 402.

    503 when the counters cannot be reached at all: money is not spent unseen.
    """
    budgets = entry.caller.budgets
    if not budgets:
        return
    asked = entry.request
    tokens, most_output = estimate_tokens(asked), int(asked["max_tokens"])
    amount = _worst_case(entry, route, tokens, most_output)
    counters = tuple(budget.counter(entry.created) for budget in budgets)
    is_hard = any(budget.hard for budget in budgets)
    worst_case = {"input": tokens, "output": most_output} if is_hard else None
    # First: we may be cancelled while we wait.
    entry.hold = Hold(entry.head.request_id, counters, worst_case)
    try:
        verdict = await asyncio.get_running_loop().run_in_executor(
            _pool, _reserved, entry.head.request_id, amount, budgets, entry.created
        )
    except StoreAway as exc:
        log.error("budgets cannot be checked: %s", exc)  # noqa: TRY400 - no bug of ours
        raise _unchecked() from None
    if verdict.full:
        name, standing = verdict.full[0]
        budget = budgets[counters.index(name)]
        keeper.exhausted(budget, entry.created)
        raise _spent(budget, standing, amount, entry.created)


def _worst_case(entry: "Exchange", route: Route, tokens: int, max_tokens: int) -> int:
    """All input at the dearest class, all output that was asked for, at the dearest target."""
    day = datetime.fromtimestamp(entry.created, UTC).date()
    costs = []
    for target in route.targets:
        model = target.model_for(entry.model)
        price = entry.prices.at(target.server.name, model, day)
        if price is None:
            if refuses_unpriced(entry.caller.budgets):
                raise _unpriced(entry.model, target.server.name, model)
            reason = f"budget: no price is known for {model[:100]!r}, so nothing is reserved"
            entry.remarks.append(Note("model", "ignored", reason))
        else:
            costs.append(most(price, tokens, max_tokens))
    return max(costs, default=UNPRICED)


def refuses_unpriced(budgets: Sequence[BudgetEntry]) -> bool:
    """Whether a model without a price is refused to a caller with these budgets."""
    return conf.refuse_unpriced and any(budget.hard for budget in budgets)


def most(price: Mapping[str, Any], tokens: int, max_tokens: int) -> int:
    """Nano-dollars of so much input, all of it at the dearest class, and all of the output."""
    classes = ("input", "cache_write_5m", "cache_write_1h")
    dearest = max((price[name] for name in classes if price[name] is not None), key=float)
    cost = cost_of({"input": tokens, "output": max_tokens}, {**price, "input": dearest})
    return cost.total if cost else UNPRICED


def _reserved(request_id: str, amount: int, budgets: Sequence[BudgetEntry], at: float) -> Verdict:
    """In the pool's thread: ask, and seed from the ledger what was never asked for before."""
    keeper.start()
    ceilings = {
        budget.counter(at): Ceiling(budget.counter(at), budget.limit if budget.hard else None)
        for budget in budgets
    }
    keeper.holding(ceilings)
    for _ in range(SEEDINGS):
        verdict = budget_store().reserve(
            request_id, recorder.worker, amount, list(ceilings.values())
        )
        if not verdict.unknown:
            return verdict
        for budget in budgets:
            if budget.counter(at) in verdict.unknown:
                _seed(budget, at)
    raise StoreAway("the counters vanish as soon as they are made")


def _seed(budget: BudgetEntry, at: float) -> None:
    try:
        found = Budget.objects.select_related("team", "key", "user").get(pk=budget.id)
        spending.publish(found, budget.window(at))
    except StoreAway:
        spending.DIRTY.set()  # this machine's own counter was made
    except (DatabaseError, Budget.DoesNotExist) as exc:
        log.warning("budget of %s: the ledger cannot be summed yet: %s", budget.owner, exc)
        spending.DIRTY.set()
        budget_store().publish(budget.counter(at), 0)
    finally:
        connection.close()


def _spent(budget: BudgetEntry, standing: Standing, amount: int, at: float) -> Refusal:
    reset = budget.window(at).end
    return Refusal(
        402,
        "billing_error",
        f"{budget.owner} has no room in its budget: limit {usd(budget.limit)} USD a "
        f"{budget.period}, spent {usd(standing.used)}, reserved by running requests "
        f"{usd(standing.reserved)}, this request may cost up to {usd(amount)}; "
        f"it resets at {reset.isoformat()}",
        {"x-should-retry": "false"},
        detail="budget",
    )


def _unpriced(asked: str, upstream: str, model: str) -> Refusal:
    named = "" if model == asked else f" as {model[:100]!r}"
    return Refusal(
        402,
        "billing_error",
        f"model {asked[:200]} has no price at upstream {upstream!r}{named}, and a hard budget "
        "covers this key: its cost could not be counted; ask an administrator to add a price "
        f"(`[[prices]]` with upstream = {upstream!r} and model = {model[:100]!r}, or Prices in the "
        "admin)",
        {"x-should-retry": "false"},
        detail="unpriced",
    )


def _unchecked() -> Refusal:
    return Refusal(
        503, "api_error", "budgets cannot be checked right now", {"retry-after": "5"},
        outcome="gateway_error", source="gateway", detail="budgets",
    )  # fmt: skip


def _watched(change: "Future[None]") -> None:
    exc = change.exception()
    if exc is not None:
        log.warning("budgets: %s; the ledger sets it right", exc)
        spending.DIRTY.set()
