"""Keys in every state: gateway and reports refuse the same ones, in the same words."""

import json
from collections.abc import Iterator

import pytest

from tests.fakes.gateway import Gateway, toml_for

from .keys import PATHS, shell, until_answered

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
Revision.rise()
secrets["newest"] = ApiKey.objects.get(team=red, name="newest").rotate(hour)[1]
print(json.dumps(secrets))
"""
REFUSED = {
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
"""State of a key -> the message of its 401; empty: it is in force."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    upstream = {"dialect": "chat", "base_url": "http://127.0.0.1:9/v1"}
    route = '\n[[routes]]\nmodel = "m"\ntargets = [{ upstream = "chat" }]\n'
    config = toml_for({"chat": upstream}, route)
    with Gateway(tmp_path_factory.mktemp("validity"), config=config) as running:
        yield running


@pytest.fixture(scope="module")
def states(gateway: Gateway) -> dict[str, str]:
    """A secret for each state, all of them known to the gateway."""
    found: dict[str, str] = json.loads(shell(gateway, STATES).splitlines()[-1])
    until_answered(gateway, found["newest"], 200)
    return found


@pytest.mark.parametrize("state", REFUSED)
def test_gateway_and_reports_decide_alike_and_in_the_same_words(
    gateway: Gateway, states: dict[str, str], state: str
):
    headers = {"x-api-key": states[state]}
    answers = [gateway.ask("GET", path, None, headers, authorised=False) for path in PATHS]

    told = [
        "" if one.status == 200 else (one.status, json.loads(one.body)["error"]["message"])
        for one in answers
    ]

    expected = REFUSED[state] and (401, REFUSED[state])
    assert told == [expected] * len(PATHS)
