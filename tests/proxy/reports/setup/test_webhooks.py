"""Webhooks over REST: who writes and sees them, their secrets, test events and sending again."""

import json

import pytest

from proxy.models import AuditEntry, Webhook, WebhookDelivery
from proxy.permissions.roles import AUDITOR, OWNER
from tests.fakes.servers.served_client import ServedClient
from tests.fakes.servers.webhook_receiver import running_receiver, send_all
from tests.proxy.admin import factories

from .conftest import message_of

pytestmark = pytest.mark.django_db
OPS = {"name": "ops", "url": "https://hooks.example.com/x"}


@pytest.fixture
def send_with_key():
    """Send a request with a key of these scopes and this user."""
    made = []

    def send(method, route, body=None, *, scopes=("admin",), user=None):
        secret = factories.key(f"k{len(made)}", of="ops", scopes=[*scopes], user=user)[1]
        made.append(secret)
        text = "" if body is None else json.dumps(body)
        return ServedClient().generic(
            method, f"/api/v1/{route}/", text, "application/json", headers={"x-api-key": secret}
        )

    return send


def stored(name, team=None):
    webhook = Webhook(name=name, url="https://hooks.example.com/x", team=team)
    webhook.give_secret()
    webhook.save()
    return webhook


def test_a_webhook_is_created_tested_rotated_changed_and_deleted(as_root):
    with running_receiver() as receiver:
        created = as_root("POST", "webhooks", {"name": "ops", "url": receiver.url})
        assert created.status_code == 201
        assert created["Cache-Control"] == "no-store"
        webhook = created.json()
        one = f"webhooks/{webhook['id']}"
        assert "secret" not in as_root("GET", one).json()

        tested = as_root("POST", "deliveries", {"webhook_id": webhook["id"]})
        assert (tested.status_code, tested.json()["state"]) == (201, "waiting")
        send_all()
        (body,) = receiver.verified(webhook["secret"])
        assert (body["type"], body["data"]["actor"]) == ("webhook.test", "root")

        (event_id,) = receiver.ids
        receiver.requests.clear()
        rotated = as_root("POST", f"{one}/rotate").json()["secret"]
        assert rotated != webhook["secret"]
        again = as_root("POST", f"deliveries/{tested.json()['id']}/redeliver")
        assert (again.status_code, again.json()["next_attempt_at"] is None) == (200, False)
        send_all()
        assert receiver.verified(rotated) == receiver.verified(webhook["secret"]) == [body]
        assert receiver.ids == [event_id]

    (row,) = as_root("GET", "deliveries").json()["data"]
    assert (row["state"], row["status"], row["answer"]) == ("delivered", 200, "thanks")
    assert json.loads(row["body"])["type"] == row["event_type"]
    changed = as_root("PATCH", one, {"events": ["key.revoked"], "enabled": False})
    assert (changed.json()["events"], changed.json()["enabled"]) == (["key.revoked"], False)
    assert as_root("DELETE", one).status_code == 204
    assert not WebhookDelivery.objects.exists()
    actions = [e.action for e in AuditEntry.objects.order_by("pk") if e.model.startswith("webhook")]
    assert actions == ["add", "test", "change", "test", "change", "delete"]
    assert webhook["secret"] not in str([*AuditEntry.objects.values()])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({**OPS, "url": "http://hooks.example.com"}, "unencrypted"),
        ({**OPS, "url": "https://169.254.169.254/"}, "metadata"),
        ({**OPS, "events": ["key.rotated"]}, "unknown event 'key.rotated'"),
        ({**OPS, "events": "all"}, "events"),
        ({**OPS, "team": "nowhere"}, "there is no 'nowhere'"),
        ({**OPS, "secret": "mine"}, "unknown field"),
        ({"name": "ops"}, "url"),
    ],
)
def test_an_invalid_webhook_is_refused(as_root, body, message):
    response = as_root("POST", "webhooks", body)

    assert response.status_code == 400
    assert message in message_of(response)
    assert not Webhook.objects.exists()


def test_only_superusers_and_their_keys_write_webhooks(send_as, send_with_key):
    root, otto = factories.superuser(), factories.staff("otto", groups=(OWNER,))

    assert send_with_key("POST", "webhooks", OPS, user=otto).status_code == 403
    assert send_with_key("POST", "webhooks", OPS, scopes=("config:write",)).status_code == 403
    assert send_as(otto, "POST", "webhooks", OPS).status_code == 403
    assert not Webhook.objects.exists()
    assert send_with_key("POST", "webhooks", OPS, user=root).status_code == 201


def test_a_lead_sees_and_tests_the_webhooks_of_the_team_only(send_as):
    lead = factories.staff("ada", groups=(OWNER, "team:platform"))
    mine, theirs, common = (
        stored("mine", factories.team("platform")),
        stored("theirs", factories.team("research")),
        stored("common"),
    )

    sent = [send_as(lead, "POST", "deliveries", {"webhook_id": one.pk}).status_code
            for one in (mine, theirs, common)]  # fmt: skip

    assert sent == [201, 400, 400]
    assert [row["name"] for row in send_as(lead, "GET", "webhooks").json()["data"]] == ["mine"]
    send_as(factories.superuser(), "POST", "deliveries", {"webhook_id": theirs.pk})
    (seen,) = send_as(lead, "GET", "deliveries").json()["data"]
    assert seen["webhook_id"] == mine.pk
    foreign = WebhookDelivery.objects.get(webhook=theirs)
    assert send_as(lead, "POST", f"deliveries/{foreign.pk}/redeliver").status_code == 404
    auditor = factories.staff("aude", groups=(AUDITOR,))
    assert send_as(auditor, "GET", "deliveries").status_code == 200
    assert send_as(auditor, "POST", f"deliveries/{seen['id']}/redeliver").status_code == 403


def test_a_webhook_of_the_file_is_read_only_but_can_be_tested(as_root):
    webhook = stored("ops")
    Webhook.objects.update(managed=True)

    statuses = [
        as_root("PATCH", f"webhooks/{webhook.pk}", {"enabled": False}).status_code,
        as_root("POST", f"webhooks/{webhook.pk}/rotate").status_code,
        as_root("DELETE", f"webhooks/{webhook.pk}").status_code,
        as_root("POST", "deliveries", {"webhook_id": webhook.pk}).status_code,
    ]

    assert statuses == [409, 409, 409, 201]
