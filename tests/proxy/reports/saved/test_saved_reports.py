"""Saved reports: own and of a team, run by name with the rows of the caller."""

import csv
import io
import json

import pytest

from proxy.models import AuditEntry, SavedReport
from proxy.permissions.roles import OWNER
from tests.fakes.servers.served_client import ServedClient
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db
QUERY = {"from": "2026-11-20", "to": "2026-11-21", "group_by": ["team", "model"]}
DAILY = {"name": "daily", "report": "usage", "query": QUERY}


@pytest.fixture
def ledger():
    factories.price()
    factories.team("platform")
    factories.record(team="platform")
    factories.record(team="research")


def caller(user=None, key=""):
    """Return a function that sends requests as this user or with this key."""
    client = ServedClient()
    if user is not None:
        client.force_login(user)

    def send(method, route, body=None, **query):
        text = "" if body is None else json.dumps(body)
        path = f"/api/v1/{route}/" + (
            "?" + "&".join(f"{k}={v}" for k, v in query.items()) if query else ""
        )
        headers = {"x-api-key": key} if key else {}
        return client.generic(method, path, text, "application/json", headers=headers)

    return send


@pytest.fixture
def otto():
    return caller(factories.staff("otto", groups=(OWNER,)))


@pytest.fixture
def ada():
    return caller(factories.staff("ada", groups=(OWNER, "team:platform")))


def test_an_own_report_is_created_run_changed_and_deleted(ledger, otto):
    created = otto("POST", "reports", DAILY)
    owner = {"id": "otto", "email": "otto@example.com"}
    assert (created.status_code, created.json()["user"]) == (201, owner)

    result = otto("GET", "reports/daily/run").json()
    assert {row["team"] for row in result["data"]} == {"platform", "research"}
    assert result["totals"]["requests"] == 2

    file = otto("GET", "reports/daily/run", format="csv")
    rows = list(csv.DictReader(io.StringIO(file.content.decode())))
    assert [row["requests"] for row in rows] == ["1", "1"]
    assert "usage as csv: from=2026-11-20" in AuditEntry.objects.latest("pk").detail

    other = otto("GET", "reports/daily/run", month="2026-10").json()
    assert (other["from"], other["totals"]["requests"]) == ("2026-10-01T00:00:00Z", 0)
    assert otto("PATCH", "reports/daily", {"query": {"month": "last"}}).status_code == 200
    assert otto("GET", "reports/daily/run").json()["bucket"] == "1d"
    assert otto("DELETE", "reports/daily").status_code == 204
    assert [entry.action for entry in factories.audit(object_name="daily")] == [
        "add", "change", "delete",
    ]  # fmt: skip


def test_an_own_report_is_invisible_to_others(otto, ada):
    otto("POST", "reports", DAILY)
    root = caller(factories.superuser())

    for send in (ada, root):
        assert send("GET", "reports").json()["data"] == []
        assert send("GET", "reports/daily/run").status_code == 404
        assert send("DELETE", "reports/daily").status_code == 404


def test_a_team_report_is_run_by_the_team_with_the_rows_of_each_caller(ledger, ada):
    assert ada("POST", "reports", {**DAILY, "team": "platform"}).status_code == 201
    root = caller(factories.superuser())
    key = caller(key=factories.key("bot", scopes=["reports"])[1])
    foreign = caller(key=factories.key("bot", of="research", scopes=["reports"])[1])

    teams = [{row["team"] for row in send("GET", "reports/daily/run").json()["data"]}
             for send in (ada, key, root)]  # fmt: skip

    assert teams == [{"platform"}, {"platform"}, {"platform", "research"}]
    assert foreign("GET", "reports/daily/run").status_code == 404
    assert key("DELETE", "reports/daily").status_code == 403
    assert caller(key=factories.key("ci")[1])("GET", "reports").status_code == 403
    assert SavedReport.objects.count() == 1


def test_a_lead_saves_no_report_for_a_foreign_team(ada):
    factories.team("research")

    assert ada("POST", "reports", {**DAILY, "team": "research"}).status_code == 400
    assert not SavedReport.objects.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"report": "salaries"}, "known: usage"),
        ({"query": {"grup_by": "team"}}, "grup_by: unknown parameter; did you mean 'group_by'?"),
        ({"query": {"group_by": ["planet"]}}, "group_by"),
        ({"query": {"month": "2026-13"}}, "month: '2026-13' is not a month"),
        ({"query": {"page": "x"}}, "page: a saved report starts with its first page"),
        ({"query": {"model": ["m" * 200] * 40}}, "at most 4000 characters"),
        ({"query": []}, "query"),
        ({"name": "a b"}, "name"),
        ({"name": "x/../y"}, "name"),
    ],
)
def test_an_invalid_report_is_refused(otto, changes, message):
    response = otto("POST", "reports", {**DAILY, **changes})

    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
    assert not SavedReport.objects.exists()


@pytest.mark.parametrize(
    "report",
    ["summary", "timeseries", "latency", "errors", "cache", "comparison", "outcomes", "requests",
     "sessions"],
)  # fmt: skip
def test_each_report_can_be_saved_and_run(ledger, otto, report):
    query = {"metric": "cost"} if report == "timeseries" else {}
    created = otto("POST", "reports", {"name": "one", "report": report, "query": query})

    assert created.status_code == 201, created.content
    assert otto("GET", "reports/one/run").status_code == 200
