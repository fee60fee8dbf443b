"""What is set up is written over /api/v1/ as in the admin: who may, what is right, what is told."""

import json
import logging

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User

from proxy.models import ApiKey, Price, Revision, Route, RouteTarget, Team, Upstream
from proxy.roles import AUDITOR, MEMBER, OWNER
from tests.fakes.served_client import ServedClient
from tests.proxy.admin import cast

pytestmark = pytest.mark.django_db

UPSTREAM_SECRET = "sk-upstream-0123456789abcdef"
UPSTREAM = {"name": "vllm", "dialect": "chat", "base_url": "http://vllm/v1"}
TARGETS = [{"upstream": "openai", "model": "gpt-5.2"}, {"upstream": "openai", "weight": 2}]
PRICE = {"model": "gpt-5.2", "since": "2026-01-01", "input": "1.25", "output": "10"}


@pytest.fixture
def asks():
    """Ask as a user; the answer of a write."""

    def asks(user, method, route, body=None, **headers):
        client, path = ServedClient(), f"/api/v1/{route}/"
        client.force_login(user)
        text = "" if body is None else json.dumps(body)
        return client.generic(method, path, text, "application/json", headers=headers)

    return asks


@pytest.fixture
def root(asks):
    user = cast.superuser()
    return lambda method, route, body=None: asks(user, method, route, body)


@pytest.fixture
def openai():
    told = {"name": "openai", "dialect": "responses", "base_url": "https://api.openai.com/v1"}
    return Upstream.objects.create(**told)


def message_of(answer):
    error = answer.json()
    assert error["type"] == "error"
    assert answer["request-id"] == error["request_id"]
    return error["error"]["message"]


def last_line():
    return LogEntry.objects.order_by("pk").last()


def test_a_key_is_made_used_and_revoked(root, client, caplog):
    caplog.set_level(logging.DEBUG)
    cast.team()

    made = root("POST", "keys", {"team": "platform", "name": "ci", "limits": {"rpm": 60}})

    assert made.status_code == 201
    assert made["Cache-Control"] == "no-store"
    row, secret = made.json(), made.json()["secret"]
    assert (row["scopes"], row["limits"]) == (["messages"], {"rpm": 60})
    assert client.get("/api/v1/me/", headers={"x-api-key": secret}).status_code == 200

    changed = root("PATCH", f"keys/{row['id']}", {"limits": {}, "expires_at": "2030-01-01T00:00Z"})
    assert changed.json()["expires_at"] == "2030-01-01T00:00:00Z"
    assert last_line().get_change_message().count("limits: {'rpm': 60} → {}") == 1

    gone = root("DELETE", f"keys/{row['id']}")
    assert gone.status_code == 200
    assert gone.json()["revoked_at"]
    assert root("DELETE", f"keys/{row['id']}").json() == gone.json()  # again: the same moment
    assert last_line().change_message == "Revoked."
    assert client.get("/api/v1/me/", headers={"x-api-key": secret}).status_code == 401

    later = [changed, gone, root("GET", "keys"), root("GET", f"keys/{row['id']}")]
    assert not any(secret in answer.content.decode() for answer in later)
    assert secret not in caplog.text
    assert not any(secret in entry.change_message for entry in LogEntry.objects.all())


WRITES = {
    ("POST", "keys"): {"team": "platform", "name": "new"},
    ("PATCH", "keys/{key}"): {"limits": {"rpm": 5}},
    ("DELETE", "keys/{key}"): None,
    ("POST", "teams"): {"name": "new"},
    ("PATCH", "teams/platform"): {"store": "metadata"},
    ("DELETE", "teams/empty"): None,
    ("POST", "users"): {"name": "zoe"},
    ("PATCH", "users/ben"): {"email": "ben@example.com"},
    ("DELETE", "users/ben"): None,
    ("POST", "models"): {"model": "new-*", "targets": TARGETS},
    ("PATCH", "models/{route}"): {"targets": TARGETS},
    ("DELETE", "models/{route}"): None,
    ("POST", "upstreams"): UPSTREAM,
    ("PATCH", "upstreams/openai"): {"enabled": False},
    ("DELETE", "upstreams/idle"): None,
    ("POST", "prices"): {**PRICE, "since": "2026-06-01"},
    ("DELETE", "prices/{price}"): None,
}
OWNERS_TOO = {
    ("POST", "keys"), ("PATCH", "keys/{key}"), ("DELETE", "keys/{key}"), ("POST", "teams"),
    ("PATCH", "teams/platform"), ("POST", "models"), ("PATCH", "models/{route}"),
    ("DELETE", "models/{route}"), ("POST", "prices"),
}  # fmt: skip
"""The rest is for superusers, as in the admin."""
READERS = ("messages", "reports", "admin", "staff", MEMBER, AUDITOR)


