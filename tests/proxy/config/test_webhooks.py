"""The table ``[[webhooks]]`` of a bridge.toml."""

import pytest

from proxy.bootstrap.env_check import check_environment
from proxy.config import apply, dump, load
from proxy.config.used_upstreams import reencrypt_secrets
from proxy.models import Team, Webhook
from proxy.models.setup.columns import SEALED
from proxy.secrets import ConfigError
from tests.for_each import for_each

FILE = """
[[teams]]
name = "platform"

[[webhooks]]
name = "ops"
url = "https://hooks.example.com/T0/token"
team = "platform"
events = ["budget.exhausted", "key.revoked"]
secret = { env = "BRIDGE_HOOK" }
previous_secret = { file = "/run/secrets/old" }
"""
pytestmark = pytest.mark.django_db


def test_a_webhook_is_applied_exported_changed_and_deleted():
    file = load.read(FILE)
    apply.apply(file)

    webhook = Webhook.objects.get()
    assert (webhook.secret, webhook.previous_secret) == (
        {"env": "BRIDGE_HOOK"}, {"file": "/run/secrets/old"},
    )  # fmt: skip
    assert (webhook.team, webhook.managed) == (Team.objects.get(), True)
    assert apply.apply(file) == []
    assert apply.apply(load.read(dump.export())) == []
    check_environment({"BRIDGE_HOOK": "x"}, None)
    check_environment({"BRIDGE_HOOK": "x"}, file)

    plan = apply.apply(load.read(FILE.replace("token", "other").replace("previous_", "# ")))
    assert [str(change) for change in plan] == [
        '~ webhook ops: url, previous_secret { file = "/run/secrets/old" } -> none'
    ]
    plan = apply.apply(load.read('[[teams]]\nname = "platform"\n'))
    assert [str(change) for change in plan] == ["- webhook ops"]


@for_each(
    ("old", "new", "message"),
    [
        ("https://hooks", "http://hooks", r"webhooks\[0\]\.url"),
        ("https://hooks", "https://a:b@hooks", "password"),
        ('"key.revoked"', '"key.rotated"', "unknown event 'key.rotated'; known: budget.threshold"),
        ('secret = { env = "BRIDGE_HOOK" }\n', "", r"webhooks\[0\]\.secret"),
        ('{ env = "BRIDGE_HOOK" }', '"whsec_inline"', "never written here"),
        ('team = "platform"', 'team = "research"', "no team 'research'"),
    ],
)
def test_an_invalid_webhook_rejects_the_whole_file(old, new, message):
    with pytest.raises(ConfigError, match=message) as caught:
        apply.apply(load.read(FILE.replace(old, new, 1)))

    assert "whsec_inline" not in str(caught.value)
    assert not Webhook.objects.exists()


def test_a_stored_secret_stays_and_is_not_exported():
    webhook = Webhook(name="ops", url="https://hooks.example.com/x")
    secret = webhook.give_secret()
    webhook.save()

    exported = dump.export()
    apply.apply(load.read(exported))

    assert secret not in exported
    assert webhook.secret[SEALED] not in exported
    assert Webhook.objects.get().secret == webhook.secret


def test_stored_secrets_are_encrypted_again_with_a_new_secret_key(settings):
    webhook = Webhook(name="ops", url="https://hooks.example.com/x")
    webhook.give_secret()
    webhook.save()
    before, keys = webhook.secret, webhook.signing_keys()
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "x" * 64
    reencrypt_secrets()
    settings.SECRET_KEY_FALLBACKS = []

    webhook.refresh_from_db()
    assert webhook.secret != before
    assert webhook.signing_keys() == keys
