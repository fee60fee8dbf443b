"""Automation by a gateway key: an infrastructure script, and repeated writes."""

import json
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils.timezone import now

from proxy.ledger.maintenance.purge_jobs import start_if_due
from proxy.models import (
    ApiKey,
    AuditEntry,
    Budget,
    IdempotentWrite,
    Pause,
    Price,
    Route,
    RouteTarget,
    SavedReport,
    Team,
    Upstream,
    UsageQuarterHour,
    Webhook,
)
from tests.fakes.openapi import schema
from tests.fakes.servers.served_client import ServedClient
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db

DESIRED = [  # (list, the field that identifies a row, the desired values), in order of creation
    ("upstreams", "name", {"name": "vllm", "dialect": "chat", "base_url": "http://vllm/v1"}),
    ("teams", "name", {"name": "mobile", "retention_days": 30, "limits": {"rpm": 600}}),
    ("users", "name", {"name": "zoe", "email": "zoe@example.com", "is_staff": True}),
    ("keys", "name", {"team": "mobile", "name": "app", "user": "zoe", "limits": {"rpm": 60}}),
    ("models", "model", {"model": "claude-*", "team": "mobile", "position": 1,
                         "targets": [{"upstream": "vllm", "model": "qwen3", "weight": 1, "when": {}}]}),
    ("prices", "model", {"upstream": "vllm", "model": "qwen3", "since": "2026-01-01",
                         "input": "0.500000", "output": "1.000000"}),
    ("budgets", "team", {"team": "mobile", "limit_usd": "500", "period": "month", "tz": "UTC"}),
    ("pauses", "model", {"upstream": "vllm", "model": "qwen3", "message": "back at noon"}),
    ("webhooks", "name", {"name": "ops", "url": "https://ops.example.com/hook",
                          "events": ["key.revoked"]}),
    ("reports", "name", {"name": "spend", "report": "usage", "query": {"month": "last"}}),
]  # fmt: skip
CHANGED = {
    "upstreams": {"enabled": False},
    "teams": {"retention_days": 7},
    "users": {"email": "z@example.org"},
    "keys": {"limits": {"rpm": 5}},
    "models": {"targets": [{"upstream": "vllm", "model": "", "weight": 2, "when": {}}]},
    "budgets": {"limit_usd": "250", "hard": False},
    "pauses": {"message": "back at one"},
    "webhooks": {"enabled": False},
    "reports": {"query": {"month": "this"}},
}


def as_body(value):
    """Return a value of a row as a body has it: an id in place of a reference."""
    if isinstance(value, list):
        return [as_body(item) for item in value]
    if isinstance(value, dict):
        is_reference = set(value) in REFERENCES
        return value["id"] if is_reference else {name: as_body(value[name]) for name in value}
    return value


REFERENCES = ({"id", "name"}, {"id", "email"}, {"id", "dialect"})


@pytest.fixture
def send():
    """Send a request with a superuser's key of the scope ``admin``; return the response."""
    secret = factories.key("terraform", of="ops", scopes=["admin"], user=factories.superuser())[1]

    def send(method, path, body=None, **headers):
        text = "" if body is None else json.dumps(body)
        sent = {"x-api-key": secret, **headers}
        return ServedClient().generic(
            method, f"/api/v1/{path}", text, "application/json", headers=sent
        )

    return send


class Script:
    """Applies a list of desired rows, as Terraform does: read, plan, write, and delete in the end."""

    def __init__(self, send):
        self.send = send
        self.paths = {}

    def read(self, kind):
        response = self.send("GET", self.paths[kind])
        assert response.status_code == 200, response.content
        return response.json()

    def plan(self, desired):
        """Return the values by list that differ from the rows, or all values of a missing row."""
        found = {}
        for kind, _, values in desired:
            row = self.read(kind) if kind in self.paths else {}
            if differing := {
                name: values[name] for name in values if as_body(row.get(name)) != values[name]
            }:
                found[kind] = differing
        return found

    def apply(self, desired):
        for kind, values in self.plan(desired).items():
            exists = kind in self.paths
            method, path = ("PATCH", self.paths[kind]) if exists else ("POST", f"{kind}/")
            response = self.send(method, path, values)
            assert response.status_code == (200 if exists else 201), response.content
            self.paths[kind] = f"{kind}/{response.json()['id']}/"

    def destroy(self, desired):
        for kind, *_ in reversed(desired):
            response = self.send("DELETE", self.paths[kind])
            assert response.status_code in {200, 204}, (kind, response.content)


