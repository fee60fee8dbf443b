"""What stands between a request and its upstream: the doors in their order, and a rehearsal.

The windows ask here what would become of a request; the gateway that serves in this process answers
with the very things it decides by. It knows of no window, and no window knows it.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final


@dataclass(frozen=True, slots=True)
class Door:
    """One question that is asked of every request, and what a No is."""

    name: str
    whose: str
    asks: str
    status: int
    error: str


def _limits(whose: str) -> tuple[Door, ...]:
    asked = {
        "concurrency": "do fewer than `concurrency` of its requests run?",
        "rpm": "is there one of `rpm` requests left in its bucket?",
        "tpm": "are the estimated input tokens left in its bucket of `tpm`?",
    }
    return tuple(
        Door(f"{whose}_{name}", whose, asks, 429, "rate_limit_error")
        for name, asks in asked.items()
    )


_NAMED: Final = "is the model one of `models`, or are none named?"
_PRICED: Final = (
    "does it have a price at each upstream of its route? (asked under a hard budget, unless "
    "`BRIDGE_UNPRICED=serve`)"
)
_ROOM: Final = "is there room for the worst case in each of its hard budgets?"

DOORS: Final = (
    Door("revoked", "key", "are it and its user still active?", 401, "authentication_error"),
    Door("expired", "key", "is it before `expires`?", 401, "authentication_error"),
    Door("address", "key", "does the client come from `ip_allow`?", 403, "permission_error"),
    Door("scope", "key", "does it have the scope `messages`?", 403, "permission_error"),
    Door("team_models", "team", _NAMED, 403, "permission_error"),
    Door("key_models", "key", _NAMED, 403, "permission_error"),
    Door("route", "model", "is there a route with an upstream?", 404, "not_found_error"),
    *_limits("key"),
    *_limits("team"),
    Door("price", "model", _PRICED, 402, "billing_error"),
    Door("key_budget", "key", _ROOM, 402, "billing_error"),
    Door("team_budget", "team", _ROOM, 402, "billing_error"),
    Door("user_budget", "user", _ROOM, 402, "billing_error"),
)
"""In the order in which the gateway asks. The first No is the answer; all of them hold."""


class Fate(StrEnum):
    PASSES = "passes"
    REFUSES = "refuses"
    TELLS = "tells"  # a budget that is not hard has no room: it only warns
    UNKNOWN = "unknown"  # it cannot be said from here


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One door for this request. Figures are requests, tokens, or nano-dollars (``money``)."""

    door: Door
    of: str  # "key platform/ci"
    fate: Fate
    limit: int | None = None  # None: there is no ceiling, or it has no figures
    used: int | None = None  # with what running requests hold
    takes: int | None = None  # what this request would take
    money: bool = False
    budget: int | None = None  # its id
    period: str = ""  # of a budget
    resets: datetime | None = None  # when all of it is there again

    @property
    def left(self) -> int | None:
        return None if self.limit is None or self.used is None else max(0, self.limit - self.used)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A request that nobody sent."""

    key_id: int
    model: str
    input_tokens: int
    max_tokens: int
    ip: str = ""  # empty: nobody says where it comes from


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    findings: tuple[Finding, ...]  # one or more for each door that there is, in their order
    route: str = ""  # as configured: "claude-*"
    targets: tuple[str, ...] = ()  # "openai gpt-5.2"
    worst_case: int | None = None  # nano-dollars; None: no price is known

    @property
    def refused_by(self) -> Finding | None:
        return next((one for one in self.findings if one.fate is Fate.REFUSES), None)


def without_figures(told: Rehearsal, seen: Container[int]) -> Rehearsal:
    """For whoever sees these budgets only: of others it hears what they say, and no figures."""
    return replace(
        told,
        findings=tuple(
            one
            if one.budget is None or one.budget in seen
            else replace(one, limit=None, used=None, takes=None)
            for one in told.findings
        ),
    )


class NotServing(Exception):
    """No gateway serves in this process, or it does not know the key yet."""


_rehearsers: Final[list[Callable[[Wish], Rehearsal]]] = []


def serve_by(rehearser: Callable[[Wish], Rehearsal]) -> None:
    """The gateway of this process says how it would decide."""
    _rehearsers[:] = [rehearser]


def rehearse(wish: Wish) -> Rehearsal:
    """What would become of it now. Nothing is counted, held or written. Raises NotServing."""
    if not _rehearsers:
        raise NotServing("no gateway serves in this process")
    return _rehearsers[0](wish)