@pytest.fixture
def house(openai):
    """What ``WRITES`` names, and who might write: keys by scope, users by role."""
    key, secret = cast.key("ci", user=cast.staff("ben", groups=(MEMBER,)))
    cast.team("empty")
    Upstream.objects.create(**UPSTREAM | {"name": "idle"})
    route = Route.objects.create(model="claude-*")
    RouteTarget.objects.create(route=route, upstream=openai)
    names = {"key": key.pk, "route": route.pk, "price": cast.price().pk}
    keys = {
        "messages": secret,
        "reports": cast.key("board", scopes=["reports"])[1],
        "admin": cast.key("finance", scopes=["admin"], user=cast.superuser())[1],
    }
    users = {
        "staff": cast.staff("olga"),
        "root": User.objects.get(username="root"),
        **{role: cast.staff(role, groups=(role,)) for role in (MEMBER, AUDITOR, OWNER)},
    }

    def ask(who, method, route, body):
        client, headers = ServedClient(), {}
        if who in users:
            client.force_login(users[who])
        elif who in keys:
            headers = {"x-api-key": keys[who]}
        url = f"/api/v1/{route.format(**names)}/"
        text = "" if body is None else json.dumps(body)
        return client.generic(method, url, text, content_type="application/json", headers=headers)

    return ask


@pytest.mark.parametrize("write", WRITES, ids=" ".join)
def test_only_who_may_in_the_admin_writes(house, write):
    method, route = write
    lines = LogEntry.objects.count()

    found = {who: house(who, method, route, WRITES[write]).status_code for who in READERS}

    assert house("nobody", method, route, WRITES[write]).status_code == 401
    assert found == dict.fromkeys(READERS, 403)
    assert LogEntry.objects.count() == lines
    if write not in OWNERS_TOO:
        assert house(OWNER, method, route, WRITES[write]).status_code == 403
        assert LogEntry.objects.count() == lines
    may = OWNER if write in OWNERS_TOO else "root"
    answer = house(may, method, route, WRITES[write])
    assert answer.status_code in {200, 201, 204}, answer.content
    assert LogEntry.objects.count() > lines
    assert last_line().user.username == may


def test_a_key_of_a_superuser_writes_no_more_than_any_other(house):
    answer = house("admin", "POST", "keys", WRITES["POST", "keys"])

    assert message_of(answer) == "writing needs a signed-in user; gateway keys only read here"


def test_writing_to_where_nothing_is_answers_no_html():
    answer = ServedClient(enforce_csrf_checks=True).delete("/api/v1/prices/-77/")

    assert answer.status_code == 404
    assert message_of(answer).startswith("no such path")


LEADS = ("view_exchange", "view_apikey", "add_apikey", "change_apikey", "view_team", "change_team")


def test_a_teams_admin_writes_within_the_team(asks):
    ada = cast.staff("ada", *LEADS, groups=("team:platform",))
    own, other = cast.key("ci")[0], cast.key("lab", of="research")[0]

    assert [row["name"] for row in asks(ada, "GET", "keys").json()["data"]] == ["ci"]
    assert [row["name"] for row in asks(ada, "GET", "teams").json()["data"]] == ["platform"]
    assert asks(ada, "POST", "keys", {"team": "platform", "name": "new"}).status_code == 201
    assert asks(ada, "PATCH", f"keys/{own.pk}", {"name": "ci2"}).status_code == 200
    assert asks(ada, "PATCH", "teams/platform", {"retention_days": 7}).status_code == 200

    foreign = asks(ada, "POST", "keys", {"team": "research", "name": "new"})
    moved = asks(ada, "PATCH", f"keys/{own.pk}", {"team": "research"})
    nowhere = asks(ada, "POST", "keys", {"team": "atlantis", "name": "new"})
    assert {answer.status_code for answer in (foreign, moved, nowhere)} == {400}
    assert message_of(foreign) == message_of(nowhere).replace("atlantis", "research")
    for method in ("GET", "PATCH", "DELETE"):
        assert asks(ada, method, f"keys/{other.pk}", {}).status_code == 404
        assert asks(ada, method, "teams/research", {}).status_code in {403, 404}
    assert asks(ada, "POST", "teams", {"name": "new"}).status_code == 403
    other.refresh_from_db()
    assert (other.revoked, other.team.name) == (None, "research")
    assert ApiKey.objects.filter(team__name="research").count() == 1


def test_only_a_superuser_grants_the_scope_admin(asks):
    cast.team()
    wanted = {"team": "platform", "name": "new", "scopes": ["admin"]}

    refused = asks(cast.staff("olga", groups=(OWNER,)), "POST", "keys", wanted)

    assert refused.status_code == 400
    assert message_of(refused) == "scopes: only a superuser grants the scope 'admin'"
    assert asks(cast.superuser(), "POST", "keys", wanted).status_code == 201


