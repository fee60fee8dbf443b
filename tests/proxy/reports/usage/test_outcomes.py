"""GET /api/v1/outcomes/: figures, their sources, permissions, pages and CSV."""

from datetime import timedelta
from typing import Any

import pytest

from proxy.models import ApiKey
from tests.proxy.admin import factories
from tests.proxy.admin.session_factories import call, result, user
from tests.proxy.ledger.outcomes.agent_session import REJECTED

pytestmark = pytest.mark.django_db
COMMITTED = "[main 1a2b3c4] One\n 1 file changed, 3 insertions(+), 1 deletion(-)"
SYSTEM = "<env>\nWorking directory: /home/ben/maps\nIs directory a git repo: Yes\n</env>\nCurrent branch: main\n"


def work(key: ApiKey, session: str, *, of: str = "platform", days: int = 0, **fields: Any) -> None:
    """Record one session: an edit, a rejected write, a commit, and a passed test run."""
    calls = [
        ("Edit", "updated", {"file_path": "/a.py", "old_string": "a", "new_string": "a\nb\n"}),
        ("Write", REJECTED, {"file_path": "/b.py", "content": "1\n"}),
        ("Bash", COMMITTED, {"command": "git commit -am One"}),
        ("Bash", "5 passed", {"command": "pytest"}),
    ]
    ids = [f"toolu_{session}_{number:09d}" for number in range(len(calls))]
    uses = [call(ident, name, **given) for ident, (name, _, given) in zip(ids, calls, strict=True)]
    results = [
        result(ident, text, **({"is_error": True} if text == REJECTED else {}))
        for ident, (_, text, _) in zip(ids, calls, strict=True)
    ]
    messages = [user("Go."), {"role": "assistant", "content": uses}, user(*results)]
    factories.record(
        at=factories.NOON + timedelta(days=days), team=of, key=key,
        body=factories.request_body(system=SYSTEM, messages=messages),
        opening={"session_id": session, "user": fields.pop("user", "")}, **fields,
    )  # fmt: skip


@pytest.fixture
def read(client):
    def read(secret: str, **query: Any) -> Any:
        query = {"from": "2026-11-20", "to": "2026-11-23", **query}
        return client.get("/api/v1/outcomes/", query, headers={"x-api-key": secret})

    return read


@pytest.fixture
def admin_key() -> str:
    return factories.key("finance", scopes=["admin"])[1]


def test_a_row_has_each_figure_with_its_source_and_the_cost_of_a_commit(read, admin_key) -> None:
    factories.price()
    ci, _ = factories.key("ci")
    work(ci, "s1", user="ben")
    work(ci, "s2", user="ben", days=1)

    (row,) = read(admin_key, group_by="user").json()["data"]

    assert row["user"] == "ben"
    assert (row["sessions"], row["requests"], row["requests_read"]) == (2, 2, 2)
    assert (row["edits_accepted"], row["edits_rejected"], row["write_rejected"]) == (2, 2, 2)
    assert (row["files_edited"], row["lines_added"], row["lines_removed"]) == (2, 4, 0)
    assert (row["commands_run"], row["test_runs"], row["test_runs_passed"]) == (4, 2, 2)
    assert (row["commits"], row["commit_lines_added"], row["commit_lines_removed"]) == (2, 6, 2)
    assert float(row["cost_per_commit_usd"]) == float(row["cost_usd"]) / 2 > 0
    assert row["sources"]["commits"] == "reported"
    assert row["sources"]["lines_added"] == "derived"
    assert row["is_partial"] is False


def test_figures_of_transcripts_that_are_not_stored_are_null(read, admin_key) -> None:
    ci, _ = factories.key("ci")
    work(ci, "s1", with_content=False)

    (row,) = read(admin_key).json()["data"]

    assert (row["requests"], row["requests_read"], row["is_partial"]) == (1, 0, True)
    assert {row[name] for name in row["sources"]} == {None}
    assert set(row["sources"].values()) == {"missing"}


def test_edits_whose_lines_are_all_unknown_have_no_lines(read, admin_key) -> None:
    turn = [
        user("Go."),
        {"role": "assistant", "content": [call("toolu_0123456789", "Write", content="1\n")]},
        user(result("toolu_0123456789", "The file has been updated.")),
    ]
    factories.record(body=factories.request_body(messages=turn))

    (row,) = read(admin_key).json()["data"]

    assert (row["edits_accepted"], row["edits_without_lines"]) == (1, 1)
    assert (row["lines_added"], row["sources"]["lines_added"]) == (None, "missing")
    assert row["is_partial"] is True


