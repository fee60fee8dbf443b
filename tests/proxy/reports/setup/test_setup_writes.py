"""Writing configuration through /api/v1/: validation, log entries and secrets."""

import logging

import pytest
from django.contrib.auth.models import User
from django.utils.timezone import now

from proxy.models import (
    ApiKey,
    AuditEntry,
    Price,
    Revision,
    Route,
    RouteTarget,
    Team,
    Upstream,
)
from proxy.permissions.roles import OWNER
from tests.fakes.servers.served_client import ServedClient
from tests.proxy.admin import factories

from .conftest import PRICE, TARGETS, UPSTREAM, UPSTREAM_SECRET, last_log_entry, message_of

pytestmark = pytest.mark.django_db


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
    assert last_log_entry().action == "revoke"
    ApiKey.objects.update(last_used=now())  # so the row is not deleted the second time
    again = as_root("DELETE", f"keys/{row['id']}").json()
    assert again["revoked_at"] == deleted.json()["revoked_at"]
    assert last_log_entry().action == "revoke"
    assert client.get("/api/v1/me/", headers={"x-api-key": secret}).status_code == 401

    later = [changed, deleted, as_root("GET", "keys"), as_root("GET", f"keys/{row['id']}")]
    assert not any(secret in response.content.decode() for response in later)
    assert secret not in caplog.text
    assert not any(secret in str(vars(entry)) for entry in AuditEntry.objects.all())


def test_a_write_to_an_unknown_path_is_a_json_404():
    response = ServedClient(enforce_csrf_checks=True).delete("/api/v1/prices/-77/")

    assert response.status_code == 404
    assert message_of(response).startswith("no such path")


def test_rows_declared_by_bridge_toml_cannot_be_changed(as_root, openai):
    key, _ = factories.key("ci")
    route, price = Route.objects.create(model="claude-*"), factories.price()
    for row in (key, key.team, openai, route, price):
        type(row).objects.filter(pk=row.pk).update(managed=True)
    rows = (f"keys/apikey_{key.pk}", "teams/platform", "upstreams/openai", f"models/{route.pk}")

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
    assert changed["targets"] == [
        {
            "upstream": {"id": "openai", "dialect": "responses"},
            "model": "",
            "weight": 2,
            "when": when,
        }
    ]
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
    assert (
        message_of(team) == "platform is in use by the key ci; revoke first, then delete the team"
    )
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
        ("upstreams", {**UPSTREAM, "timeouts": {"idle_s": -1}}, "timeouts: idle_s: "),
        ("upstreams", {**UPSTREAM, "when_client_leaves": "x"}, "when_client_leaves: "),
        ("upstreams", {**UPSTREAM, "connection_reuse": "user"}, "connection_reuse: "),
        ("upstreams", {**UPSTREAM, "connection": {"proxy": "ftp://p"}}, "connection: proxy "),
        ("upstreams", {**UPSTREAM, "extra_body": {"a": "\x00"}}, "extra_body: "),
        ("upstreams", {**UPSTREAM, "capabilities": {"flies": True}}, "capabilities: unknown"),
        (
            "upstreams",
            {**UPSTREAM, "api_key_from": {"sealed": "v1.x"}},
            "api_key_from: a secret is",
        ),
        (
            "upstreams",
            {**UPSTREAM, "api_key_from": {"env": "A", "file": "b"}},
            "api_key_from: a secret is",
        ),
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
