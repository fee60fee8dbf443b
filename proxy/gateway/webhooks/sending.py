"""Send one event: a signed POST as Standard Webhooks describes, or a mail.

The signature is ``v1,<base64 of HMAC-SHA256>`` of ``<id>.<timestamp>.<body>``, one for each valid
secret, separated by spaces (https://www.standardwebhooks.com). Redirects are not followed.
"""

import asyncio
import base64
import hashlib
import hmac
import socket
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.mail import send_mail

from proxy.models.setup.webhooks import check_url
from proxy.models.webhook_deliveries import MAX_ANSWER
from proxy.secrets import setting_now
from proxy.url_hosts import address_of, is_forbidden

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
