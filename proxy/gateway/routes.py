"""Model name -> the targets to try, in order."""

import hashlib
import math
import random
from dataclasses import dataclass

from .cooldown import Cooldown, Key, cooldown
from .directory import Caller, RouteEntry, directory
from .refusals import Refusal, forbidden, unknown_model
from .targets import ANY, Target


@dataclass(slots=True)  # not frozen: that would be a call for each field
class Route:
    """What a request's model name led to; ``targets`` is never empty."""

    name: str  # the route as configured: "claude-*"
    targets: tuple[Target, ...]


def choose_route(caller: Caller, model: str, session: str = "") -> Route:
    """The targets for this model; raises Refusal 403, 404, or 500 when none is usable.

    ``session`` is the conversation's id; empty: it has none.
    """
    snapshot, team = directory.snapshot, caller.team
    if (team.models.names and not team.models.allow(model)) or (
        caller.models.names and not caller.models.allow(model)
    ):
        raise forbidden(f"model: this gateway key may not use {model[:200]!r}")
    entry = snapshot.route(team.name, model)
    if entry is None:
        raise unknown_model(model, [route.model for route in snapshot.models(caller)])
    if not entry.targets:
        raise Refusal(
            500,
            "api_error",
            f"model: {model[:200]!r} has no usable upstream; see the gateway's /readyz",
            {"x-should-retry": "false"},
            outcome="gateway_error",
            source="gateway",
            detail="no_upstream",
        )
    if len(entry.targets) == 1:
        return Route(entry.model, entry.targets)
    return Route(entry.model, ordered(entry, model, session, cooldown))


def key_of(target: Target, asked: str) -> Key:
    return target.server.name, asked if target.model in ANY else target.model


def ordered(entry: RouteEntry, asked: str, session: str, cooling: Cooldown) -> tuple[Target, ...]:
    """As configured, those that cool last; with weights, one of the healthy goes first.

    Weights that are all 1 (the default) mean "in order"; 0 means "only when the others fail".
    A session keeps its target, and with it the upstream's prompt cache.
    """
    targets = cooling.healthy_first(entry.targets, lambda target: key_of(target, asked))
    if all(weight == 1 for weight in entry.weights):
        return targets
    drawn = [
        (target, weight)
        for target, weight in zip(entry.targets, entry.weights, strict=True)
        if weight and not cooling.is_cooling(key_of(target, asked))
    ]
    if not drawn:
        return targets
    first = _first(drawn, asked, session)
    return (first, *(target for target in targets if target is not first))


def _first(drawn: list[tuple[Target, int]], asked: str, session: str) -> Target:
    """By weight; for a session the same one each time.

    Weighted rendezvous hashing: when a target cools, only its own sessions move, and come back.
    """
    if not session:
        weights = [weight for _, weight in drawn]
        return random.choices(drawn, weights)[0][0]  # noqa: S311 - spreading load

    def distance(each: tuple[Target, int]) -> float:
        target, weight = each
        text = "\0".join((session, *key_of(target, asked)))
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
        return -math.log((number + 1) / 2**64) / weight

    return min(drawn, key=distance)[0]
