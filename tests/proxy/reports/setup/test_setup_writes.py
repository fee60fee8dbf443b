"""Writing configuration through /api/v1/: permissions, validation and log entries."""

import json
import logging

import pytest
from django.contrib.auth.models import User

from proxy.models import (
    ApiKey,
    AuditEntry,
    Pause,
    Price,
    Revision,
    Route,
    RouteTarget,
    Team,
    Upstream,
)
from proxy.permissions.roles import AUDITOR, MEMBER, OWNER
from tests.fakes.servers.served_client import ServedClient
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db

UPSTREAM_SECRET = "sk-upstream-0123456789abcdef"
UPSTREAM = {"name": "vllm", "dialect": "chat", "base_url": "http://vllm/v1"}
TARGETS = [{"upstream": "openai", "model": "gpt-5.2"}, {"upstream": "openai", "weight": 2}]
PRICE = {"model": "gpt-5.2", "since": "2026-01-01", "input": "1.25", "output": "10"}


@pytest.fixture
def send_as():
    """Send a request in the session of a user and return the response."""

    def send_as(user, method, route, body=None, **headers):
        client, path = ServedClient(), f"/api/v1/{route}/"
        client.force_login(user)
        text = "" if body is None else json.dumps(body)
        return client.generic(method, path, text, "application/json", headers=headers)

    return send_as


@pytest.fixture
def as_root(send_as):
    user = factories.superuser()
    return lambda method, route, body=None: send_as(user, method, route, body)


@pytest.fixture
def openai():
    fields = {"name": "openai", "dialect": "responses", "base_url": "https://api.openai.com/v1"}
    return Upstream.objects.create(**fields)


def message_of(response):
    error = response.json()
    assert error["type"] == "error"
    assert response["request-id"] == error["request_id"]
    return error["error"]["message"]


def last_log_entry():
    return AuditEntry.objects.order_by("pk").last()


def test_a_key_can_be_created_used_and_revoked(as_root, client, caplog):
    caplog.set_level(logging.DEBUG)
    factories.team()

    created = as_root("POST", "keys", {"team": "platform", "name": "ci", "limits": {"rpm": 60}})

    assert created.status_code == 201
    assert created["Cache-Control"] == "no-store"
    row, secret = created.json(), created.json()["secret"]
    assert (row["scopes"], row["limits"]) == (["messages"], {"rpm": 60})
    assert client.get("/api/v1/me/", headers={"x-api-key": secret}).status_code == 200

    changed = as_root(
        "PATCH", f"keys/{row['id']}", {"limits": {}, "expires_at": "2030-01-01T00:00Z"}
    )
    assert changed.json()["expires_at"] == "2030-01-01T00:00:00Z"
    assert last_log_entry().changes["limits"] == {"before": {"rpm": 60}, "after": {}}

    deleted = as_root("DELETE", f"keys/{row['id']}")
    assert deleted.status_code == 200
    assert deleted.json()["revoked_at"]
    assert (
        as_root("DELETE", f"keys/{row['id']}").json() == deleted.json()
    )  # a second time: the same timestamp
    assert last_log_entry().action == "revoke"
    assert client.get("/api/v1/me/", headers={"x-api-key": secret}).status_code == 401

    later = [changed, deleted, as_root("GET", "keys"), as_root("GET", f"keys/{row['id']}")]
    assert not any(secret in response.content.decode() for response in later)
    assert secret not in caplog.text
    assert not any(secret in str(vars(entry)) for entry in AuditEntry.objects.all())


