"""Deliver the events of the outbox in a thread of each gateway process.

A process claims a delivery by a conditional UPDATE, so only one process sends it at a time. If the
process dies, the claim ends after ``LEASE_S`` and another attempt follows with the same event id:
receivers get an event at least once. Each receiver has one thread of its own while an attempt runs,
so a receiver that does not respond delays no other one.

An attempt is a mail, or a signed POST as Standard Webhooks describes: the signature is
``v1,<base64 of HMAC-SHA256>`` of ``<id>.<timestamp>.<body>``, one for each valid secret, separated
by spaces (https://www.standardwebhooks.com). Redirects are not followed.
"""

import asyncio
import base64
import hashlib
import hmac
import logging
import queue
import random
import socket
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

import msgspec
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.mail import send_mail
from django.db import DatabaseError, InterfaceError, connection
from django.db.models import Q, QuerySet
from django.utils.timezone import now

from proxy.ledger.database.access import check_present
from proxy.ledger.errors import LedgerUnavailable
from proxy.metrics.definitions import WEBHOOK_DELIVERIES
from proxy.models import DeliveryState, WebhookDelivery
from proxy.models.setup.webhooks import check_url
from proxy.models.webhook_deliveries import MAX_ANSWER
from proxy.secrets import ConfigError, setting_now
from proxy.url_hosts import address_of, is_forbidden

log = logging.getLogger(__name__)

POLL_S: Final = 2.0
LEASE_S: Final = 60.0
"""Seconds after which the delivery of a dead process is due again; more than one attempt takes."""
RETRY_S: Final = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""Seconds from a failed attempt to the next one; about three days in total."""
MAX_ATTEMPTS: Final = len(RETRY_S) + 1
JITTER: Final = 0.1
"""Each waiting time is extended by a random fraction of itself, at most this one, so that
deliveries that failed together are not all retried at the same time."""
GONE: Final = 410
"""The status with which a receiver ends the attempts of a delivery."""
STOP_WAIT_S: Final = 5.0
MAIL: Final = 0
"""The receiver of all mails: one server sends them."""
TIMEOUT_S: Final = 15.0
"""The longest time of one attempt, from the connection to the end of the response."""
MAX_ANSWER_BYTES: Final = 4 * MAX_ANSWER


class Message(NamedTuple):
    """An event to send to a webhook (``url`` and ``keys``) or to a mail address."""

    event_id: str
    body: str
    url: str = ""
    keys: Sequence[bytes] = ()
    email: str = ""


class Result(NamedTuple):
    """The result of one attempt. ``error`` is empty if the receiver accepted the event."""

    error: str = ""
    status: int | None = None
    answer: str = ""


def signature(event_id: str, timestamp: int, body: bytes, keys: Sequence[bytes]) -> str:
    """Return the value of the header ``webhook-signature``."""
    content = f"{event_id}.{timestamp}.".encode() + body
    digests = (hmac.digest(key, content, hashlib.sha256) for key in keys)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


def send(message: Message, timeout_s: float = TIMEOUT_S) -> Result:
    """Send the event. Never raises an error of the network, of TLS or of the mail server."""
    if message.email:
        return Result(_send_email(message))
    try:
        check_url(message.url)
    except ValidationError as wrong:
        return Result(" ".join(wrong.messages))
    try:
        return asyncio.run(asyncio.wait_for(_post(message, timeout_s), timeout_s))
    except TimeoutError:
        return Result(f"no complete response within {timeout_s:g} seconds")


async def _post(message: Message, timeout_s: float) -> Result:
    import httpx  # noqa: PLC0415 - the import takes a tenth of the start time, and few installations use webhooks

    body, timestamp = message.body.encode(), int(time.time())
    headers = {
        "content-type": "application/json",
        "user-agent": "messages-bridge",
        "webhook-id": message.event_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(message.event_id, timestamp, body, message.keys),
    }
    url = httpx.URL(message.url)
    address, error = await _resolve(url.host, url.port or 443)
    if error:
        return Result(error)
    try:
        async with (
            httpx.AsyncClient(timeout=timeout_s, follow_redirects=False) as client,
            client.stream(
                "POST",
                url.copy_with(host=address) if address else url,
                content=body,
                headers={**headers, "host": url.netloc.decode()},
                extensions={"sni_hostname": url.host},
            ) as response,
        ):
            answer = await _start_of(response)
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        return Result(type(exc).__name__)
    error = "" if response.is_success else f"it answered {response.status_code}"
    return Result(error, response.status_code, answer)


async def _resolve(host: str, port: int) -> tuple[str, str]:
    """Return the address of a host, and why nothing is sent to it; each may be empty.

    The request goes to the address that was checked: a second resolution could return another one.
    A name that only an HTTP proxy can resolve has no address.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return "", ""
    for *_, name in found:
        address = address_of(str(name[0]))
        if address is None or is_forbidden(address):
            return "", f"{host!r} resolves to {name[0]}, an address of this network link"
    return str(found[0][-1][0]), ""


async def _start_of(response: Any) -> str:
    """Return the first characters of the response, as text that a database can store."""
    content = b""
    async for part in response.aiter_raw():
        content += part
        if len(content) >= MAX_ANSWER_BYTES:
            break
    return content.decode(errors="replace").replace("\x00", "\ufffd")[:MAX_ANSWER]


