"""Keys in every state: gateway and reports reject the same keys with the same messages."""

import json

import pytest

from tests.e2e.key_requests import PATHS, shell, until_status
from tests.fakes.servers.gateway import Gateway

STATES = """
import json
from datetime import timedelta
from django.contrib.auth.models import User
from django.db import connection
from django.utils.timezone import now
from proxy.models import ApiKey, Revision, Team
red = Team.objects.create(name="states")
ago, later, hour = now() - timedelta(hours=1), now() + timedelta(hours=1), timedelta(hours=1)
left = User.objects.create(username="left", is_active=False)
secrets = {}

def one(name, **fields):
    key, secrets[name] = ApiKey.issue(red, name.replace(" ", "-"), scopes=["reports", "messages"])
    ApiKey.objects.filter(pk=key.pk).update(**fields)
    return key

def rotated(name, **fields):
    key = one(name)
    key.rotate(hour)
    ApiKey.objects.filter(pk=key.pk).update(**fields)

def damaged(name, column, value):
    key = one(name)
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA foreign_keys = OFF")
        cursor.execute(f"UPDATE proxy_apikey SET {column} = %s WHERE id = %s", [value, key.pk])
        cursor.execute("PRAGMA foreign_keys = ON")

one("valid")
one("revoked", revoked=ago)
one("revoked later", revoked=later)
one("expired", expires=ago)
one("user inactive", user=left)
rotated("old secret")
rotated("successor revoked", revoked=ago)
rotated("successor expired", expires=ago)
rotated("successors user inactive", user=left)
damaged("team gone", "team_id", 99_999)
damaged("user gone", "user_id", 99_999)
damaged("successor gone", "successor_id", 99_999)
damaged("revoked at no instant", "revoked", "yes")
one("without a prefix", prefix="")
one("newest")
Revision.bump()
secrets["newest"] = ApiKey.objects.get(team=red, name="newest").rotate(hour)[1]
print(json.dumps(secrets))
"""
MESSAGES = {
    "valid": "",
    "revoked": "this gateway key was revoked",
    "revoked later": "",
    "expired": "this gateway key has expired",
    "user inactive": "the user of this gateway key is deactivated",
    "old secret": "",
    "successor revoked": "this gateway key was revoked",
    "successor expired": "this gateway key has expired",
    "successors user inactive": "the user of this gateway key is deactivated",
    "team gone": "invalid gateway key",
    "user gone": "invalid gateway key",
    "successor gone": "invalid gateway key",
    "revoked at no instant": "invalid gateway key",
    "without a prefix": "invalid gateway key",
}
"""State of a key -> the message of its 401; empty: the key is valid."""


@pytest.fixture(scope="module")
def states(gateway: Gateway) -> dict[str, str]:
    """A secret for each state; the gateway has loaded all of them."""
    secrets: dict[str, str] = json.loads(shell(gateway, STATES).splitlines()[-1])
    until_status(gateway, secrets["newest"], 200)
    return secrets


@pytest.mark.parametrize("state", MESSAGES)
def test_gateway_and_reports_reject_a_key_with_the_same_message(
    gateway: Gateway, states: dict[str, str], state: str
):
    headers = {"x-api-key": states[state]}
    answers = [gateway.request("GET", path, None, headers, authorized=False) for path in PATHS]

    results = [
        "" if one.status == 200 else (one.status, json.loads(one.body)["error"]["message"])
        for one in answers
    ]

    expected = MESSAGES[state] and (401, MESSAGES[state])
    assert results == [expected] * len(PATHS)