WRITES = {
    ("POST", "keys"): {"team": "platform", "name": "new"},
    ("PATCH", "keys/{key}"): {"limits": {"rpm": 5}},
    ("DELETE", "keys/{key}"): None,
    ("POST", "teams"): {"name": "new"},
    ("PATCH", "teams/platform"): {"store": "metadata"},
    ("DELETE", "teams/empty"): None,
    ("POST", "users"): {"name": "zoe"},
    ("PATCH", "users/ben"): {"email": "ben.new@example.com"},
    ("DELETE", "users/ben"): None,
    ("POST", "models"): {"model": "new-*", "targets": TARGETS},
    ("PATCH", "models/{route}"): {"targets": TARGETS},
    ("DELETE", "models/{route}"): None,
    ("POST", "upstreams"): UPSTREAM,
    ("PATCH", "upstreams/openai"): {"enabled": False},
    ("DELETE", "upstreams/idle"): None,
    ("POST", "prices"): {**PRICE, "since": "2026-06-01"},
    ("DELETE", "prices/{price}"): None,
    ("POST", "pauses"): {"model": "claude-new-*", "message": "back at noon"},
    ("PATCH", "pauses/{pause}"): {"message": "back at one"},
    ("DELETE", "pauses/{pause}"): None,
}
OWNER_WRITES = {
    ("POST", "keys"), ("PATCH", "keys/{key}"), ("DELETE", "keys/{key}"), ("POST", "teams"),
    ("PATCH", "teams/platform"), ("POST", "models"), ("PATCH", "models/{route}"),
    ("DELETE", "models/{route}"), ("POST", "prices"), ("POST", "pauses"),
    ("PATCH", "pauses/{pause}"), ("DELETE", "pauses/{pause}"),
}  # fmt: skip
"""Owners may also send these; the others are for superusers, as in the admin."""
NON_WRITERS = ("messages", "reports", "transcripts:read", "staff", MEMBER, AUDITOR)
FINE_SCOPES = {
    "keys:write": {"keys"},
    "config:write": {"teams", "models", "upstreams", "prices", "pauses"},
}
"""Scope -> the lists that a key with the scope writes."""


@pytest.fixture
def as_role(openai):
    """Create the rows of ``WRITES`` and callers: keys by scope, users by role."""
    key, secret = factories.key("ci", user=factories.staff("ben", groups=(MEMBER,)))
    factories.team("empty")
    Upstream.objects.create(**UPSTREAM | {"name": "idle"})
    route = Route.objects.create(model="claude-*")
    RouteTarget.objects.create(route=route, upstream=openai)
    names = {"key": key.pk, "route": route.pk, "price": factories.price().pk}
    names["pause"] = Pause.objects.create(model="m", message="later").pk
    keys = {
        "messages": secret,
        "reports": factories.key("research-bot", scopes=["reports"])[1],
        "admin": factories.key("finance", scopes=["admin"], user=factories.superuser())[1],
        **{
            scope: factories.key(scope.replace(":", "-"), scopes=[scope])[1]
            for scope in ("transcripts:read", *FINE_SCOPES)
        },
    }
    users = {
        "staff": factories.staff("olga"),
        "root": User.objects.get(username="root"),
        **{role: factories.staff(role, groups=(role,)) for role in (MEMBER, AUDITOR, OWNER)},
    }

    def send(role, method, route, body):
        client, headers = ServedClient(), {}
        if role in users:
            client.force_login(users[role])
        elif role in keys:
            headers = {"x-api-key": keys[role]}
        url = f"/api/v1/{route.format(**names)}/"
        text = "" if body is None else json.dumps(body)
        return client.generic(method, url, text, content_type="application/json", headers=headers)

    return send


@pytest.mark.parametrize("write", WRITES, ids=" ".join)
def test_only_permitted_users_and_scopes_can_write(as_role, write):
    method, route = write
    count_before = AuditEntry.objects.count()

    found = {role: as_role(role, method, route, WRITES[write]).status_code for role in NON_WRITERS}

    assert as_role("anonymous", method, route, WRITES[write]).status_code == 401
    assert found == dict.fromkeys(NON_WRITERS, 403)
    assert AuditEntry.objects.count() == count_before
    if write not in OWNER_WRITES:
        assert as_role(OWNER, method, route, WRITES[write]).status_code == 403
        assert AuditEntry.objects.count() == count_before
    writer = OWNER if write in OWNER_WRITES else "root"
    response = as_role(writer, method, route, WRITES[write])
    assert response.status_code in {200, 201, 204}, response.content
    assert AuditEntry.objects.count() > count_before
    assert last_log_entry().user == writer


@pytest.mark.parametrize("write", WRITES, ids=" ".join)
def test_a_key_writes_what_its_scope_covers(as_role, write):
    method, route = write
    wrong = [scope for scope, lists in FINE_SCOPES.items() if route.split("/")[0] not in lists]

    assert [as_role(scope, method, route, WRITES[write]).status_code for scope in wrong] == (
        [403] * len(wrong)
    )
    right = next((scope for scope in FINE_SCOPES if scope not in wrong), "admin")
    if route.startswith("upstreams"):  # the key of the scope belongs to no superuser
        assert as_role(right, method, route, WRITES[write]).status_code == 403
        right = "admin"
    response = as_role(right, method, route, WRITES[write])
    assert response.status_code in {200, 201, 204}, response.content
    assert last_log_entry().key.startswith("platform/")


