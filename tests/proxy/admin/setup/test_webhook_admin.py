"""The pages of webhooks: list, form, secret shown once, test event, log and sending again."""

import re

import pytest

from proxy.models import AuditEntry, Webhook, WebhookDelivery
from proxy.permissions.roles import OWNER
from tests.fakes.servers.served_client import ServedClient
from tests.fakes.servers.webhook_receiver import running_receiver, send_all
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db
LIST = "/admin/proxy/webhook/"
LOG = "/admin/proxy/webhookdelivery/"
SECRET = re.compile(r"whsec_[A-Za-z0-9+/=]+")


def form(**changes):
    return {
        "name": "ops",
        "url": "https://hooks.example.com/x",
        "team": "",
        "enabled": "on",
        **changes,
    }


def text_of(response):
    return response.content.decode()


def test_a_webhook_is_made_tested_and_its_delivery_sent_again(root):
    with running_receiver() as receiver:
        receiver.status, receiver.answer = 500, b"<script>alert(1)</script>"
        page = text_of(root.post(f"{LIST}add/", form(url=receiver.url, events=["key.revoked"])))
        (secret,) = SECRET.findall(page)
        webhook = Webhook.objects.get()
        assert webhook.events == ["key.revoked"]

        shown = text_of(root.post(f"{LIST}{webhook.pk}/test/", follow=True))
        assert "A test event is sent to ops within seconds" in shown
        send_all()
        (body,) = receiver.verified(secret)
        assert body["type"] == "webhook.test"

        delivery = WebhookDelivery.objects.get()
        log = text_of(root.get(f"{LOG}{delivery.pk}/change/"))
        assert "it answered 500" in log
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in log
        assert "<script>alert(1)" not in log
        receiver.status = 200
        root.post(f"{LOG}{delivery.pk}/send/")
        send_all()

    assert "delivered" in text_of(root.get(f"{LOG}?webhook__id__exact={webhook.pk}"))
    for path in (LIST, f"{LIST}{webhook.pk}/change/", LOG, f"{LOG}{delivery.pk}/change/"):
        assert not SECRET.search(text_of(root.get(path))), path


def test_rotating_shows_a_new_secret_once_and_keeps_the_old_one_for_a_day(root):
    webhook = Webhook(name="ops", url="https://hooks.example.com/x")
    old = str(webhook.give_secret())
    webhook.save()
    assert "Rotate this secret" in text_of(root.get(f"{LIST}{webhook.pk}/rotate/"))

    (new,) = SECRET.findall(text_of(root.post(f"{LIST}{webhook.pk}/rotate/")))

    webhook.refresh_from_db()
    assert new != old
    assert len(webhook.signing_keys()) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"url": "http://hooks.example.com/x"}, "unencrypted"),
        ({"url": ""}, "This field is required"),
        ({"events": ["other"]}, "Select a valid choice"),
        ({"name": "a b"}, "valid “slug”"),
    ],
)
def test_an_invalid_webhook_is_refused(root, changes, message):
    page = text_of(root.post(f"{LIST}add/", form(**changes)))

    assert message in page
    assert not Webhook.objects.exists()


def test_the_message_after_a_change_hides_the_url(root):
    webhook = Webhook(name="ops", url="https://hooks.example.com/T0/old-part")
    webhook.give_secret()
    webhook.save()

    page = text_of(root.post(
        f"{LIST}{webhook.pk}/change/", form(url="https://hooks.example.com/T0/new-part"), follow=True
    ))  # fmt: skip

    entry = AuditEntry.objects.get(model="webhook", action="change")
    assert "url: changed" in page
    assert "-part" not in page + str(vars(entry))


def test_a_lead_sees_the_webhooks_of_the_team_and_changes_none():
    client = ServedClient()
    client.force_login(factories.staff("ada", groups=(OWNER, "team:platform")))
    for name, team in (("mine", factories.team("platform")), ("theirs", None)):
        webhook = Webhook(name=name, url="https://hooks.example.com/x", team=team)
        webhook.give_secret()
        webhook.save()
    mine, theirs = Webhook.objects.order_by("name")

    page = text_of(client.get(LIST))

    assert "mine" in page
    assert "theirs" not in page
    assert "Add webhook" not in page
    assert client.post(f"{LIST}{mine.pk}/rotate/").status_code == 403
    assert client.post(f"{LIST}{mine.pk}/test/").status_code == 302
    assert client.post(f"{LIST}{theirs.pk}/test/").status_code == 404
    assert client.get(f"{LIST}{mine.pk}/test/").status_code == 405
