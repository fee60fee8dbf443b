"""Revocations, pauses, stops and disabled upstreams have an event, however the change came."""

import json

import pytest
from django.core.management import call_command
from django.db import transaction

from proxy.audit_log import Action, record
from proxy.config import apply, load
from proxy.gateway.snapshot import revoked_keys_file
from proxy.ledger.maintenance.export import key_id
from proxy.models import ApiKey, Pause, Upstream, Webhook, WebhookEvent
from tests.fakes.servers.served_client import ServedClient
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def webhook():
    Webhook(name="ops", url="https://hooks.example.com/x", secret={"env": "HOOK"}).save()


@pytest.fixture
def key():
    return factories.key("ci")[0]


def events():
    """Return type, name of the team and data of each event."""
    found = WebhookEvent.objects.order_by("created")
    bodies = [(event.type, json.loads(event.body)["data"]) for event in found]
    return [(event_type, data["team"] or "", data) for event_type, data in bodies]


def by_command(key):
    call_command("revokekey", "--team", "platform", "--name", "ci", verbosity=0)


def by_the_admin(key):
    client = ServedClient()
    client.force_login(factories.superuser())
    client.post(f"/admin/proxy/apikey/{key.pk}/revoke/")


def by_rest(key):
    secret = factories.key("terraform", of="ops", scopes=["admin"])[1]
    response = ServedClient().delete(
        f"/api/v1/keys/{key_id(key.pk)}/", headers={"x-api-key": secret}
    )
    assert response.status_code == 200


def by_the_file(key):
    ApiKey.objects.filter(pk=key.pk).update(managed=True)
    apply.apply(load.read(""))


def by_a_restored_database(key):
    revoked_keys_file.revoke_again(key)


@pytest.mark.parametrize(
    "revoke", [by_command, by_the_admin, by_rest, by_the_file, by_a_restored_database]
)
def test_each_way_to_revoke_a_key_has_one_event(key, revoke):
    revoke(key)

    ((event_type, team, data),) = events()
    assert (event_type, team) == ("key.revoked", "platform")
    assert (data["kind"], data["id"], data["name"]) == ("key", str(key.pk), "platform/ci")
    assert data["actor"]
    assert key.digest.hex() not in str(data)


def test_a_second_revocation_has_no_event(key):
    key.revoke()
    key.revoke()

    assert len(events()) == 1


def test_a_change_that_is_rolled_back_has_no_event(key):
    with transaction.atomic():
        key.revoke()
        transaction.set_rollback(True)

    assert events() == []


def test_pauses_stops_and_disabled_upstreams_have_events(key):
    upstream = Upstream.objects.create(name="vllm", dialect="chat", base_url="http://vllm/v1")
    pause = Pause.objects.create(upstream=upstream, model="qwen*", message="back at noon")
    pause.delete()
    record(Action.STOP, upstream, detail="all running requests")
    record(Action.STOP, key.team, detail="all running requests")
    upstream.enabled = False
    upstream.save()
    upstream.enabled = True
    upstream.save()
    record(Action.READ, key.team)

    found = events()

    assert [(event_type, team) for event_type, team, _ in found] == [
        ("upstream.paused", ""),
        ("upstream.resumed", ""),
        ("requests.stopped", ""),
        ("requests.stopped", "platform"),
        ("upstream.disabled", ""),
    ]
    assert found[0][2]["changes"]["message"] == {"after": "back at noon"}
    assert found[4][2]["name"] == "vllm"


def test_a_webhook_whose_events_cannot_be_read_does_not_prevent_a_change(key):
    """Only SQL can write such a row."""
    Webhook.objects.create(name="damaged", url="https://x.example", secret={"env": "X"}, events=7)

    by_the_admin(key)

    [event] = WebhookEvent.objects.all()
    assert [delivery.webhook.name for delivery in event.deliveries.all()] == ["ops"]
