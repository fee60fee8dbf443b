"""Tells people that a budget reached a threshold: once per period and threshold, in all processes.

A notice is a row; whoever inserts it has made it, whoever claims it sends it. A webhook gets JSON
with a signature over time and body, so that it can tell us from others and old from new:
``x-bridge-signature: t=<Unix seconds>,v1=<hex HMAC-SHA256 of "<t>.<body>">``.
"""

import hashlib
import hmac
import logging
import time
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec
from django.conf import settings
from django.core.mail import send_mail
from django.db.models import F, Q
from django.utils.timezone import now

from proxy.counters.shared import budget_store
from proxy.counters.windows import window
from proxy.models import Budget, BudgetNotice
from proxy.record.export import usd
from proxy.record.spending import counter_of
from proxy.secrets import ConfigError, resolve, setting_now

log = logging.getLogger("proxy.gateway")

THRESHOLDS: Final = (80, 100)
TRIES: Final = 5
RETRY: Final = timedelta(seconds=30)
TIMEOUT_S: Final = 10.0
KEEP_ERROR: Final = 300


class Reached(NamedTuple):
    budget_id: int
    start: datetime
    threshold: int


def remember(reached: Iterable[Reached]) -> None:
    """Make the notices that nobody has made yet. A budget that is gone needs none."""
    for each in reached:
        budget = Budget.objects.filter(pk=each.budget_id).first()
        if budget is None:
            continue
        standing = budget_store().standing(
            counter_of(budget.pk, window(budget.period, budget.zone, each.start.timestamp()))
        )
        BudgetNotice.objects.get_or_create(
            budget=budget,
            start=each.start,
            threshold=each.threshold,
            defaults={"used_nanousd": standing.used if standing else 0},
        )


def send_due() -> None:
    """Send what waits and is ours to send; a failure is tried again, later each time."""
    somebody = ~Q(budget__webhook="") | ~Q(budget__emails=[])
    for notice in BudgetNotice.objects.filter(somebody, sent=None, tries__lt=TRIES).order_by("pk"):
        if _claimed(notice):
            _send(notice)


def _claimed(notice: BudgetNotice) -> bool:
    """One conditional update: of two processes, one changes a row."""
    free = Q(claimed=None) | Q(claimed__lt=now() - RETRY * 2**notice.tries)
    waiting = BudgetNotice.objects.filter(free, pk=notice.pk, tries=notice.tries, sent=None)
    return waiting.update(claimed=now(), tries=F("tries") + 1) == 1


def _send(notice: BudgetNotice) -> None:
    budget = notice.budget
    told = told_of(notice)
    faults = []
    if budget.webhook:
        faults.append(_posted(budget, told))
    if budget.emails:
        faults.append(_mailed(budget, told))
    fault = "; ".join(fault for fault in faults if fault)
    if fault:
        log.warning("the notice that %s reached %d %%: %s", budget.owner, notice.threshold, fault)
    BudgetNotice.objects.filter(pk=notice.pk).update(
        sent=None if fault else now(), error=fault[:KEEP_ERROR]
    )


def told_of(notice: BudgetNotice) -> dict[str, Any]:
    """What a webhook gets. Money is a decimal string of US dollars."""
    budget = notice.budget
    when = window(budget.period, budget.zone, notice.start.timestamp())
    return {
        "type": "budget.threshold",
        "id": f"notice_{notice.pk}",
        "owner": budget.owner,
        "threshold_percent": notice.threshold,
        "hard": budget.hard,
        "limit_usd": format(budget.usd, "f"),
        "spent_usd": usd(notice.used_nanousd),
        "period": budget.period,
        "starts_at": when.start.isoformat(),
        "resets_at": when.end.isoformat(),
    }


def _posted(budget: Budget, told: dict[str, Any]) -> str:
    """Post to the webhook; what went wrong, else empty."""
    if not budget.webhook.startswith("https://"):
        return "webhook: no https URL"
    try:
        secret = resolve(budget.webhook_secret)
        if not secret:
            return "webhook: it has no secret to sign with"
        return post(budget.webhook, secret, msgspec.json.encode(told))
    except ConfigError as exc:
        return f"webhook: {exc}"


def post(url: str, secret: str, body: bytes) -> str:
    """One signed POST; no redirect is followed. What went wrong, else empty."""
    import httpx  # noqa: PLC0415 - a tenth of a start, and few gateways have a webhook

    at = int(time.time())
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    headers = {
        "content-type": "application/json",
        "user-agent": "messages-bridge",
        "x-bridge-signature": f"t={at},v1={digest}",
    }
    try:
        reply = httpx.post(
            url, content=body, headers=headers, timeout=TIMEOUT_S, follow_redirects=False
        )
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        return f"webhook: {type(exc).__name__}"
    return "" if reply.is_success else f"webhook: it answered {reply.status_code}"


def _mailed(budget: Budget, told: dict[str, Any]) -> str:
    if not settings.EMAIL_HOST:
        return "e-mail: no server is set (BRIDGE_SMTP_HOST)"
    effect = "further requests are refused" if budget.hard else "nothing is refused"
    verb = "has used up" if told["threshold_percent"] >= 100 else "has used most of"
    text = (
        f"{told['owner']} {verb} its budget: {told['spent_usd']} of {told['limit_usd']} US dollars"
        f" this {told['period']}.\nAt the limit, {effect}; it resets at {told['resets_at']}.\n"
    )
    subject = f"Messages Bridge: {told['owner']} at {told['threshold_percent']} % of its budget"
    try:
        password = setting_now("BRIDGE_SMTP_PASSWORD", settings.EMAIL_HOST_PASSWORD)
        send_mail(subject, text, None, list(budget.emails), auth_password=password)
    except Exception as exc:  # noqa: BLE001 - smtplib, ssl, sockets: the notice is kept, and tried again
        return f"e-mail: {type(exc).__name__}"
    return ""
