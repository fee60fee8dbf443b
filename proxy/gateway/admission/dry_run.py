"""The admission dry run: evaluate all admission checks for a hypothetical request."""

import time
from collections.abc import Sequence
from typing import Final

from django.db import DatabaseError

from proxy.admission_checks import CHECKS, AdmissionDryRun, HypotheticalRequest, NotServing
from proxy.counters.backends import shared_store
from proxy.counters.store import Standing, StoreUnavailable
from proxy.gateway.snapshot.budget_snapshot import BudgetConfig
from proxy.gateway.snapshot.config_snapshot import directory
from proxy.gateway.snapshot.targets import RequestFacts
from proxy.ledger.posting import budget_sync
from proxy.models import Budget

from .budgets import BudgetCheck, PlannedRequest, covering, worst_case
from .checks import key_rules, model_rules
from .rate_limits import Limit, limits, limits_of, shared_limiter
from .route_selection import matching_targets

UNKNOWN_KEY: Final = (
    "the gateway does not know this key: it has no secret, or is new; try again in a second"
)
ORDER: Final = {check.name: place for place, check in enumerate(CHECKS)}


def dry_run_admission(request: HypotheticalRequest) -> AdmissionDryRun:
    """Return what each check would decide. Nothing is committed. Raises NotServing."""
    snapshot, now = directory.snapshot, time.time()
    caller = next((each for each in snapshot.keys.values() if each.key_id == request.key_id), None)
    if caller is None:
        raise NotServing(UNKNOWN_KEY)
    route = snapshot.route(caller.team.name, request.model)
    if route is not None:
        route = matching_targets(route, RequestFacts(request.input_tokens, request.client, {}))
    targets = route.targets if route else ()
    budgets = covering(caller, request.model)
    planned = PlannedRequest(
        id="",
        model=request.model,
        created=now,
        prices=snapshot.prices,
        input_tokens=request.input_tokens,
        max_tokens=request.max_tokens,
    )
    cost = worst_case(budgets, targets, planned)
    rules = (
        *key_rules(caller, request.ip, "messages"),
        *model_rules(caller, request.model, route),
        cost.rule,
    )
    of_limits = limits_of(caller, request.input_tokens, request.model)
    of_budgets = [BudgetCheck(each, cost.amount if targets else None, now) for each in budgets]
    findings = [
        *(rule.evaluate() for rule in rules),
        *(each.evaluate(one) for each, one in zip(of_limits, _peek(of_limits), strict=True)),
        *(each.evaluate(_standing(each.budget, now)) for each in of_budgets),
    ]
    return AdmissionDryRun(
        findings=tuple(sorted(findings, key=lambda finding: ORDER[finding.check.name])),
        route=route.model if route else "",
        targets=tuple(
            f"{target.server.name} {target.model_for(request.model)}" for target in targets
        ),
        worst_case=cost.known,
    )


def _peek(of_limits: Sequence[Limit]) -> list[Standing | None]:
    """Return the current values of the limits. Shared counts include all processes."""
    shared = shared_limiter()
    if shared is not None and not shared.is_unavailable:
        try:
            return shared.peek(of_limits)
        except StoreUnavailable:
            pass
    return limits.peek(of_limits)


def _standing(budget: BudgetConfig, at: float) -> Standing | None:
    """Return the amounts of the budget's counter.

    If this period has no counter yet, sum the ledger.
    """
    try:
        standing = shared_store().standing(budget.counter(at))
        if standing is not None:
            return standing
        rows = Budget.objects.select_related("team", "key", "user")
        row = rows.filter(pk=budget.id).first()
        return Standing(budget_sync.spent_nanousd(row, budget.window(at))) if row else None
    except (StoreUnavailable, DatabaseError):
        return None
