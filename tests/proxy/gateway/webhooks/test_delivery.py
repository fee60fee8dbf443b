"""Events are signed, sent once if all is well, retried with the same id, and end."""

import re
import socket
import time
from datetime import timedelta

import pytest
from django.core import mail
from django.core.exceptions import ValidationError
from django.utils.timezone import now
from standardwebhooks.webhooks import Webhook as Verifier
from standardwebhooks.webhooks import WebhookVerificationError

from proxy.gateway import webhooks
from proxy.gateway.webhooks import LEASE_S, MAX_ATTEMPTS, RETRY_S, WebhookSender
from proxy.ledger.webhooks import prune_events, record_event, rotate_secret, send_again
from proxy.models import AuditEntry, EventType, WebhookDelivery, WebhookEvent
from proxy.models.setup.webhooks import signing_key
from tests.fakes.servers.webhook_receiver import running_receiver, send_all
from tests.proxy.admin import factories

from .conftest import make_webhook

pytestmark = pytest.mark.django_db
KEY_REVOKED = EventType.KEY_REVOKED


def record(team: str = "", event_type: str = KEY_REVOKED, **data):
    return record_event(event_type, team=factories.team(team).ledger_id if team else "", data=data)


def make_due() -> None:
    """Set the time of the next attempt of all deliveries to now."""
    WebhookDelivery.objects.update(due=now() - timedelta(seconds=1))


def test_the_library_of_the_standard_verifies_a_request(receiver):
    _, secret = make_webhook(receiver.url)
    event = record(name="platform/ci")

    send_all()

    (body,) = receiver.verified(secret)
    assert (body["type"], body["data"]) == ("key.revoked", {"team": None, "name": "platform/ci"})
    assert receiver.ids == [event.pk]
    assert receiver.requests[0][0]["content-type"] == "application/json"
    with pytest.raises(WebhookVerificationError):
        Verifier(secret[:-4] + "AAA=").verify(receiver.requests[0][1], receiver.requests[0][0])
    sent = WebhookDelivery.objects.get()
    assert (sent.state, sent.status, sent.answer, sent.attempts) == ("delivered", 200, "thanks", 1)


def test_the_signature_is_that_of_the_specification():
    """The example of the specification: secret, id, timestamp, payload and signature."""
    key = signing_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")

    found = webhooks.signature(
        "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', [key]
    )

    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_after_a_rotation_both_secrets_verify_for_a_day(receiver):
    webhook, old = make_webhook(receiver.url)
    new = rotate_secret(webhook)
    record()
    send_all()
    assert receiver.verified(old) == receiver.verified(new)

    webhook.previous_until = now()
    webhook.save()
    receiver.requests.clear()
    record()
    send_all()
    receiver.verified(new)
    with pytest.raises(WebhookVerificationError):
        receiver.verified(old)


def test_a_webhook_gets_only_the_events_it_wants_of_its_team(receiver):
    team = factories.team("platform")
    make_webhook(receiver.url, team=team, events=[KEY_REVOKED])
    make_webhook(receiver.url, "off", enabled=False)

    kept = [record("platform"), record("research"), record(""),
            record("platform", EventType.BUDGET_THRESHOLD)]  # fmt: skip

    assert [event is not None for event in kept] == [True, False, False, False]
    assert WebhookEvent.objects.count() == 1


@pytest.mark.parametrize("status", [302, 500])
def test_a_failure_is_retried_later_with_the_same_id_and_body(receiver, status):
    make_webhook(receiver.url)
    event = record()
    receiver.status, receiver.answer = status, b"<b>no\x00t</b>" + b"x" * 5_000

    for _ in range(3):
        send_all()  # nothing is due between the attempts
    failed = WebhookDelivery.objects.get()
    assert (failed.state, failed.attempts, failed.status) == ("waiting", 1, status)
    assert failed.error == f"it answered {status}"
    assert failed.answer == ("<b>no\ufffdt</b>" + "x" * 500)[:500]
    assert timedelta(0) < failed.due - now() < timedelta(seconds=RETRY_S[0] * 1.2)

    receiver.status, receiver.answer = 204, b""
    make_due()
    send_all()

    assert receiver.ids == [event.pk, event.pk]
    assert receiver.requests[0][1] == receiver.requests[1][1]
    assert WebhookDelivery.objects.get().state == "delivered"


def test_the_attempts_end(receiver):
    make_webhook(receiver.url)
    record()
    receiver.status = 500

    for _ in range(MAX_ATTEMPTS + 2):
        send_all()
        make_due()

    assert len(receiver.requests) == MAX_ATTEMPTS
    assert WebhookDelivery.objects.get().state == "failed"


def test_410_ends_the_attempts_at_once(receiver):
    make_webhook(receiver.url)
    record()
    receiver.status = 410

    send_all()

    assert WebhookDelivery.objects.get().state == "failed"


def test_a_killed_process_leaves_a_delivery_that_is_sent_again_with_the_same_id(receiver):
    make_webhook(receiver.url)
    event = record()
    receiver.may_answer.clear()
    killed = WebhookSender()
    killed.run_round()  # the attempt has begun; its result is never stored
    while not receiver.requests:
        time.sleep(0.01)

    send_all()  # another process does not send what is claimed
    assert receiver.ids == [event.pk]

    receiver.may_answer.set()
    claimed = WebhookDelivery.objects.get()
    assert timedelta(seconds=LEASE_S / 2) < claimed.due - now() <= timedelta(seconds=LEASE_S)
    make_due()
    send_all()
    assert receiver.ids == [event.pk, event.pk]
    assert WebhookDelivery.objects.get().state == "delivered"


