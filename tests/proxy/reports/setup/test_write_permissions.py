"""Who may write which rows of the configuration through /api/v1/."""

import json

import pytest
from django.contrib.auth.models import User

from proxy.models import (
    ApiKey,
    AuditEntry,
    Pause,
    Route,
    RouteTarget,
    Upstream,
)
from proxy.permissions.roles import AUDITOR, MEMBER, OWNER
from tests.fakes.module_rows import undone
from tests.fakes.servers.served_client import ServedClient
from tests.proxy.admin import factories

from .conftest import PRICE, TARGETS, UPSTREAM, last_log_entry, message_of

pytestmark = pytest.mark.django_db

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
    names = {"key": f"apikey_{key.pk}", "route": route.pk, "price": factories.price().pk}
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


def test_only_permitted_users_and_scopes_can_write(as_role):
    for write in WRITES:
        with undone():
            check_writers(as_role, write)


def check_writers(as_role, write):
    method, route = write
    count_before = AuditEntry.objects.count()

    found = {role: as_role(role, method, route, WRITES[write]).status_code for role in NON_WRITERS}

    assert as_role("anonymous", method, route, WRITES[write]).status_code == 401
    assert (write, found) == (write, dict.fromkeys(NON_WRITERS, 403))
    assert AuditEntry.objects.count() == count_before
    if write not in OWNER_WRITES:
        assert as_role(OWNER, method, route, WRITES[write]).status_code == 403
        assert AuditEntry.objects.count() == count_before
    writer = OWNER if write in OWNER_WRITES else "root"
    response = as_role(writer, method, route, WRITES[write])
    assert response.status_code in {200, 201, 204}, (write, response.content)
    assert AuditEntry.objects.count() > count_before
    assert last_log_entry().names.user == writer


def test_a_key_writes_what_its_scope_covers(as_role):
    for write in WRITES:
        with undone():
            check_scopes(as_role, write)


def check_scopes(as_role, write):
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
    assert response.status_code in {200, 201, 204}, (write, response.content)
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


LEAD_PERMISSIONS = (
    "view_exchange", "view_apikey", "add_apikey", "change_apikey", "view_team", "change_team",
)  # fmt: skip


def test_the_leader_of_a_team_writes_only_within_the_team(send_as):
    ada = factories.staff("ada", *LEAD_PERMISSIONS, groups=("team:platform",))
    own, other = factories.key("ci")[0], factories.key("lab", of="research")[0]

    assert [row["name"] for row in send_as(ada, "GET", "keys").json()["data"]] == ["ci"]
    assert [row["name"] for row in send_as(ada, "GET", "teams").json()["data"]] == ["platform"]
    assert send_as(ada, "POST", "keys", {"team": "platform", "name": "new"}).status_code == 201
    assert send_as(ada, "PATCH", f"keys/apikey_{own.pk}", {"name": "ci2"}).status_code == 200
    assert send_as(ada, "PATCH", "teams/platform", {"retention_days": 7}).status_code == 200

    foreign = send_as(ada, "POST", "keys", {"team": "research", "name": "new"})
    moved = send_as(ada, "PATCH", f"keys/apikey_{own.pk}", {"team": "research"})
    nowhere = send_as(ada, "POST", "keys", {"team": "atlantis", "name": "new"})
    assert {response.status_code for response in (foreign, moved, nowhere)} == {400}
    assert message_of(foreign) == message_of(nowhere).replace("atlantis", "research")
    for method in ("GET", "PATCH", "DELETE"):
        assert send_as(ada, method, f"keys/apikey_{other.pk}", {}).status_code == 404
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