def _send_email(message: Message) -> str:
    """Send the mail for a budget event. Return the error message, empty on success."""
    if not settings.EMAIL_HOST:
        return "e-mail: no server is set (BRIDGE_SMTP_HOST)"
    event = msgspec.json.decode(message.body)["data"]
    effect = "further requests are refused" if event["hard"] else "nothing is refused"
    verb = "has used up" if event["threshold_percent"] >= 100 else "has used most of"
    models = f" for {', '.join(event['models'])}" if event["models"] else ""
    text = (
        f"{event['owner']} {verb} its budget{models}: {event['spent_usd']} of "
        f"{event['limit_usd']} US dollars this {event['period']}.\n"
        f"At the limit, {effect}; it resets at {event['resets_at']}.\n"
    )
    subject = f"Messages Bridge: {event['owner']} at {event['threshold_percent']} % of its budget"
    try:
        password = setting_now("BRIDGE_SMTP_PASSWORD", settings.EMAIL_HOST_PASSWORD)
        send_mail(subject, text, None, [message.email], auth_password=password)
    except Exception as exc:  # noqa: BLE001 - smtplib, ssl and sockets raise many types; sending is retried
        return f"e-mail: {type(exc).__name__}"
    return ""


def waiting() -> QuerySet[WebhookDelivery]:
    """Return the deliveries that wait for an attempt, except those of disabled webhooks."""
    rows = WebhookDelivery.objects.filter(state=DeliveryState.WAITING)
    return rows.filter(Q(webhook=None) | Q(webhook__enabled=True))


class WebhookSender:
    """The thread that sends waiting deliveries. ``start`` may be called more than once."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._results: queue.SimpleQueue[tuple[int, Result]] = queue.SimpleQueue()
        self.wake_event = threading.Event()
        # The deliveries that are being sent, by receiver: the id of the webhook, or ``MAIL``.
        self.running: dict[int, WebhookDelivery] = {}
        self._is_failing = False  # whether the database was unavailable in the last round

    def start(self) -> None:
        if self._thread is None:
            self._ending.clear()
            self._thread = threading.Thread(target=self._work, name="webhooks", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread. Attempts that still run are repeated later by some process."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ending.set()
            self.wake_event.set()
            thread.join(STOP_WAIT_S)

    def _work(self) -> None:
        while not self._ending.is_set():
            self._try_round()
            self.wake_event.wait(POLL_S)
            self.wake_event.clear()
        self._try_round()  # store the results of the attempts that have ended
        connection.close()

    def _try_round(self) -> None:
        try:
            check_present()
            self.run_round()
            self._is_failing = False
        except (DatabaseError, InterfaceError, LedgerUnavailable) as away:
            if not self._is_failing:
                log.warning("webhooks: events are sent later: %s", away)
            self._is_failing = True
            connection.close()
        except Exception:  # the thread must survive an internal error
            log.exception("webhooks: a round failed")

    def run_round(self) -> None:
        """Store the results of ended attempts; start an attempt for each receiver that is free."""
        while not self._results.empty():
            receiver, result = self._results.get()
            self._store(self.running.pop(receiver), result)
        if self._ending.is_set():
            return
        due = waiting().filter(due__lte=now())
        for webhook_id in set(due.order_by().values_list("webhook", flat=True).distinct()):
            if (webhook_id or MAIL) not in self.running:
                rows = due.filter(webhook=webhook_id).select_related("event", "webhook")
                row = rows.order_by("due", "pk").first()
                if row is not None and self._claim(row):
                    self._start(webhook_id or MAIL, row)

    def _claim(self, row: WebhookDelivery) -> bool:
        """Claim the delivery by a conditional UPDATE, which succeeds in only one process."""
        unclaimed = WebhookDelivery.objects.filter(
            pk=row.pk, state=DeliveryState.WAITING, due=row.due, attempts=row.attempts
        )
        at = now()
        row.due, row.attempts = at + timedelta(seconds=LEASE_S), row.attempts + 1
        return unclaimed.update(due=row.due, attempts=row.attempts, attempted=at) == 1

    def _start(self, receiver: int, row: WebhookDelivery) -> None:
        self.running[receiver] = row
        message = Message(row.event.pk, row.event.body, email=row.email)
        if row.webhook is not None:
            try:
                keys = row.webhook.signing_keys()
            except ConfigError as exc:
                self._results.put((receiver, Result(str(exc))))
                self.wake_event.set()
                return
            message = message._replace(url=row.webhook.url, keys=keys)
        threading.Thread(target=self._send, args=(receiver, message), daemon=True).start()

    def _send(self, receiver: int, message: Message) -> None:
        """Send the event in a thread of its own, which does not use the database."""
        try:
            result = send(message)
        except Exception as exc:  # a bug must not occupy the receiver for ever
            log.exception("webhooks: an attempt failed")
            result = Result(type(exc).__name__)
        self._results.put((receiver, result))
        self.wake_event.set()

    def _store(self, row: WebhookDelivery, result: Result) -> None:
        """Store the result, unless the delivery was made due again in the meantime."""
        values: dict[str, object] = {"status": result.status, "answer": result.answer,
                                     "error": result.error[:300]}  # fmt: skip
        if not result.error:
            word, values["state"] = "delivered", DeliveryState.DELIVERED
        elif row.attempts >= MAX_ATTEMPTS or result.status == GONE:
            word, values["state"] = "failed", DeliveryState.FAILED
        else:
            word, values["due"] = "retried", now() + timedelta(seconds=retry_delay(row.attempts))
        claimed = WebhookDelivery.objects.filter(pk=row.pk, attempts=row.attempts, due=row.due)
        claimed.update(**values)
        WEBHOOK_DELIVERIES.labels(word).inc()
        if result.error:
            receiver = f"webhook {row.webhook}" if row.webhook else "mail"
            log.warning("%s: attempt %d failed: %s", receiver, row.attempts, result.error)


def retry_delay(attempts: int) -> float:
    """Return the seconds to wait after this number of failed attempts."""
    return RETRY_S[attempts - 1] * (1 + random.random() * JITTER)  # noqa: S311 - spreads load, no secret


webhook_sender: Final = WebhookSender()
