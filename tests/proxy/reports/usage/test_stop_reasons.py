"""GET /api/v1/stop_reasons/: the sums, their dimensions, permissions, pages and CSV."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from proxy.ledger.maintenance.verifier import verify_sums
from proxy.ledger.posting import rollups
from proxy.ledger.posting.rollups import MAX_TOOLS
from proxy.models import ApiKey, Exchange, StopReasonDay, UsageByToolDay
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db
MIDNIGHT = factories.NOON.replace(hour=0)


def stopped(
    key: ApiKey,
    reason: str,
    *tools: str,
    n: int = 0,
    day: datetime = factories.NOON,
    **opening: Any,
) -> None:
    """Record a request whose answer calls these tools and ends for this reason."""
    calls = [
        {"type": "tool_use", "id": f"t{at}", "name": tool, "input": {}}
        for at, tool in enumerate(tools)
    ]
    factories.record(
        at=day + timedelta(seconds=n),
        key=key,
        team=key.team.name,
        body=factories.request_body(model=opening.pop("model", "claude-opus-5-5")),
        answer=factories.answer_body(*calls),
        opening=opening,
        closing={"stop_reason": reason},
    )


@pytest.fixture
def company() -> None:
    ci, _ = factories.key("ci")
    lab, _ = factories.key("lab", of="research")
    stopped(ci, "tool_use", "Bash", "Edit", user="ben")
    stopped(ci, "tool_use", "Bash", n=1, client_version="2.1.400", user="ben")
    stopped(ci, "max_tokens", "Bash", n=2, client_version="2.1.400")
    stopped(ci, "end_turn", n=3, model="claude-sonnet-5")
    stopped(lab, "refusal", n=4, user="cleo")


@pytest.fixture
def read(client):
    def read(secret: str, **query: Any) -> Any:
        query = {"from": "2026-11-20", "to": "2026-11-21", **query}
        return client.get("/api/v1/stop_reasons/", query, headers={"x-api-key": secret})

    return read


def lines(response: Any, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in columns) for row in response.json()["data"]]


@pytest.fixture
def admin_key() -> str:
    return factories.key("finance", scopes=["admin"])[1]


@pytest.mark.usefixtures("company")
def test_each_request_is_counted_once_by_model(read, admin_key) -> None:
    found = read(admin_key)

    assert lines(found, "model", "stop_reason", "requests", "share") == [
        ("claude-opus-5-5", "tool_use", 2, 0.5),
        ("claude-opus-5-5", "max_tokens", 1, 0.25),
        ("claude-opus-5-5", "refusal", 1, 0.25),
        ("claude-sonnet-5", "end_turn", 1, 1.0),
    ]
    assert found.json()["tz"] == "UTC"


@pytest.mark.usefixtures("company")
def test_by_tool_a_request_is_counted_at_each_tool_that_its_answer_calls(read, admin_key) -> None:
    found = read(admin_key, group_by="tool")

    assert lines(found, "tool", "stop_reason", "requests") == [
        (None, "end_turn", 1),
        (None, "refusal", 1),
        ("Bash", "tool_use", 2),
        ("Bash", "max_tokens", 1),
        ("Edit", "tool_use", 1),
    ]
    of_edit = read(admin_key, group_by="client_version", tool="Edit")
    assert lines(of_edit, "client_version", "requests") == [("2.1.329", 1)]


@pytest.mark.usefixtures("company")
def test_client_versions_and_filters(read, admin_key) -> None:
    found = read(admin_key, group_by="client,client_version", user="ben")

    assert lines(found, "client", "client_version", "stop_reason", "requests") == [
        ("claude-cli", "2.1.329", "tool_use", 1),
        ("claude-cli", "2.1.400", "tool_use", 1),
    ]


@pytest.mark.usefixtures("company")
def test_a_team_sees_its_own_requests_and_a_plain_key_its_own(read) -> None:
    team = read(factories.key("dash", scopes=["reports"])[1], group_by="team")
    own = read(factories.key("other")[1], group_by="team")

    assert {row[0] for row in lines(team, "team")} == {"platform"}
    assert lines(own, "team") == []


@pytest.mark.usefixtures("company")
def test_pages_and_csv_have_the_same_rows(read, admin_key) -> None:
    first = read(admin_key, group_by="tool", limit=3).json()
    rest = read(admin_key, group_by="tool", limit=3, page=first["next_page"]).json()
    text = read(admin_key, group_by="tool", format="csv").content.decode()

    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert [len(first["data"]), len(rest["data"])] == [3, 2]
    assert text.splitlines()[0] == "tool,stop_reason,requests,share"
    assert len(text.splitlines()) == 6


@pytest.mark.parametrize("query", [{"group_by": "key"}, {"group_by": "tool,team,user,day,model"}])
def test_unknown_and_too_many_dimensions_are_rejected(read, admin_key, query) -> None:
    assert read(admin_key, **query).status_code == 400


@pytest.mark.usefixtures("company")
def test_subtracting_the_rows_leaves_nothing() -> None:
    rollups.add(Exchange.objects.all(), -1)

    sums = StopReasonDay.objects.values_list("requests", "requests_with_tool")
    assert set(sums) == {(0, 0)}


@pytest.mark.usefixtures("company")
@pytest.mark.parametrize(
    ("table", "column"),
    [
        (StopReasonDay, "requests"),
        (StopReasonDay, "requests_with_tool"),
        (UsageByToolDay, "requests"),
    ],
)
def test_the_verification_finds_a_changed_sum(table, column) -> None:
    assert verify_sums(MIDNIGHT, MIDNIGHT + timedelta(days=1)) == []
    table.objects.filter(tool="Edit").update(**{column: 7})

    (finding,) = verify_sums(MIDNIGHT, MIDNIGHT + timedelta(days=1))

    assert finding.where == f"{table.__name__} 2026-11-20"
    assert f": {column} is 7, by its ledger rows it is " in finding.why


def test_the_tools_of_one_answer_are_limited(read, admin_key) -> None:
    ci, _ = factories.key("ci")
    stopped(ci, "tool_use", *(f"tool-{n:03d}-{'x' * 300}" for n in range(MAX_TOOLS + 20)))

    assert StopReasonDay.objects.count() == MAX_TOOLS
    assert {len(row[0]) for row in lines(read(admin_key, group_by="tool"), "tool")} == {200}
    assert verify_sums(MIDNIGHT, MIDNIGHT + timedelta(days=1)) == []