def test_what_bridge_toml_declares_is_changed_there(root, openai):
    key, _ = cast.key("ci")
    route, price = Route.objects.create(model="claude-*"), cast.price()
    for row in (key, key.team, openai, route, price):
        type(row).objects.filter(pk=row.pk).update(managed=True)
    rows = (f"keys/{key.pk}", "teams/platform", "upstreams/openai", f"models/{route.pk}")

    answers = [root("PATCH", row, {}) for row in rows]
    answers += [root("DELETE", row) for row in (*rows[1:], f"prices/{price.pk}")]

    assert {answer.status_code for answer in answers} == {409}
    assert all("is managed by bridge.toml" in message_of(answer) for answer in answers)
    assert not ApiKey.objects.get().revoked
    assert root("DELETE", rows[0]).status_code == 200  # a leaked key is revoked, whatever made it
    assert ApiKey.objects.get().revoked
    assert Price.objects.exists()


def test_an_upstreams_secret_goes_in_and_never_out(root, caplog):
    caplog.set_level(logging.DEBUG)
    made = root("POST", "upstreams", {**UPSTREAM, "api_key": UPSTREAM_SECRET})
    seen = [made, root("GET", "upstreams"), root("GET", "upstreams/vllm")]
    seen.append(root("PATCH", "upstreams/vllm", {"timeouts": {"idle_s": 60}}))
    other = {"when_client_leaves": "drain", "connection_reuse": "key"}
    seen.append(root("PATCH", "upstreams/vllm", other))

    upstream = Upstream.objects.get()
    assert made.json()["has_secret"] is True
    assert upstream.is_sealed
    assert upstream.credential() == UPSTREAM_SECRET
    assert upstream.timeouts == {"idle_s": 60}
    assert seen[-1].json()["when_client_leaves"] == upstream.when_client_leaves == "drain"
    assert seen[-1].json()["connection_reuse"] == upstream.connection_reuse == "key"

    moved = root("PATCH", "upstreams/vllm", {"base_url": "http://elsewhere/v1"})
    assert moved.status_code == 400  # the secret would be sent to another server
    assert message_of(moved).startswith("base_url: its secret cannot be read")
    assert root("PATCH", "upstreams/vllm", {"api_key": "x" + UPSTREAM_SECRET}).status_code == 200
    assert "new_secret: changed" in last_line().get_change_message()
    told = caplog.text + "".join(entry.change_message for entry in LogEntry.objects.all())
    told += "".join(answer.content.decode() for answer in seen) + str(upstream.secret)
    assert UPSTREAM_SECRET not in told


def test_new_targets_replace_the_old_ones(root, openai):
    made = root("POST", "models", {"model": "claude-*", "targets": TARGETS}).json()

    kept = root("PATCH", f"models/{made['id']}", {"position": 3}).json()
    changed = root("PATCH", f"models/{made['id']}", {"targets": TARGETS[1:]}).json()

    assert made["targets"] == kept["targets"]
    assert [target["weight"] for target in kept["targets"]] == [1, 2]
    assert changed["targets"] == [{"upstream": "openai", "model": "", "weight": 2}]
    assert changed["position"] == 3
    assert RouteTarget.objects.count() == 1


def test_whoever_may_not_write_targets_writes_none(asks, openai):
    olga = cast.staff("olga", "view_exchange", "view_route", "add_route", "change_route")

    assert asks(olga, "POST", "models", {"model": "x", "targets": TARGETS}).status_code == 403
    assert not Route.objects.exists()


def test_a_price_is_dated_and_never_changed(root):
    first = root("POST", "prices", PRICE)
    again = root("POST", "prices", {**PRICE, "input": "9"})
    newer = root("POST", "prices", {**PRICE, "since": "2026-06-01", "input": "9"})
    other = root("PATCH", f"prices/{first.json()['id']}", {"input": "9"})

    assert [answer.status_code for answer in (first, again, newer, other)] == [201, 400, 201, 405]
    assert "already exists" in message_of(again)
    assert "PATCH" not in other["Allow"]
    assert sorted(str(price.input) for price in Price.objects.all()) == ["1.250000", "9.000000"]


def test_what_is_in_use_is_not_deleted(root, openai):
    key, _ = cast.key("ci")
    root("POST", "models", {"model": "claude-*", "targets": TARGETS})

    team, upstream = root("DELETE", "teams/platform"), root("DELETE", "upstreams/openai")

    assert (team.status_code, upstream.status_code) == (409, 409)
    assert message_of(team) == "platform is in use by 1 key; take these away first"
    assert message_of(upstream) == "openai is in use by 2 targets; take these away first"
    assert {key.team} == set(Team.objects.all())


