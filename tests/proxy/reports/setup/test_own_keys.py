"""Members list, make, rotate and revoke their own keys over REST."""

import json
from datetime import timedelta

import pytest
from django.utils.timezone import now

from proxy.models import ApiKey
from proxy.permissions.roles import MEMBER
from proxy.secrets import digest_of
from tests.fakes.servers.served_client import ServedClient
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db
BODY = {"team": "platform", "name": "laptop"}


@pytest.fixture
def ben():
    factories.team("platform", member_keys={"count": 1, "days": 30, "models": ["claude-*"]})
    factories.team("research", member_keys={"count": 1})
    return factories.staff("ben", groups=(MEMBER, "team:platform"))


@pytest.fixture
def send(ben):
    client = ServedClient()
    client.force_login(ben)

    def one(method, path="", body=None, **headers):
        text = "" if body is None else json.dumps(body)
        url = f"/api/v1/me/keys/{path}"
        return client.generic(method, url, text, "application/json", headers=headers)

    return one


def soon():
    return (now() + timedelta(days=29)).isoformat()


def test_a_member_makes_lists_rotates_and_revokes_a_key(send, ben):
    made = send("POST", body={**BODY, "expires_at": soon()})
    key = ApiKey.objects.get()
    listed = send("GET").json()
    rotated = send("POST", f"apikey_{key.pk}/rotate/", {"overlap_h": 0})
    revoked = send("DELETE", f"apikey_{key.pk}/")

    assert (made.status_code, made["Cache-Control"]) == (201, "no-store")
    assert (key.user, key.models_allowed, key.scopes) == (ben, ["claude-*"], ["messages"])
    assert bytes(key.digest) == digest_of(made.json()["secret"])
    assert [row["name"] for row in listed["data"]] == ["laptop"]
    assert "secret" not in str(listed)
    assert [(team["team"]["id"], team["left"]) for team in listed["teams"]] == [("platform", 0)]
    assert rotated["Cache-Control"] == "no-store"
    key.refresh_from_db()
    assert bytes(key.digest) == digest_of(rotated.json()["secret"])
    assert revoked.json()["revoked_at"]
    assert send("POST", f"apikey_{key.pk}/rotate/", {}).status_code == 403


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"team": "research"}, "team: you may make keys in: platform"),
        ({"team": "nowhere"}, "team: you may make keys in: platform"),
        ({"scopes": ["admin"]}, "scopes: 'admin' is not one of messages"),
        ({"scopes": ["root"]}, "scopes: "),
        ({"expires_at": None}, "expires_at: a key of 'platform' expires on"),
        ({"expires_at": "2999-01-01T00:00:00Z"}, "expires_at: a key of 'platform' expires on"),
        ({"models_allowed": ["gpt-*"]}, "models_allowed: 'gpt-*' is not one of claude-*"),
        ({"models_allowed": ["x"] * 201}, "models_allowed: "),
        ({"user": "ada"}, "user: unknown field"),
        ({"name": "two words"}, "name: "),
    ],
)
def test_a_key_beyond_the_limits_is_a_400(send, changes, message):
    answer = send("POST", body={**BODY, "expires_at": soon(), **changes})

    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)
    assert not ApiKey.objects.exists()


def test_a_second_key_is_refused_at_the_limit_of_one(send):
    send("POST", body={**BODY, "expires_at": soon()})

    answer = send("POST", body={**BODY, "name": "second", "expires_at": soon()})

    assert "1 of 1 keys of 'platform' are in use" in answer.json()["error"]["message"]


def test_keys_of_others_do_not_exist_here(send):
    foreign = factories.key("ci")[0]

    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "rotate/")):
        body = {} if method == "POST" else None
        assert send(method, f"apikey_{foreign.pk}/{path}", body).status_code == 404
    foreign.refresh_from_db()
    assert foreign.revoked is None


def test_a_gateway_key_can_make_no_keys(ben):
    secret = factories.key("own", user=ben, scopes=["admin"])[1]

    answer = ServedClient().generic(
        "POST", "/api/v1/me/keys/", json.dumps(BODY), "application/json",
        headers={"x-api-key": secret},
    )  # fmt: skip

    assert answer.status_code == 403
    assert ApiKey.objects.count() == 1
