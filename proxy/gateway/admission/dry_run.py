"""The admission dry run: evaluate all admission checks for a hypothetical request."""

import math
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from django.db import DatabaseError

from proxy.admission_checks import (
    CHECKS,
    AdmissionCheck,
    AdmissionDryRun,
    CheckFinding,
    CheckResult,
    HypotheticalRequest,
    NotServing,
)
from proxy.counters.backends import budget_store
from proxy.counters.budget_store import Standing, StoreUnavailable
from proxy.gateway.http.request_headers import ip_in_networks
from proxy.gateway.snapshot.budget_snapshot import BudgetConfig
from proxy.gateway.snapshot.config_snapshot import Caller, Limits, RouteEntry, directory
from proxy.gateway.snapshot.targets import RequestFacts
from proxy.ledger.posting import budget_sync
from proxy.models import Budget
from proxy.permissions.key_validity import Reason, refusals

from . import shared_rate_limits
from .budgets import UNPRICED, PlannedRequest, covering, possible_costs, refuses_unpriced
from .rate_limits import LimitState, limits, limits_by_state
from .route_selection import matching_targets

CHECK_BY_NAME: Final = {check.name: check for check in CHECKS}
UNKNOWN_KEY: Final = (
    "the gateway does not know this key: it has no secret, or is new; try again in a second"
)
ORDER: Final = {check.name: place for place, check in enumerate(CHECKS)}


def dry_run_admission(request: HypotheticalRequest) -> AdmissionDryRun:
    snapshot = directory.snapshot
    caller = next((each for each in snapshot.keys.values() if each.key_id == request.key_id), None)
    if caller is None:
        raise NotServing(UNKNOWN_KEY)
    route = snapshot.route(caller.team.name, request.model)
    if route is not None:
        route = matching_targets(route, RequestFacts(request.input_tokens, request.client, {}))
    costs = _worst_cases(request, route)
    amount = max((cost for cost in costs if cost is not None), default=None)
    budgets = covering(caller, request.model)
    priced = None not in costs or not refuses_unpriced(budgets)
    findings = [
        *_key_findings(caller, request),
        *_model_findings(caller, request, route),
        _finding("price", f"model {request.model}", priced),
        *_limit_findings(caller, request),
        *_budget_findings(
            budgets, None if route is None or not route.targets else amount or UNPRICED
        ),
    ]
    return AdmissionDryRun(
        findings=tuple(sorted(findings, key=lambda finding: ORDER[finding.check.name])),
        route=route.model if route else "",
        targets=tuple(
            f"{target.server.name} {target.model_for(request.model)}"
            for target in (route.targets if route else ())
        ),
        worst_case=amount,
    )


def _finding(name: str, subject: str, ok: bool | None, **figures: Any) -> CheckFinding:
    """Return the result of the check ``name``. ``ok``: whether it passes; None: unknown."""
    result = (
        CheckResult.UNKNOWN if ok is None else CheckResult.PASSES if ok else CheckResult.REFUSES
    )
    return CheckFinding(check=CHECK_BY_NAME[name], subject=subject, result=result, **figures)


def _key_findings(caller: Caller, request: HypotheticalRequest) -> Iterator[CheckFinding]:
    name = _key_name(caller)
    address_allowed = ip_in_networks(request.ip, caller.ip_allow) if request.ip else None
    reasons = set(refusals(caller.ends, time.time()))
    yield _finding("revoked", name, not reasons - {Reason.EXPIRED})
    yield _finding("expired", name, Reason.EXPIRED not in reasons)
    yield _finding("address", name, address_allowed if caller.ip_allow else True)
    yield _finding("scope", name, "messages" in caller.scopes)


def _model_findings(
    caller: Caller, request: HypotheticalRequest, route: RouteEntry | None
) -> Iterator[CheckFinding]:
    yield _finding("team_models", _team_name(caller), caller.team.models.allow(request.model))
    yield _finding("key_models", _key_name(caller), caller.models.allow(request.model))
    yield _finding("route", f"model {request.model}", route is not None and bool(route.targets))