def test_a_key_grants_no_more_than_it_has(as_role):
    def grant(caller, *scopes, **fields):
        body = {"team": "platform", "name": "new", "scopes": [*scopes], **fields}
        return as_role(caller, "POST", "keys", body)

    refused = [grant("admin", scope) for scope in ("admin", "config:write", "transcripts:read")]
    refused += [grant("keys:write", scope) for scope in ("admin", "config:write", "reports")]
    refused.append(grant("keys:write", "messages", team="empty"))

    assert {response.status_code for response in refused} == {400}
    assert grant("keys:write", "messages", "keys:write").status_code == 201
    boss = {"name": "boss", "is_superuser": True}
    assert as_role("admin", "POST", "users", boss).status_code == 400
    assert as_role("admin", "PATCH", "users/root", {"email": "a@b.co"}).status_code == 403
    assert User.objects.filter(is_superuser=True).count() == 1


def test_a_write_to_an_unknown_path_is_a_json_404():
    response = ServedClient(enforce_csrf_checks=True).delete("/api/v1/prices/-77/")

    assert response.status_code == 404
    assert message_of(response).startswith("no such path")


LEAD_PERMISSIONS = (
    "view_exchange", "view_apikey", "add_apikey", "change_apikey", "view_team", "change_team",
)  # fmt: skip


def test_the_leader_of_a_team_writes_only_within_the_team(send_as):
    ada = factories.staff("ada", *LEAD_PERMISSIONS, groups=("team:platform",))
    own, other = factories.key("ci")[0], factories.key("lab", of="research")[0]

    assert [row["name"] for row in send_as(ada, "GET", "keys").json()["data"]] == ["ci"]
    assert [row["name"] for row in send_as(ada, "GET", "teams").json()["data"]] == ["platform"]
    assert send_as(ada, "POST", "keys", {"team": "platform", "name": "new"}).status_code == 201
    assert send_as(ada, "PATCH", f"keys/{own.pk}", {"name": "ci2"}).status_code == 200
    assert send_as(ada, "PATCH", "teams/platform", {"retention_days": 7}).status_code == 200

    foreign = send_as(ada, "POST", "keys", {"team": "research", "name": "new"})
    moved = send_as(ada, "PATCH", f"keys/{own.pk}", {"team": "research"})
    nowhere = send_as(ada, "POST", "keys", {"team": "atlantis", "name": "new"})
    assert {response.status_code for response in (foreign, moved, nowhere)} == {400}
    assert message_of(foreign) == message_of(nowhere).replace("atlantis", "research")
    for method in ("GET", "PATCH", "DELETE"):
        assert send_as(ada, method, f"keys/{other.pk}", {}).status_code == 404
        assert send_as(ada, method, "teams/research", {}).status_code in {403, 404}
    assert send_as(ada, "POST", "teams", {"name": "new"}).status_code == 403
    other.refresh_from_db()
    assert (other.revoked, other.team.name) == (None, "research")
    assert ApiKey.objects.filter(team__name="research").count() == 1


def test_only_a_superuser_grants_the_scope_admin(send_as):
    factories.team()
    body = {"team": "platform", "name": "new", "scopes": ["admin"]}

    refused = send_as(factories.staff("olga", groups=(OWNER,)), "POST", "keys", body)

    assert refused.status_code == 400
    assert message_of(refused) == "scopes: only a superuser grants the scope 'admin'"
    assert send_as(factories.superuser(), "POST", "keys", body).status_code == 201


def test_rows_declared_by_bridge_toml_cannot_be_changed(as_root, openai):
    key, _ = factories.key("ci")
    route, price = Route.objects.create(model="claude-*"), factories.price()
    for row in (key, key.team, openai, route, price):
        type(row).objects.filter(pk=row.pk).update(managed=True)
    rows = (f"keys/{key.pk}", "teams/platform", "upstreams/openai", f"models/{route.pk}")

    answers = [as_root("PATCH", row, {}) for row in rows]
    answers += [as_root("DELETE", row) for row in (*rows[1:], f"prices/{price.pk}")]

    assert {response.status_code for response in answers} == {409}
    assert all("is managed by bridge.toml" in message_of(response) for response in answers)
    assert not ApiKey.objects.get().revoked
    assert as_root("DELETE", rows[0]).status_code == 200  # a leaked key can always be revoked
    assert ApiKey.objects.get().revoked
    assert Price.objects.exists()


