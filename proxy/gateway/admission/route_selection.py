"""Select the route for a model name, and the order in which the route's targets are tried."""

import dataclasses
import hashlib
import math
import random
from dataclasses import dataclass
from typing import cast

from proxy.gateway.http.errors import HttpError
from proxy.gateway.snapshot.config_snapshot import Caller, RouteEntry, directory
from proxy.gateway.snapshot.pauses import PauseEntry, pause_of
from proxy.gateway.snapshot.targets import SAME_MODEL, RequestFacts, Target

from .checks import model_rules, require
from .cooldown import Cooldown, Key, cooldown


@dataclass(slots=True)  # the class is not frozen, because that is faster to create
class Route:
    """The route of a request; ``targets`` is never empty."""

    name: str  # the route's name as configured, for example "claude-*"
    targets: tuple[Target, ...]


def choose_route(
    caller: Caller, model: str, session: str = "", facts: RequestFacts | None = None
) -> Route:
    """Return the route for this model name, with the targets that take the request.

    ``session`` is the conversation's id or empty; without ``facts`` no conditions apply. Raises
    HttpError 400 if no target takes the request, 403 if the caller may not use the model, 404 if
    there is no route, and 500 if no target of the route is usable.
    """
    snapshot = directory.snapshot
    found = snapshot.route(caller.team.name, model)
    require(model_rules(caller, model, found))
    entry = cast("RouteEntry", found)
    if facts is not None and any(target.when is not None for target in entry.targets):
        entry = _matching(entry, facts)
    if snapshot.pauses:
        entry = _without_paused_targets(entry, model, snapshot.pauses)
    if len(entry.targets) == 1:
        return Route(entry.model, entry.targets)
    return Route(entry.model, by_health_and_weight(entry, model, session, cooldown))


def matching_targets(entry: RouteEntry, facts: RequestFacts) -> RouteEntry:
    """Return the route with only the targets that take the request, which may be none."""
    pairs = zip(entry.targets, entry.weights, strict=True)
    taking = [(target, weight) for target, weight in pairs if target.takes(facts)]
    return dataclasses.replace(
        entry,
        targets=tuple(target for target, _ in taking),
        weights=tuple(weight for _, weight in taking),
    )


def _matching(entry: RouteEntry, facts: RequestFacts) -> RouteEntry:
    """Return the route with the targets that take the request. Raises HttpError 400 for none."""
    matching = matching_targets(entry, facts)
    if matching.targets:
        return matching
    raise HttpError(
        400,
        "invalid_request_error",
        f"model: no target of the route {entry.model!r} takes this request of about "
        f"{facts.input_tokens} input tokens; see the conditions of its targets",
        {"x-should-retry": "false"},
        outcome="refused",
        source="gateway",
        detail="no_target",
    )


def _without_paused_targets(
    entry: RouteEntry, model: str, pauses: tuple[PauseEntry, ...]
) -> RouteEntry:
    """Return the route without its paused targets. Raises HttpError 529 if all are paused."""
    found = [pause_of(pauses, target, model) for target in entry.targets]
    if all(found):
        raise HttpError(
            529,
            "overloaded_error",
            found[0].message,  # type: ignore[union-attr]  # not None: all targets are paused
            {"x-should-retry": "false"},
            source="gateway",
            detail="paused",
        )
    return dataclasses.replace(
        entry,
        targets=tuple(t for t, pause in zip(entry.targets, found, strict=True) if pause is None),
        weights=tuple(w for w, pause in zip(entry.weights, found, strict=True) if pause is None),
    )


def key_of(target: Target, model: str) -> Key:
    return target.server.name, model if target.model in SAME_MODEL else target.model


def by_health_and_weight(
    entry: RouteEntry, model: str, session: str, cooling: Cooldown
) -> tuple[Target, ...]:
    """Return the targets in the order to try them: as configured, but targets in cooldown last.

    With weights, a randomly chosen target that is not in cooldown comes first. If all weights are 1
    (the default), the configured order applies; weight 0 means "only if the others fail". Requests
    of one session get the same first target, so that they use the upstream's prompt cache.
    """
    targets = cooling.healthy_first(entry.targets, lambda target: key_of(target, model))
    if all(weight == 1 for weight in entry.weights):
        return targets
    candidates = [
        (target, weight)
        for target, weight in zip(entry.targets, entry.weights, strict=True)
        if weight and not cooling.is_cooling(key_of(target, model))
    ]
    if not candidates:
        return targets
    first = _choose_first(candidates, model, session)
    return (first, *(target for target in targets if target is not first))


def _choose_first(candidates: list[tuple[Target, int]], model: str, session: str) -> Target:
    """Choose a target at random by weight; for the same session always the same target.

    This is weighted rendezvous hashing: while a target is in cooldown, only its own sessions move
    to other targets.
    """
    if not session:
        weights = [weight for _, weight in candidates]
        return random.choices(candidates, weights)[0][0]  # noqa: S311 - this only spreads load

    def distance(candidate: tuple[Target, int]) -> float:
        target, weight = candidate
        text = "\0".join((session, *key_of(target, model)))
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
        return -math.log((number + 1) / 2**64) / weight

    return min(candidates, key=distance)[0]