def test_a_user_is_deactivated_rather_than_erased(root):
    made = root("POST", "users", {"name": "zoe", "is_staff": True, "groups": [OWNER]})
    user = User.objects.get(username="zoe")
    _, secret = cast.key("zoes", user=user)

    gone = root("DELETE", "users/zoe")

    assert (made.status_code, made.json()["groups"]) == (201, [OWNER])
    assert not user.has_usable_password()
    assert (gone.status_code, gone.json()["is_active"]) == (200, False)
    assert ServedClient().get("/api/v1/me/", headers={"x-api-key": secret}).status_code == 401
    assert root("DELETE", "users/root").status_code == 409
    assert User.objects.get(username="root").is_active


def test_a_half_right_user_leaves_nothing_behind(root):
    answer = root("POST", "users", {"name": "zoe", "email": "a@b.co", "groups": ["nowhere"]})
    twice = root("POST", "users", {"name": "root"})

    assert (answer.status_code, twice.status_code) == (400, 400)
    assert message_of(answer) == "groups: there is no 'nowhere'"
    assert message_of(twice).startswith("name: ")
    assert User.objects.count() == 1


def test_the_gateway_learns_of_each_write(root):
    cast.team()
    numbers = [Revision.current()]
    key = root("POST", "keys", {"team": "platform", "name": "ci"}).json()
    numbers.append(Revision.current())
    root("DELETE", f"keys/{key['id']}")
    numbers.append(Revision.current())

    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize(
    ("route", "body", "told"),
    [
        ("keys", [], "the body is no JSON object"),
        ("keys", {}, "team: This field is required.; name: This field is required."),
        ("keys", {"team": "platform", "name": "../x"}, "name: "),
        ("keys", {"team": "platform", "name": "x", "limits": {"rpm": 0}}, "rpm: "),
        ("keys", {"team": "platform", "name": "x", "limits": {"rps": 1}}, "rps: unknown field"),
        ("keys", {"team": "platform", "name": "x", "ip_allow": ["10.0.0.1/8"]}, "ip_allow: "),
        ("keys", {"team": "platform", "name": "x", "scopes": ["root"]}, "scopes: "),
        ("keys", {"team": "platform", "name": "x", "digest": "00"}, "digest: unknown field"),
        ("keys", {"team": "platform", "name": "x", "managed": True}, "managed: unknown field"),
        ("keys", {"team": {"name": "platform"}, "name": "x"}, "team: "),
        ("keys", {"team": "platform", "name": "x", "options": {"events": ["all"]}}, "events: "),
        ("keys", {"team": "platform", "name": "x", "options": {"store": "full"}}, "store: "),
        ("teams", {"name": "x\x00"}, "name: "),
        ("teams", {"name": "x", "models_allowed": "claude-*"}, "models_allowed: "),
        ("teams", {"name": "x", "models_allowed": ["\ud800"]}, "models_allowed: "),
        ("teams", {"name": "x", "retention_days": 10**30}, "retention_days: "),
        ("users", {"name": "x y"}, "name: "),
        ("users", {"name": "x", "password": "hush"}, "password: unknown field"),
        ("models", {"model": "x", "targets": []}, "targets: "),
        ("models", {"model": "x", "targets": [{"model": "y"}]}, "upstream: "),
        ("upstreams", {**UPSTREAM, "base_url": "http://example.com"}, "base_url: base URL "),
        ("upstreams", {**UPSTREAM, "base_url": "file:///etc/passwd"}, "base_url: base URL "),
        ("upstreams", {**UPSTREAM, "timeouts": {"idle_s": -1}}, "timeouts: timeout 'idle_s'"),
        ("upstreams", {**UPSTREAM, "when_client_leaves": "x"}, "when_client_leaves: "),
        ("upstreams", {**UPSTREAM, "connection_reuse": "user"}, "connection_reuse: "),
        ("upstreams", {**UPSTREAM, "extra_body": {"a": "\x00"}}, "extra_body: "),
        ("upstreams", {**UPSTREAM, "capabilities": {"flies": True}}, "capabilities: unknown"),
        ("upstreams", {**UPSTREAM, "api_key_from": {"sealed": "v1.x"}}, "sealed: unknown field"),
        ("upstreams", {**UPSTREAM, "api_key_from": {"env": "A", "file": "b"}}, "a secret is"),
        ("prices", {**PRICE, "input": "-1"}, "input: "),
        ("prices", {**PRICE, "input": "NaN"}, "input: "),
        ("prices", {**PRICE, "since": "soon"}, "since: "),
    ],
)
def test_what_is_wrong_is_named(root, route, body, told):
    cast.team()
    before = LogEntry.objects.count()

    answer = root("POST", route, body)

    assert answer.status_code == 400, answer.content
    assert message_of(answer).startswith(told)
    assert LogEntry.objects.count() == before