@pytest.mark.parametrize(
    ("group", "values"),
    [
        ("day", ["2026-11-20", "2026-11-21"]),
        ("session", ["s1", "s2"]),
        ("team", ["platform", "research"]),
        ("repository", ["maps"]),
        ("branch", ["main"]),
        ("key", ["ci", "lab"]),
    ],
)
def test_outcomes_by_each_dimension(read, admin_key, group: str, values: list[str]) -> None:
    work(factories.key("ci")[0], "s1")
    work(factories.key("lab", of="research")[0], "s2", of="research", days=1)

    rows = read(admin_key, group_by=group).json()["data"]

    assert [row[group] for row in rows] == values
    assert sum(row["commits"] for row in rows) == 2


def test_filters_select_rows(read, admin_key) -> None:
    work(factories.key("ci")[0], "s1")
    work(factories.key("lab", of="research")[0], "s2", of="research")

    for query in ({"team": "research"}, {"session": "s2"}, {"key": "lab"}):
        (row,) = read(admin_key, group_by="session", **query).json()["data"]
        assert row["session"] == "s2"
    assert read(admin_key, repository="other").json()["data"][0]["requests"] == 0


def test_a_caller_sees_only_the_outcomes_that_it_may_see(read) -> None:
    ben, own = factories.key("ben")
    work(ben, "s1")
    work(factories.key("ci")[0], "s2")
    work(factories.key("lab", of="research")[0], "s3", of="research")
    _, reports = factories.key("dashboard", scopes=["reports"])
    _, foreign = factories.key("cleo", of="research")

    def sessions(secret: str) -> list[str]:
        return [row["session"] for row in read(secret, group_by="session").json()["data"]]

    assert sessions(own) == ["s1"]
    assert sessions(reports) == ["s1", "s2"]
    assert sessions(foreign) == []
    assert read("sk-unknown").status_code == 401


def test_pages_and_csv_have_the_same_rows(read, admin_key) -> None:
    ci, _ = factories.key("ci")
    for number in range(5):
        work(ci, f"s{number}")

    found, page = [], ""
    while True:
        answer = read(admin_key, group_by="session", limit=2, page=page).json()
        found += [row["session"] for row in answer["data"]]
        if not answer["has_more"]:
            break
        page = answer["next_page"]
    csv = b"".join(read(admin_key, group_by="session", format="csv")).decode().splitlines()

    assert found == [f"s{number}" for number in range(5)]
    assert csv[0].startswith("session,sessions,requests,")
    assert "sources.commits" in csv[0]
    assert [line.split(",")[0] for line in csv[1:]] == found


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"group_by": "model"}, "group_by: "),
        ({"group_by": "day,team,user,key,client"}, "at most 4"),
        ({"from": "soon"}, "from: "),
        ({"from": "2024-01-01"}, "more than 400 days"),
        ({"from": "2026-12-01", "to": "2026-11-30"}, "to: "),
        ({"page": "page_LTE"}, "page: "),
        ({"tz": "Europe/Berlin"}, "unknown parameter"),
    ],
)
def test_an_invalid_parameter_is_refused(read, admin_key, query: Any, message: str) -> None:
    answer = read(admin_key, **query)

    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_the_claude_code_report_has_the_outcomes(client, admin_key) -> None:
    work(factories.key("ci")[0], "s1")
    work(factories.key("lab", of="research")[0], "s2", of="research", with_content=False)

    rows = client.get(
        "/v1/organizations/usage_report/claude_code",
        {"starting_at": "2026-11-20"},
        headers={"authorization": f"Bearer {admin_key}"},
    ).json()["data"]

    read, unread = rows
    assert read["core_metrics"] == {
        "num_sessions": 1, "lines_of_code": {"added": 2, "removed": 0},
        "commits_by_claude_code": 1, "pull_requests_by_claude_code": 0,
    }  # fmt: skip
    assert read["tool_actions"]["edit_tool"] == {"accepted": 1, "rejected": 0}
    assert read["tool_actions"]["write_tool"] == {"accepted": 0, "rejected": 1}
    assert unread["core_metrics"]["commits_by_claude_code"] is None
    assert unread["tool_actions"]["notebook_edit_tool"] == {"accepted": None, "rejected": None}