def _limit_findings(caller: Caller, request: HypotheticalRequest) -> Iterator[CheckFinding]:
    """Yield the result of each rate limit that is set for the caller's key or team."""
    pairs = limits_by_state(caller, request.model)
    states = _current_states(caller, request.model, pairs)
    for (name, own_limits), state in zip(pairs, states, strict=True):
        kind = name.partition(" ")[0]
        yield from _state_findings(kind, own_limits, state, request.input_tokens)


def _state_findings(
    kind: str, own_limits: Limits, state: LimitState, tokens: int
) -> Iterator[CheckFinding]:
    running = state.running + state.elsewhere
    if own_limits.concurrency is not None:
        figures: dict[str, Any] = {"limit": own_limits.concurrency, "used": running, "takes": 1}
        yield _finding(
            f"{kind}_concurrency", state.name, running < own_limits.concurrency, **figures
        )
    for name, bucket, takes in (("rpm", state.requests, 1), ("tpm", state.tokens, tokens)):
        if bucket is not None:
            yield _finding(
                f"{kind}_{name}",
                state.name,
                bucket.left >= min(takes, bucket.size),
                limit=bucket.size,
                used=math.ceil(bucket.size - bucket.left),
                takes=takes,
                resets=datetime.fromtimestamp(time.time() + bucket.seconds_until(bucket.size), UTC),
            )


def _current_states(
    caller: Caller, model: str, pairs: Sequence[tuple[str, Limits]]
) -> Sequence[LimitState]:
    """Return copies of the limit states with these names. Shared counts include all processes."""
    names = [name for name, _ in pairs]
    shared = shared_rate_limits.shared_limiter()
    states: Sequence[LimitState]
    if shared is not None and not shared.is_unavailable:
        try:
            states, now = shared.read_states(names), time.time()
        except StoreUnavailable:
            states, now = limits.peek(caller, model), time.monotonic()
    else:
        states, now = limits.peek(caller, model), time.monotonic()
    for state, (_, own_limits) in zip(states, pairs, strict=True):
        state.apply_limits(own_limits, now)
    return states


def _worst_cases(request: HypotheticalRequest, route: RouteEntry | None) -> list[int | None]:
    """Return the worst-case costs that admission would compare; None: no price."""
    planned = PlannedRequest(
        id="",
        model=request.model,
        created=time.time(),
        prices=directory.snapshot.prices,
        input_tokens=request.input_tokens,
        max_tokens=request.max_tokens,
    )
    targets = route.targets if route else ()
    return [cost for target in targets for cost in possible_costs(target, planned)]


def _budget_findings(budgets: Sequence[BudgetConfig], amount: int | None) -> Iterator[CheckFinding]:
    at = time.time()
    for budget in budgets:
        check = CHECK_BY_NAME[f"{budget.owner.partition(' ')[0]}_budget"]
        yield _budget_finding(budget, check, _standing(budget, at), amount, at)


def _budget_finding(
    budget: BudgetConfig,
    check: AdmissionCheck,
    standing: Standing | None,
    amount: int | None,
    at: float,
) -> CheckFinding:
    used = None if standing is None else standing.used + standing.reserved
    result = CheckResult.UNKNOWN
    if used is not None and amount is not None:
        full = used + amount > budget.limit
        result = (
            (CheckResult.REFUSES if budget.hard else CheckResult.WARNS)
            if full
            else CheckResult.PASSES
        )
    return CheckFinding(
        check=check,
        subject=budget.owner,
        result=result,
        limit=budget.limit,
        used=used,
        takes=amount,
        money=True,
        budget=budget.id,
        period=budget.period,
        resets=budget.window(at).end,
    )


def _standing(budget: BudgetConfig, at: float) -> Standing | None:
    """Return the amounts of the budget's counter.

    If this period has no counter yet, sum the ledger.
    """
    try:
        standing = budget_store().standing(budget.counter(at))
        if standing is not None:
            return standing
        rows = Budget.objects.select_related("team", "key", "user")
        row = rows.filter(pk=budget.id).first()
        return Standing(budget_sync.spent_nanousd(row, budget.window(at)), 0, 0) if row else None
    except (StoreUnavailable, DatabaseError):
        return None


def _key_name(caller: Caller) -> str:
    return f"key {caller.team.name}/{caller.key_name}"


def _team_name(caller: Caller) -> str:
    return f"team {caller.team.name}"