def test_the_script_writes_every_list_that_can_be_written():
    writable = {
        path.split("/")[3]
        for path, operations in schema()["paths"].items()
        if path.startswith("/api/v1/") and "delete" in operations and path.count("/") == 5
    }

    assert {kind for kind, *_ in DESIRED} == writable - {"me"}


def test_a_script_creates_reads_updates_plans_no_change_and_deletes(send):
    script = Script(send)

    script.apply(DESIRED)
    assert script.plan(DESIRED) == {}

    changed = [(kind, by, desired | CHANGED.get(kind, {})) for kind, by, desired in DESIRED]
    assert script.plan(changed) == CHANGED
    script.apply(changed)
    assert script.plan(changed) == {}
    listed = send("GET", "keys/?team=mobile&sort=-created_at").json()["data"]
    assert [row["name"] for row in listed] == ["app"]

    script.destroy(changed)
    assert not Team.objects.filter(name="mobile").exists()
    assert not ApiKey.objects.filter(name="app").exists()
    assert not User.objects.get(username="zoe").is_active
    deleted = (Upstream, Route, RouteTarget, Price, Budget, Pause, Webhook, SavedReport)
    assert not any(model.objects.exists() for model in deleted)
    recorded = AuditEntry.objects.filter(key="ops/terraform").values_list("model", "action")
    for model in ("upstream", "team", "user", "key", "route", "price", "budget", "pause"):
        assert (model, "add") in recorded
    for model in ("upstream", "team", "user", "key", "route", "budget", "pause"):
        assert {(model, "change"), (model, "delete"), (model, "revoke")} & set(recorded)


def test_a_key_is_deleted_after_its_revocation_unless_it_was_used(send):
    spare, used = (factories.key(name, of="mobile")[0] for name in ("spare", "used"))
    ApiKey.objects.filter(pk=used.pk).update(last_used=now())
    spare.rotate(timedelta(days=1))  # the old secret becomes a key of its own

    def delete(path):
        response = send("DELETE", path)
        assert response.status_code in {200, 204, 409}
        return response.json()["error"]["message"] if response.status_code == 409 else ""

    assert "the keys spare, " in delete("teams/mobile/")
    for key in (spare, used):
        delete(f"keys/apikey_{key.pk}/")
        delete(f"keys/apikey_{key.pk}/")
    assert [key.name for key in ApiKey.objects.filter(team__name="mobile")] == ["used"]
    assert "stays because requests are recorded with the key used" in delete("teams/mobile/")
    ApiKey.objects.filter(pk=used.pk).update(last_used=None)
    assert not delete("teams/mobile/")
    assert not Team.objects.filter(name="mobile").exists()


def test_a_repeated_write_gets_the_first_response(send):
    factories.team()
    body = {"team": "platform", "name": "ci"}

    first, second = (send("POST", "keys/", body, **{"idempotency-key": "k1"}) for _ in range(2))
    other = send("POST", "keys/", body | {"name": "cd"}, **{"idempotency-key": "k1"})
    long = send("POST", "keys/", body | {"name": "cd"}, **{"idempotency-key": "k" * 256})

    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() == second.json()
    assert second["Idempotent-Replayed"] == "true"
    assert (other.status_code, long.status_code) == (400, 400)
    assert ApiKey.objects.filter(team__name="platform").count() == 1
    assert first.json()["secret"] not in IdempotentWrite.objects.get().response


def test_a_refused_write_can_be_sent_again(send):
    body = {"team": "platform", "name": "ci"}

    refused = send("POST", "keys/", body, **{"idempotency-key": "k1"})
    factories.team()
    accepted = send("POST", "keys/", body, **{"idempotency-key": "k1"})

    assert (refused.status_code, accepted.status_code) == (400, 201)