def test_a_receiver_that_does_not_answer_delays_no_other_one(receiver):
    with running_receiver() as stuck:
        stuck.may_answer.clear()
        make_webhook(stuck.url, "stuck")
        for _ in range(3):
            record()
        make_webhook(receiver.url, "quick")
        events = [record() for _ in range(3)]
        sender = WebhookSender()

        deadline = time.monotonic() + 30
        while len(receiver.requests) < 3 or not stuck.requests:
            assert time.monotonic() < deadline, (receiver.ids, stuck.ids)
            sender.run_round()
            sender.wake_event.wait(0.2)
            sender.wake_event.clear()

        assert receiver.ids == [event.pk for event in events]
        assert len(stuck.requests) == 1
        stuck.may_answer.set()


def test_an_attempt_has_a_time_limit(receiver):
    receiver.may_answer.clear()

    result = webhooks.send(webhooks.Message("evt_1", "{}", receiver.url), timeout_s=0.2)

    assert result == webhooks.Result("no complete response within 0.2 seconds")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://hooks.example.com/x", "unencrypted"),
        ("http://169.254.169.254/latest/meta-data", "metadata"),
        ("https://ada:pw@hooks.example.com", "password"),
        ("ftp://hooks.example.com", "must look like"),
    ],
)
def test_a_url_that_is_not_permitted_is_never_called(receiver, url, message):
    webhook, _ = make_webhook(receiver.url)
    type(webhook).objects.update(url=url)
    record()

    send_all()

    assert message in WebhookDelivery.objects.get().error
    with pytest.raises(ValidationError, match=re.escape(message)):
        type(webhook)(name="x", url=url, secret={"env": "A"}).full_clean()


@pytest.mark.parametrize("address", ["169.254.169.254", "fd00:ec2::254", "::ffff:169.254.169.254"])
def test_a_name_that_resolves_to_a_metadata_service_is_never_called(receiver, monkeypatch, address):
    webhook, _ = make_webhook(receiver.url)
    type(webhook).objects.update(url="https://hooks.example.com/x")
    record()
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_rest: found)

    send_all()

    assert "network link" in WebhookDelivery.objects.get().error


def test_the_request_goes_to_the_address_that_was_checked(receiver, monkeypatch):
    """A name whose second resolution would have another address (DNS rebinding)."""
    url = receiver.url.replace("127.0.0.1", "hooks")
    make_webhook(url)
    record()
    answers = iter([("127.0.0.1", int(url.partition("hooks:")[2].partition("/")[0]))])
    real = socket.getaddrinfo

    def resolve(host, *args, **rest):
        if host in ("hooks", b"hooks"):
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", next(answers))]
        return real(host, *args, **rest)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)

    send_all()

    assert WebhookDelivery.objects.get().error == ""


@pytest.mark.parametrize("value", ["", "short", "whsec_", "whsec_c2hvcnQ=", "whsec_#"])
def test_nothing_is_sent_without_a_valid_secret(receiver, monkeypatch, value):
    monkeypatch.setenv("HOOK", value)
    webhook, _ = make_webhook(receiver.url)
    type(webhook).objects.update(secret={"env": "HOOK"})
    record()

    send_all()

    assert receiver.requests == []
    error = WebhookDelivery.objects.get().error
    assert "HOOK is missing" in error or "whsec_" in error
    assert "short" not in error


def test_sending_again_starts_a_new_series_and_is_in_the_audit_log(receiver):
    make_webhook(receiver.url)
    event = record()
    send_all()

    send_again(WebhookDelivery.objects.get())
    send_all()

    assert receiver.ids == [event.pk, event.pk]
    assert WebhookDelivery.objects.get().attempts == 1
    assert AuditEntry.objects.filter(detail="sent an event again").count() == 1


def test_old_events_and_those_above_the_maximum_are_deleted(receiver):
    make_webhook(receiver.url)
    ids = sorted(record().pk for _ in range(5))
    WebhookEvent.objects.filter(pk=ids[4]).update(created=now() - timedelta(days=31))

    deleted = prune_events(now(), keep=3)

    kept = WebhookEvent.objects.order_by("pk").values_list("pk", flat=True)
    assert (deleted, [*kept]) == (3, ids[2:4])
    assert WebhookDelivery.objects.count() == 2


BUDGET = {
    "owner": "team platform", "models": [], "threshold_percent": 100, "hard": True, "limit_usd": "10",
    "spent_usd": "10", "period": "month", "resets_at": "2026-12-01T00:00:00Z",
}  # fmt: skip


def test_mail_goes_to_each_address_and_is_retried(settings):
    record_event(EventType.BUDGET_EXHAUSTED, team="platform", data=BUDGET,
                 emails=["ada@example.com", "ben@example.com", "ada@example.com"])  # fmt: skip
    settings.EMAIL_HOST = ""
    send_all()
    assert "BRIDGE_SMTP_HOST" in WebhookDelivery.objects.filter(attempts=1).first().error

    settings.EMAIL_HOST = "mail.example.com"
    make_due()
    send_all()

    assert sorted(each.to for each in mail.outbox) == [["ada@example.com"], ["ben@example.com"]]
    assert mail.outbox[0].subject == "Messages Bridge: team platform at 100 % of its budget"
    assert "10 of 10 US dollars" in mail.outbox[0].body
    assert {row.state for row in WebhookDelivery.objects.all()} == {"delivered"}