def test_the_secret_of_an_upstream_is_stored_and_never_returned(as_root, caplog):
    caplog.set_level(logging.DEBUG)
    created = as_root("POST", "upstreams", {**UPSTREAM, "api_key": UPSTREAM_SECRET})
    responses = [created, as_root("GET", "upstreams"), as_root("GET", "upstreams/vllm")]
    responses.append(as_root("PATCH", "upstreams/vllm", {"timeouts": {"idle_s": 60}}))
    way = {"proxy": "http://proxy:3128", "forward_headers": ["x-project"]}
    other = {"when_client_leaves": "drain", "connection_reuse": "key", "connection": way}
    responses.append(as_root("PATCH", "upstreams/vllm", other))

    upstream = Upstream.objects.get()
    assert created.json()["has_secret"] is True
    assert upstream.has_encrypted_secret
    assert upstream.credential() == UPSTREAM_SECRET
    assert upstream.timeouts == {"idle_s": 60}
    assert responses[-1].json()["when_client_leaves"] == upstream.when_client_leaves == "drain"
    assert responses[-1].json()["connection_reuse"] == upstream.connection_reuse == "key"

    assert responses[-1].json()["connection"] == upstream.connection == way

    moved = as_root("PATCH", "upstreams/vllm", {"base_url": "http://elsewhere/v1"})
    assert moved.status_code == 400  # the stored secret would be sent to another server
    assert message_of(moved).startswith("base_url: its secret cannot be read")
    assert as_root("PATCH", "upstreams/vllm", {"api_key": "x" + UPSTREAM_SECRET}).status_code == 200
    assert last_log_entry().changes["secret"] == {"changed": True}
    texts = caplog.text + "".join(str(vars(entry)) for entry in AuditEntry.objects.all())
    texts += "".join(response.content.decode() for response in responses) + str(upstream.secret)
    assert UPSTREAM_SECRET not in texts


def test_new_targets_replace_the_old_ones(as_root, openai):
    created = as_root("POST", "models", {"model": "claude-*", "targets": TARGETS}).json()

    unchanged = as_root("PATCH", f"models/{created['id']}", {"position": 3}).json()
    when = {"min_input_tokens": 5}
    targets = [{**TARGETS[1], "when": when}]
    changed = as_root("PATCH", f"models/{created['id']}", {"targets": targets}).json()
    wrong = [{**TARGETS[1], "when": {"min_tokens": 5}}]
    rejected = as_root("PATCH", f"models/{created['id']}", {"targets": wrong})

    assert created["targets"] == unchanged["targets"]
    assert [target["weight"] for target in unchanged["targets"]] == [1, 2]
    assert changed["targets"] == [{"upstream": "openai", "model": "", "weight": 2, "when": when}]
    assert rejected.status_code == 400
    assert "unknown key 'min_tokens'" in message_of(rejected)
    assert changed["position"] == 3
    assert RouteTarget.objects.count() == 1


def test_a_user_without_the_target_permission_cannot_write_targets(send_as, openai):
    olga = factories.staff("olga", "view_exchange", "view_route", "add_route", "change_route")

    assert send_as(olga, "POST", "models", {"model": "x", "targets": TARGETS}).status_code == 403
    assert not Route.objects.exists()


def test_a_price_cannot_be_changed(as_root):
    first = as_root("POST", "prices", PRICE)
    again = as_root("POST", "prices", {**PRICE, "input": "9"})
    newer = as_root("POST", "prices", {**PRICE, "since": "2026-06-01", "input": "9"})
    other = as_root("PATCH", f"prices/{first.json()['id']}", {"input": "9"})

    assert [response.status_code for response in (first, again, newer, other)] == [
        201,
        400,
        201,
        405,
    ]
    assert "already exists" in message_of(again)
    assert "PATCH" not in other["Allow"]
    assert sorted(str(price.input) for price in Price.objects.all()) == ["1.250000", "9.000000"]