@pytest.mark.parametrize(
    ("age", "response", "status"),
    [
        (timedelta(minutes=59), "", 409),  # it may still run
        (timedelta(minutes=61), "", 201),  # its process was killed
        (timedelta(hours=23), "kept", 201),
        (timedelta(hours=25), "kept", 400),  # it is done again, and the name is taken
    ],
)
def test_an_idempotency_key_expires(send, age, response, status):
    body = {"name": "mobile"}
    assert send("POST", "teams/", body, **{"idempotency-key": "k1"}).status_code == 201
    stored = IdempotentWrite.objects.get()
    kept = stored.response if response else ""
    IdempotentWrite.objects.update(response=kept, created=now() - age)
    if not response:
        Team.objects.filter(name="mobile").delete()

    assert send("POST", "teams/", body, **{"idempotency-key": "k1"}).status_code == status


def test_expired_idempotency_keys_are_purged():
    for hours in (23, 25):
        IdempotentWrite.objects.create(
            owner=1, name=str(hours), digest=b"", created=now() - timedelta(hours=hours)
        )

    start_if_due(now(), hour=0)

    assert [row.name for row in IdempotentWrite.objects.all()] == ["23"]


@pytest.mark.parametrize(
    "rows",
    [{"owner": 1, "name": "k1"}, {"created__lt": now()}],
    ids=["look-up", "purge"],
)
def test_idempotency_keys_are_found_by_an_index(rows):
    plan = IdempotentWrite.objects.filter(**rows).explain()

    assert "USING INDEX" in plan
    assert "SCAN" not in plan


@pytest.mark.parametrize("path", ["keys/?sort=secret", "keys/?page=page_abc", "budgets/?key_id=x",
                                  "models/?colour=red"])  # fmt: skip
def test_wrong_list_parameters_are_named(send, path):
    response = send("GET", path)

    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(path.split("?")[1].split("=")[0])


def test_a_budget_of_some_models_counts_only_their_cost(send):
    team = Team.objects.create(name="research")
    for model, cost in (("claude-opus-5", 7), ("claude-haiku-5", 11)):
        UsageQuarterHour.objects.create(
            id=model.encode(), start=now(), team=team.ledger_id, model_requested=model,
            cost_nanousd=cost * 10**9, unpriced=cost,
        )  # fmt: skip
    body = {"team": "research", "limit_usd": "10", "models_covered": ["*-opus-*"]}

    created = send("POST", "budgets/", body)
    refused = send("POST", "budgets/", {**body, "models_covered": ["a"] * 101})
    changed = send("PATCH", f"budgets/{created.json()['id']}/", {"models_covered": []})

    assert (created.status_code, refused.status_code) == (201, 400)
    seen = [
        [one.json()[name] for name in ("models_covered", "spent_usd", "unpriced_requests", "state")]
        for one in (created, changed)
    ]
    assert seen == [[["*-opus-*"], "7", 7, "ok"], [[], "18", 18, "over"]]


def test_a_sorted_list_has_pages(send):
    names = [f"t{number}" for number in range(5)]
    for name in names:
        Team.objects.create(name=name)
    found, page = [], ""
    while page is not None:
        body = send("GET", f"teams/?sort=-name&limit=2&page={page}").json()
        found += [row["name"] for row in body["data"]]
        page = body["next_page"]

    assert found == sorted([*names, "ops"], reverse=True)


def test_the_index_links_every_list(send):
    index = send("GET", "").json()

    assert {"usage", "requests", "schema", *(kind for kind, *_ in DESIRED)} <= set(index)
    lists = [index[kind].partition("/api/v1/")[2] for kind, *_ in DESIRED]
    assert [send("GET", one).status_code for one in lists] == [200] * len(lists)
    assert all(one.endswith("/") for one in lists)


@pytest.mark.parametrize("scope", ["admin", "config:write"])
def test_a_key_cannot_become_the_key_of_a_superuser(scope):
    """Such a key could set the URLs to which credentials are sent."""
    factories.superuser()
    own, secret = factories.key("bot", scopes=[scope])
    other, _ = factories.key("other", scopes=["admin"])

    for key in (own, other):
        path, text = f"/api/v1/keys/apikey_{key.pk}/", json.dumps({"user": "root"})
        answer = ServedClient().generic(
            "PATCH", path, text, "application/json", headers={"x-api-key": secret}
        )
        assert answer.status_code in {400, 403}, answer.content
        key.refresh_from_db()
        assert key.user is None
