"""The checks of admission: each limit or rule is one object, for the request and for the dry run.

A ``Check`` says what the request takes from a counter, evaluates the values of the counter, and has
the error of a refusal. ``evaluate`` changes nothing. ``commit`` takes what all checks need, in one
change of the store, or raises the error of the first check that refuses. A ``Rule`` needs no
counter. So the dry run is evaluation without ``commit``, and a new limit is one class.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from proxy.admission_checks import CHECKS, CheckFinding, CheckResult
from proxy.counters.store import Standing, StoreUnavailable, Take, Taken
from proxy.gateway.http.errors import HttpError, forbidden, unauthenticated, unknown_model
from proxy.gateway.http.request_headers import ip_in_networks
from proxy.gateway.snapshot.config_snapshot import Caller, RouteEntry, directory
from proxy.permissions.key_validity import MESSAGES, Reason, refusals

CHECK_BY_NAME: Final = {check.name: check for check in CHECKS}


class Check(Protocol):
    """One limit for a request."""

    @property
    def take(self) -> Take:
        """What the request takes from the counter of the limit."""
        ...

    def evaluate(self, standing: Standing | None) -> CheckFinding:
        """Return the result. ``standing``: the values of the counter; None: unknown."""
        ...

    def error(self, standing: Standing) -> HttpError: ...


def commit(checks: Sequence[Check], take: Callable[[Sequence[Take]], Taken]) -> Taken:
    """Take what each check needs, or nothing: then raise the error of the first that refuses."""
    taken = take([each.take for each in checks])
    if not taken.granted and not taken.unknown:
        for check, standing in zip(checks, taken.standings, strict=True):
            if not check.take.fits(standing):
                raise check.error(standing)
        raise StoreUnavailable("the store refused what the gateway allows")
    return taken


@dataclass(frozen=True, slots=True)
class Rule:
    """A check that needs no counter, so there is nothing to commit. ``passes`` None: unknown."""

    name: str
    subject: str
    passes: bool | None
    refusal: Callable[[], HttpError]

    def evaluate(self) -> CheckFinding:
        return finding(self.name, self.subject, passes=self.passes)


def finding(name: str, subject: str, *, passes: bool | None) -> CheckFinding:
    result = CheckResult.PASSES if passes else CheckResult.REFUSES
    return CheckFinding(
        check=CHECK_BY_NAME[name],
        subject=subject,
        result=CheckResult.UNKNOWN if passes is None else result,
    )


def require(rules: Iterable[Rule]) -> None:
    """Raise the error of the first rule that does not pass; evaluate none behind it."""
    for rule in rules:
        if not rule.passes:  # what is unknown does not pass
            raise rule.refusal()


def key_rules(caller: Caller, ip: str | None, scope: str) -> Iterator[Rule]:
    """Yield the rules for a key: validity (401), address and scope (403)."""
    key = f"key {caller.team.name}/{caller.key_name}"
    reasons = refusals(caller.ends, time.time()) if caller.ends else []

    def invalid() -> HttpError:
        return unauthenticated(MESSAGES[reasons[0]])

    yield Rule("revoked", key, not set(reasons) - {Reason.EXPIRED}, invalid)
    yield Rule("expired", key, Reason.EXPIRED not in reasons, invalid)
    allowed = ip_in_networks(ip, caller.ip_allow) if caller.ip_allow and ip != "" else None
    yield Rule(
        "address",
        key,
        allowed if caller.ip_allow else True,
        lambda: forbidden("this gateway key may not be used from this address"),
    )
    yield Rule(
        "scope",
        key,
        scope in caller.scopes,
        lambda: forbidden(f"this gateway key lacks the scope {scope!r}"),
    )


def model_rules(caller: Caller, model: str, entry: RouteEntry | None) -> Iterator[Rule]:
    """Yield the rules for a model: who may use it (403), and its route ``entry`` (404 or 500)."""

    def not_allowed() -> HttpError:
        return forbidden(f"model: this gateway key may not use {model[:200]!r}")

    def no_route() -> HttpError:
        if entry is None:
            known = [route.model for route in directory.snapshot.models(caller)]
            return unknown_model(model, known)
        return HttpError(
            500,
            "api_error",
            f"model: {model[:200]!r} has no usable upstream; see the gateway's /readyz",
            {"x-should-retry": "false"},
            outcome="gateway_error",
            source="gateway",
            detail="no_upstream",
        )

    team = caller.team
    yield Rule("team_models", f"team {team.name}", team.models.allow(model), not_allowed)
    key = f"key {team.name}/{caller.key_name}"
    yield Rule("key_models", key, caller.models.allow(model), not_allowed)
    yield Rule("route", f"model {model}", bool(entry and entry.targets), no_route)
