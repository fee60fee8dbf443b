from collections.abc import Iterator

import pytest

from proxy.models import Webhook
from tests.fakes.servers.webhook_receiver import Receiver, running_receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with running_receiver() as running:
        yield running


def make_webhook(url: str, name: str = "ops", **fields) -> tuple[Webhook, str]:
    """Create a webhook with a new secret; return both."""
    webhook = Webhook(name=name, url=url, **fields)
    secret = webhook.give_secret()
    webhook.clean()
    webhook.save()
    return webhook, str(secret)
