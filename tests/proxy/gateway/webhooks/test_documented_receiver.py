"""The receiver in docs/guides/webhooks.md accepts real requests once and refuses forged ones."""

import re
import threading
from http.server import HTTPServer
from pathlib import Path

import httpx
import pytest

from proxy.ledger.webhooks import record_event, send_again
from proxy.models import EventType, WebhookDelivery
from proxy.models.setup.webhooks import new_signing_secret
from tests.fakes.servers.webhook_receiver import send_all

from .conftest import make_webhook

PAGE = Path(__file__).parents[4] / "docs" / "guides" / "webhooks.md"


@pytest.mark.django_db
def test_it_accepts_an_event_once_and_no_forged_one(monkeypatch, capsys):
    monkeypatch.setenv("HOOK_SECRET", new_signing_secret())
    names = {"__name__": "receiver"}
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(source, str(PAGE), "exec"), names)  # noqa: S102 - the page's own example
    server = HTTPServer(("127.0.0.1", 0), names["Receiver"])
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/"
    webhook, _ = make_webhook(url)
    type(webhook).objects.update(secret={"env": "HOOK_SECRET"})

    event = record_event(EventType.KEY_REVOKED, team="platform", data={"name": "platform/ci"})
    send_all()
    send_again(WebhookDelivery.objects.get())
    send_all()
    forged = {"webhook-id": event.pk, "webhook-timestamp": "1", "webhook-signature": "v1,AAAA"}
    refused = httpx.post(url, content=event.body, headers=forged).status_code
    server.shutdown()
    server.server_close()

    assert WebhookDelivery.objects.get().status == 204
    assert refused == 401
    assert capsys.readouterr().out.count("key.revoked {'team': 'platform'") == 1
