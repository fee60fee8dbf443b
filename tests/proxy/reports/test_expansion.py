"""``expand``: full objects in place of references, for callers who may read the objects."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from proxy.models import Budget, Route, Upstream
from tests.fakes.openapi import schema
from tests.fakes.servers.served_client import ServedClient
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db

DAY = {"from": "2026-11-20", "to": "2026-11-21"}


@pytest.fixture
def ci():
    """A key of the team platform, with one request, one route and one budget."""
    openai = Upstream.objects.create(name="openai", dialect="responses", base_url="http://vllm/v1")
    ci, _ = factories.key("ci", user=factories.staff("ben"))
    factories.record(key=ci, opening={"session_id": "s1", "user": "ben"})
    Route.objects.create(model="claude-*", team=ci.team).targets.create(upstream=openai)
    Budget.objects.create(key=ci, usd=9)
    return ci


def row_of(response):
    assert response.status_code == 200, response.content
    body = response.json()
    return body["data"][0] if "data" in body else body


def test_an_expanded_object_equals_its_own_path(get_report, ci):
    own = {
        "team": get_report("teams/platform").json(),
        "key": get_report(f"keys/apikey_{ci.pk}").json(),
        "user": get_report("users/ben").json(),
        "upstream": get_report("upstreams/openai").json(),
    }

    for path in ("requests", "sessions"):
        row = row_of(get_report(path, expand="team,key,user", **DAY))
        assert {name: row[name] for name in ("team", "key", "user")} == {
            name: own[name] for name in ("team", "key", "user")
        }
    assert row_of(get_report("requests", expand="upstream", **DAY))["upstream"] == own["upstream"]
    route = row_of(get_report("models", expand="targets.upstream"))
    assert route["targets"][0]["upstream"] == own["upstream"]
    assert route["team"] == {"id": "platform", "name": "platform"}
    budget = row_of(get_report("budgets", expand="key.team"))
    assert budget["key"] == {**own["key"], "team": own["team"]}


def test_one_object_can_be_expanded(get_report, ci):
    request_id = row_of(get_report("requests", **DAY))["id"]

    assert row_of(get_report(f"requests/{request_id}", expand="team"))["team"]["store"] == "full"
    assert row_of(get_report(f"keys/apikey_{ci.pk}", expand="team"))["team"]["store"] == "full"
    session = get_report("sessions/s1", expand="team").json()
    assert session["team"]["store"] == "full"


def test_the_number_of_queries_does_not_depend_on_the_rows(get_report, ci):
    def queries():
        with CaptureQueriesContext(connection) as captured:
            get_report("requests", expand="team,key.team,user", **DAY)
        return len(captured)

    few = queries()
    for number in range(5):
        factories.record(
            key=factories.key(f"k{number}", of=f"team-{number}")[0], team=f"team-{number}"
        )

    assert queries() == few


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"expand": "prompt"}, "is not a valid choice; known: team, key, key.team, user, upstream"),
        ({"expand": "key.team.keys"}, "is not a valid choice"),
        ({"expand": "team", "format": "csv"}, "expand: it is available only with format=json"),
    ],
)
def test_an_unknown_path_or_a_file_is_a_400(get_report, ci, query, message):
    response = get_report("requests", **DAY, **query)

    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


def test_no_path_has_more_than_two_names():
    allowed = {
        path
        for operations in schema()["paths"].values()
        for operation in operations.values()
        for parameter in operation.get("parameters", ())
        if parameter["name"] == "expand"
        for path in parameter["schema"]["items"]["enum"]
    }

    assert {"team", "targets.upstream"} <= allowed
    assert max(path.count(".") for path in allowed) == 1


@pytest.mark.parametrize("scope", ["messages", "reports", "transcripts:read"])
@pytest.mark.parametrize("path", ["team", "key", "user", "upstream"])
def test_a_key_that_may_not_read_an_object_gets_no_expansion(ci, scope, path):
    secret = factories.key("reader", scopes=[scope])[1]

    response = ServedClient().get(
        "/api/v1/requests/", {**DAY, "expand": path}, headers={"x-api-key": secret}
    )

    assert response.status_code == 403
    assert f"expand={path}" in response.json()["error"]["message"]


def test_a_scope_expands_only_what_it_reads(ci):
    """A key with keys:write reads the keys and the team of its own team, but no users."""
    factories.key("lab", of="research", user=factories.staff("cleo"))
    secret = factories.key("rotator", scopes=["keys:write"])[1]

    def keys(expand):
        return ServedClient().get(
            "/api/v1/keys/", {"expand": expand}, headers={"x-api-key": secret}
        )

    assert {row["team"]["id"] for row in keys("team").json()["data"]} == {"platform"}
    assert keys("team").json()["data"][0]["team"]["store"] == "full"
    assert keys("user").status_code == 403


def test_a_deleted_object_stays_a_reference(get_report, ci):
    gone, _ = factories.key("gone", of="former")
    factories.record(key=gone, team="former")
    ident = f"apikey_{gone.pk}"
    gone.delete()

    rows = get_report("requests", expand="key", key="gone", **DAY).json()["data"]

    assert rows[0]["key"] == {"id": ident, "name": "gone"}
