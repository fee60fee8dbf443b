"""Send a notice when a budget reaches a threshold: one for each budget period and threshold.

A notice is a database row. One process inserts the row, and the process that claims the row sends
the notice. A webhook receives JSON with a signature of time and body, so that the receiver can
verify the sender and reject old messages:
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

from proxy.counters.backends import budget_store
from proxy.counters.budget_periods import window
from proxy.ledger.maintenance.export import usd
from proxy.ledger.posting.budget_sync import counter_name, record_notices
from proxy.models import Budget, BudgetNotice
from proxy.secrets import ConfigError, resolve, setting_now

log = logging.getLogger("proxy.gateway")

TRIES: Final = 5
RETRY: Final = timedelta(seconds=30)
TIMEOUT_S: Final = 10.0
MAX_ERROR_CHARS: Final = 300


class ThresholdReached(NamedTuple):
    budget_id: int
    start: datetime
    threshold: int


def record_alerts(reached: Iterable[ThresholdReached]) -> None:
    """Create a notice for each reached threshold that has none yet. Skip deleted budgets."""
    for each in reached:
        budget = Budget.objects.filter(pk=each.budget_id).first()
        if budget is None:
            continue
        standing = budget_store().standing(
            counter_name(budget.pk, window(budget.period, budget.zone, each.start.timestamp()))
        )
        used = standing.used if standing else 0
        record_notices(budget, each.start, [each.threshold], used)


def send_due() -> None:
    """Send the unsent notices that this process can claim.

    Failed ones are retried with growing delay.
    """
    has_receiver = ~Q(budget__webhook="") | ~Q(budget__emails=[])
    for notice in BudgetNotice.objects.filter(has_receiver, sent=None, tries__lt=TRIES).order_by(
        "pk"
    ):
        if _claim(notice):
            _send(notice)


def _claim(notice: BudgetNotice) -> bool:
    """Claim the notice by a conditional UPDATE, which succeeds in only one process."""
    unclaimed = Q(claimed=None) | Q(claimed__lt=now() - RETRY * 2**notice.tries)
    waiting = BudgetNotice.objects.filter(unclaimed, pk=notice.pk, tries=notice.tries, sent=None)
    return waiting.update(claimed=now(), tries=F("tries") + 1) == 1


def _send(notice: BudgetNotice) -> None:
    budget = notice.budget
    payload = alert_payload(notice)
    errors = []
    if budget.webhook:
        errors.append(_send_webhook(budget, payload))
    if budget.emails:
        errors.append(_send_email(budget, payload))
    error = "; ".join(error for error in errors if error)
    if error:
        log.warning("the notice that %s reached %d %%: %s", budget.owner, notice.threshold, error)
    BudgetNotice.objects.filter(pk=notice.pk).update(
        sent=None if error else now(), error=error[:MAX_ERROR_CHARS]
    )


def alert_payload(notice: BudgetNotice) -> dict[str, Any]:
    """Return the JSON body of the webhook call. Amounts are decimal strings in US dollars."""
    budget = notice.budget
    when = window(budget.period, budget.zone, notice.start.timestamp())
    return {
        "type": "budget.threshold",
        "id": f"notice_{notice.pk}",
        "owner": budget.owner,
        "models": budget.models_covered,
        "threshold_percent": notice.threshold,
        "hard": budget.hard,
        "limit_usd": format(budget.usd, "f"),
        "spent_usd": usd(notice.used_nanousd),
        "period": budget.period,
        "starts_at": when.start.isoformat(),
        "resets_at": when.end.isoformat(),
    }


def _send_webhook(budget: Budget, payload: dict[str, Any]) -> str:
    """Send the notice to the budget's webhook. Return the error message, empty on success."""
    if not budget.webhook.startswith("https://"):
        return "webhook: no https URL"
    try:
        secret = resolve(budget.webhook_secret)
        if not secret:
            return "webhook: no secret to sign with is set"
        return post(budget.webhook, secret, msgspec.json.encode(payload))
    except ConfigError as exc:
        return f"webhook: {exc}"


def post(url: str, secret: str, body: bytes) -> str:
    """Send one signed POST without redirects. Return the error message, empty on success."""
    import httpx  # noqa: PLC0415 - the import takes a tenth of the start time, and few installations use webhooks

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


def _send_email(budget: Budget, payload: dict[str, Any]) -> str:
    if not settings.EMAIL_HOST:
        return "e-mail: no server is set (BRIDGE_SMTP_HOST)"
    effect = "further requests are refused" if budget.hard else "nothing is refused"
    verb = "has used up" if payload["threshold_percent"] >= 100 else "has used most of"
    text = (
        f"{payload['owner']} {verb} its budget{budget.models_text}: {payload['spent_usd']} of "
        f"{payload['limit_usd']} US dollars this {payload['period']}.\n"
        f"At the limit, {effect}; it resets at {payload['resets_at']}.\n"
    )
    subject = (
        f"Messages Bridge: {payload['owner']} at {payload['threshold_percent']} % of its budget"
    )
    try:
        password = setting_now("BRIDGE_SMTP_PASSWORD", settings.EMAIL_HOST_PASSWORD)
        send_mail(subject, text, None, list(budget.emails), auth_password=password)
    except Exception as exc:  # noqa: BLE001 - smtplib, ssl and sockets raise many types; sending is retried
        return f"e-mail: {type(exc).__name__}"
    return ""