def test_a_row_in_use_cannot_be_deleted(as_root, openai):
    key, _ = factories.key("ci")
    as_root("POST", "models", {"model": "claude-*", "targets": TARGETS})

    team, upstream = (as_root("DELETE", "teams/platform"), as_root("DELETE", "upstreams/openai"))

    assert (team.status_code, upstream.status_code) == (409, 409)
    assert message_of(team) == "platform is in use by 1 key; delete these first"
    assert message_of(upstream) == "openai is in use by 2 targets; delete these first"
    assert {key.team} == set(Team.objects.all())


def test_deleting_a_user_deactivates_it(as_root):
    created = as_root("POST", "users", {"name": "zoe", "is_staff": True, "groups": [OWNER]})
    user = User.objects.get(username="zoe")
    _, secret = factories.key("zoes", user=user)

    deleted = as_root("DELETE", "users/zoe")

    assert (created.status_code, created.json()["groups"]) == (201, [OWNER])
    assert not user.has_usable_password()
    assert (deleted.status_code, deleted.json()["is_active"]) == (200, False)
    assert ServedClient().get("/api/v1/me/", headers={"x-api-key": secret}).status_code == 401
    assert as_root("DELETE", "users/root").status_code == 409
    assert User.objects.get(username="root").is_active


def test_an_invalid_user_creates_no_row(as_root):
    response = as_root("POST", "users", {"name": "zoe", "email": "a@b.co", "groups": ["nowhere"]})
    twice = as_root("POST", "users", {"name": "root"})

    assert (response.status_code, twice.status_code) == (400, 400)
    assert message_of(response) == "groups: there is no 'nowhere'"
    assert message_of(twice).startswith("name: ")
    assert User.objects.count() == 1


def test_each_write_increases_the_revision(as_root):
    factories.team()
    numbers = [Revision.current()]
    key = as_root("POST", "keys", {"team": "platform", "name": "ci"}).json()
    numbers.append(Revision.current())
    as_root("DELETE", f"keys/{key['id']}")
    numbers.append(Revision.current())

    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize(
    ("route", "body", "message"),
    [
        ("keys", [], "the body is not a JSON object"),
        ("keys", {}, "name: This field is required.; team: This field is required."),
        ("keys", {"team": "platform", "name": "../x"}, "name: "),
        ("keys", {"team": "platform", "name": "x", "limits": {"rpm": 0}}, "limits: rpm: "),
        (
            "keys",
            {"team": "platform", "name": "x", "limits": {"rps": 1}},
            "limits: unknown key 'rps'",
        ),
        ("keys", {"team": "platform", "name": "x", "ip_allow": ["10.0.0.1/8"]}, "ip_allow: "),
        ("keys", {"team": "platform", "name": "x", "scopes": ["root"]}, "scopes: "),
        ("keys", {"team": "platform", "name": "x", "digest": "00"}, "digest: unknown field"),
        ("keys", {"team": "platform", "name": "x", "managed": True}, "managed: unknown field"),
        ("keys", {"team": {"name": "platform"}, "name": "x"}, "team: "),
        (
            "keys",
            {"team": "platform", "name": "x", "options": {"events": ["all"]}},
            "options: events[0]: ",
        ),
        (
            "keys",
            {"team": "platform", "name": "x", "options": {"store": "full"}},
            "options: store: ",
        ),
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
        ("upstreams", {**UPSTREAM, "connection": {"proxy": "ftp://p"}}, "connection: proxy "),
        ("upstreams", {**UPSTREAM, "extra_body": {"a": "\x00"}}, "extra_body: "),
        ("upstreams", {**UPSTREAM, "capabilities": {"flies": True}}, "capabilities: unknown"),
        ("upstreams", {**UPSTREAM, "api_key_from": {"sealed": "v1.x"}}, "sealed: unknown field"),
        ("upstreams", {**UPSTREAM, "api_key_from": {"env": "A", "file": "b"}}, "a secret is"),
        ("prices", {**PRICE, "input": "-1"}, "input: "),
        ("prices", {**PRICE, "input": "NaN"}, "input: "),
        ("prices", {**PRICE, "since": "soon"}, "since: "),
    ],
)
def test_an_invalid_field_is_named(as_root, route, body, message):
    factories.team()
    before = AuditEntry.objects.count()

    response = as_root("POST", route, body)

    assert response.status_code == 400, response.content
    assert message_of(response).startswith(message)
    assert AuditEntry.objects.count() == before
