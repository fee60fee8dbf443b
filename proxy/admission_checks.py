"""The admission checks of a request in their order, and the interface of the admission dry run.

Admin pages and reports call ``run_admission_dry_run``. The gateway of this process registers the
function that evaluates the dry run, so the admin and the gateway do not import each other.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final


@dataclass(frozen=True, slots=True)
class AdmissionCheck:
    """One check of each request.

    A request that fails the check gets its HTTP status and error type.
    """

    name: str
    subject: str
    question: str
    status: int
    error: str


def _limit_checks(subject: str) -> tuple[AdmissionCheck, ...]:
    questions = {
        "concurrency": "do fewer than `concurrency` of its requests run?",
        "rpm": "is there one of `rpm` requests left in its bucket?",
        "tpm": "are the estimated input tokens left in its bucket of `tpm`?",
    }
    return tuple(
        AdmissionCheck(f"{subject}_{name}", subject, question, 429, "rate_limit_error")
        for name, question in questions.items()
    )


_NAMED: Final = "is the model one of `models`, or are none named?"
_PRICED: Final = (
    "does it have a price at each upstream of its route? (checked under a hard budget, unless "
    "`BRIDGE_UNPRICED=serve`)"
)
_ROOM: Final = "is there room for the worst case in each of its hard budgets?"

CHECKS: Final = (
    AdmissionCheck(
        "revoked", "key", "are it and its user still active?", 401, "authentication_error"
    ),
    AdmissionCheck("expired", "key", "is it before `expires`?", 401, "authentication_error"),
    AdmissionCheck(
        "address", "key", "does the client come from `ip_allow`?", 403, "permission_error"
    ),
    AdmissionCheck("scope", "key", "does it have the scope `messages`?", 403, "permission_error"),
    AdmissionCheck("team_models", "team", _NAMED, 403, "permission_error"),
    AdmissionCheck("key_models", "key", _NAMED, 403, "permission_error"),
    AdmissionCheck("route", "model", "is there a route with an upstream?", 404, "not_found_error"),
    *_limit_checks("key"),
    *_limit_checks("team"),
    AdmissionCheck("price", "model", _PRICED, 402, "billing_error"),
    AdmissionCheck("key_budget", "key", _ROOM, 402, "billing_error"),
    AdmissionCheck("team_budget", "team", _ROOM, 402, "billing_error"),
    AdmissionCheck("user_budget", "user", _ROOM, 402, "billing_error"),
)
"""The checks in the order of evaluation. The first check that fails decides the error response."""


class CheckResult(StrEnum):
    PASSES = "passes"
    REFUSES = "refuses"
    WARNS = "warns"  # a soft budget is exhausted; the request is accepted
    UNKNOWN = "unknown"  # the values that the check needs are not available


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFinding:
    """The result of one check. Figures count requests or tokens, or nano-dollars if ``money``."""

    check: AdmissionCheck
    subject: str  # the owner of the limit, for example "key platform/ci"
    result: CheckResult
    limit: int | None = None  # None: no limit, or a check without figures
    used: int | None = None  # the used amount, including the reservations of running requests
    takes: int | None = None  # the amount that this request would use
    money: bool = False
    budget: int | None = None  # the id of the budget, if the check concerns one
    period: str = ""  # the period of that budget
    resets: datetime | None = None  # the time when the whole limit is available again

    @property
    def left(self) -> int | None:
        return None if self.limit is None or self.used is None else max(0, self.limit - self.used)


@dataclass(frozen=True, slots=True, kw_only=True)
class HypotheticalRequest:
    """The request that a dry run evaluates."""

    key_id: int
    model: str
    input_tokens: int
    max_tokens: int
    ip: str = ""  # the client's address; empty: unknown
    client: str = ""  # name and version of the client: "claude-cli 2.1.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionDryRun:
    """The results of all admission checks for a hypothetical request."""

    # The results in the order of ``CHECKS``; one or more for each check.
    findings: tuple[CheckFinding, ...]
    route: str = ""  # the name of the route as configured, for example "claude-*"
    targets: tuple[str, ...] = ()  # upstream and model of each, for example "openai gpt-5.2"
    # the highest possible cost in nano-dollars; None: no price is known
    worst_case: int | None = None

    @property
    def refused_by(self) -> CheckFinding | None:
        return next((one for one in self.findings if one.result is CheckResult.REFUSES), None)


def without_figures(dry_run: AdmissionDryRun, seen: Container[int]) -> AdmissionDryRun:
    """Return the result; remove the figures of every budget whose id is not in ``seen``."""
    return replace(
        dry_run,
        findings=tuple(
            one
            if one.budget is None or one.budget in seen
            else replace(one, limit=None, used=None, takes=None)
            for one in dry_run.findings
        ),
    )


class NotServing(Exception):
    """No gateway runs in this process, or the gateway has not loaded the key yet."""


_dry_run_functions: Final[list[Callable[[HypotheticalRequest], AdmissionDryRun]]] = []


def register_gateway(dry_run: Callable[[HypotheticalRequest], AdmissionDryRun]) -> None:
    """Register the function that evaluates dry runs. It replaces an earlier function."""
    _dry_run_functions[:] = [dry_run]


def run_admission_dry_run(request: HypotheticalRequest) -> AdmissionDryRun:
    """Evaluate all admission checks for the request, without counting or storing it.

    Raises NotServing.
    """
    if not _dry_run_functions:
        raise NotServing("no gateway runs in this process")
    return _dry_run_functions[0](request)
