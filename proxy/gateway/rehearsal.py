"""Answers what would become of a request, by the snapshot, meters and counters that decide it."""

import math
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from django.db import DatabaseError

from proxy.admission import DOORS, Door, Fate, Finding, NotServing, Rehearsal, Wish
from proxy.counters.shared import budget_store
from proxy.counters.store import Standing, StoreAway
from proxy.key_validity import Reason, refusals
from proxy.models import Budget
from proxy.record import spending

from . import shared_limits
from .budgets import UNPRICED, most, refuses_unpriced
from .ceilings import BudgetEntry
from .directory import Caller, Limits, RouteEntry, directory
from .head import inside
from .limits import Meter, limits

DOOR: Final = {door.name: door for door in DOORS}
UNKNOWN_KEY: Final = (
    "the gateway does not know this key: it has no secret, or was just made; ask again in a second"
)
ORDER: Final = {door.name: place for place, door in enumerate(DOORS)}


def rehearse(wish: Wish) -> Rehearsal:
    snapshot = directory.snapshot
    caller = next((one for one in snapshot.keys.values() if one.key_id == wish.key_id), None)
    if caller is None:
        raise NotServing(UNKNOWN_KEY)
    route = snapshot.route(caller.team.name, wish.model)
    costs = _worst_cases(wish, route)
    amount = max((cost for cost in costs if cost is not None), default=None)
    priced = None not in costs or not refuses_unpriced(caller.budgets)
    found = [
        *_of_key(caller, wish),
        *_of_model(caller, wish, route),
        _found("price", f"model {wish.model}", priced),
        *_of_limits(caller, wish),
        *_of_budgets(caller, None if route is None or not route.targets else amount or UNPRICED),
    ]
    return Rehearsal(
        findings=tuple(sorted(found, key=lambda one: ORDER[one.door.name])),
        route=route.model if route else "",
        targets=tuple(
            f"{target.server.name} {target.model_for(wish.model)}"
            for target in (route.targets if route else ())
        ),
        worst_case=amount,
    )


def _found(name: str, of: str, ok: bool | None, **figures: Any) -> Finding:
    """``ok`` None: it cannot be said."""
    fate = Fate.UNKNOWN if ok is None else Fate.PASSES if ok else Fate.REFUSES
    return Finding(door=DOOR[name], of=of, fate=fate, **figures)


def _of_key(caller: Caller, wish: Wish) -> Iterator[Finding]:
    name = _key(caller)
    at_home = inside(wish.ip, caller.ip_allow) if wish.ip else None
    reasons = set(refusals(caller.ends, time.time()))
    yield _found("revoked", name, not reasons - {Reason.EXPIRED})
    yield _found("expired", name, Reason.EXPIRED not in reasons)
    yield _found("address", name, at_home if caller.ip_allow else True)
    yield _found("scope", name, "messages" in caller.scopes)


def _of_model(caller: Caller, wish: Wish, route: RouteEntry | None) -> Iterator[Finding]:
    yield _found("team_models", _team(caller), caller.team.models.allow(wish.model))
    yield _found("key_models", _key(caller), caller.models.allow(wish.model))
    yield _found("route", f"model {wish.model}", route is not None and bool(route.targets))


def _of_limits(caller: Caller, wish: Wish) -> Iterator[Finding]:
    """None for what has no limit."""
    meters = _meters(caller)
    whose = (("key", caller.limits), ("team", caller.team.limits))
    for (kind, told), meter in zip(whose, meters, strict=True):
        yield from _of_meter(kind, told, meter, wish.input_tokens)


def _of_meter(kind: str, told: Limits, meter: Meter, tokens: int) -> Iterator[Finding]:
    running = meter.running + meter.elsewhere
    if told.concurrency is not None:
        figures: dict[str, Any] = {"limit": told.concurrency, "used": running, "takes": 1}
        yield _found(f"{kind}_concurrency", meter.name, running < told.concurrency, **figures)
    for name, bucket, takes in (("rpm", meter.requests, 1), ("tpm", meter.tokens, tokens)):
        if bucket is not None:
            yield _found(
                f"{kind}_{name}",
                meter.name,
                bucket.left >= min(takes, bucket.size),
                limit=bucket.size,
                used=math.ceil(bucket.size - bucket.left),
                takes=takes,
                resets=datetime.fromtimestamp(time.time() + bucket.seconds_until(bucket.size), UTC),
            )


def _meters(caller: Caller) -> tuple[Meter, Meter]:
    """Copies, as the door would find them: of all processes, where several count together."""
    names = (f"key {caller.meter}", f"team {caller.team.name}")
    shared = shared_limits.common()
    meters: Sequence[Meter]
    if shared is not None and not shared.away:
        try:
            meters, now = shared.look(names), time.time()
        except StoreAway:
            meters, now = limits.look(caller), time.monotonic()
    else:
        meters, now = limits.look(caller), time.monotonic()
    for meter, told in zip(meters, (caller.limits, caller.team.limits), strict=True):
        meter.fit(told, now)
    return meters[0], meters[1]


def _worst_cases(wish: Wish, route: RouteEntry | None) -> list[int | None]:
    """At each target; ``budgets`` holds the dearest. None: it has no price."""
    prices, day = directory.snapshot.prices, datetime.now(UTC).date()
    found = (
        prices.at(target.server.name, target.model_for(wish.model), day)
        for target in (route.targets if route else ())
    )
    return [
        None if price is None else most(price, wish.input_tokens, wish.max_tokens)
        for price in found
    ]


def _of_budgets(caller: Caller, amount: int | None) -> Iterator[Finding]:
    at = time.time()
    for budget in caller.budgets:
        door = DOOR[f"{budget.owner.partition(' ')[0]}_budget"]
        yield _of_budget(budget, door, _standing(budget, at), amount, at)


def _of_budget(
    budget: BudgetEntry, door: Door, standing: Standing | None, amount: int | None, at: float
) -> Finding:
    used = None if standing is None else standing.used + standing.reserved
    fate = Fate.UNKNOWN
    if used is not None and amount is not None:
        full = used + amount > budget.limit
        fate = (Fate.REFUSES if budget.hard else Fate.TELLS) if full else Fate.PASSES
    return Finding(
        door=door,
        of=budget.owner,
        fate=fate,
        limit=budget.limit,
        used=used,
        takes=amount,
        money=True,
        budget=budget.id,
        period=budget.period,
        resets=budget.window(at).end,
    )


def _standing(budget: BudgetEntry, at: float) -> Standing | None:
    """By its counter; by the ledger, where nobody has asked for it in this period yet."""
    try:
        counted = budget_store().standing(budget.counter(at))
        if counted is not None:
            return counted
        rows = Budget.objects.select_related("team", "key", "user")
        found = rows.filter(pk=budget.id).first()
        return Standing(spending.spent(found, budget.window(at)), 0, 0) if found else None
    except (StoreAway, DatabaseError):
        return None


def _key(caller: Caller) -> str:
    return f"key {caller.team.name}/{caller.key_name}"


def _team(caller: Caller) -> str:
    return f"team {caller.team.name}"
