"""Outcomes are counted once, whatever clients resend, and hostile calls leave the ledger intact."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from ulid import ULID

from proxy.ledger.maintenance import retention
from proxy.ledger.posting.ledger_writer import write_to_database
from proxy.models import CountedToolCall, Exchange, SessionOutcomeDay, UsageBySessionDay
from tests.proxy.admin import factories
from tests.proxy.admin.session_factories import call, result, user

from .agent_session import REJECTED, AgentSession

pytestmark = pytest.mark.django_db
EDIT = {"file_path": "/src/maps/a.py", "old_string": "a\nb", "new_string": "a\nc\nd"}


def send(*messages: dict[str, Any], at: timedelta = timedelta(0), **fields: Any) -> Exchange:
    opening = {"session_id": "s1", **fields.pop("opening", {})}
    body = factories.request_body(messages=list(messages), **fields.pop("body", {}))
    return factories.record(at=factories.NOON + at, body=body, opening=opening, **fields)


def turn(ident: str, name: str, text: Any, *, is_error: bool = False, **tool_input: Any) -> list:
    error = {"is_error": True} if is_error else {}
    calls = {"role": "assistant", "content": [call(ident, name, **tool_input)]}
    return [calls, user(result(ident, text, **error))]


def one_call(name: str, text: Any, *, is_error: bool = False, **tool_input: Any) -> dict[str, int]:
    """Return the counts that are not 0 after one request with this call."""
    send(user("Go."), *turn("toolu_0123456789", name, text, is_error=is_error, **tool_input))
    return counts()


def counts() -> dict[str, int]:
    row = SessionOutcomeDay.objects.values().get()
    own = ("usage_id", "team", "start", "repository", "branch", "requests_read", "tool_results")
    return {name: count for name, count in row.items() if count and name not in own}


def test_a_call_that_is_resent_in_each_turn_counts_once() -> None:
    first = [user("Go."), *turn("toolu_0123456789", "Edit", "updated", **EDIT)]
    second = [*first, *turn("toolu_0123456790", "Bash", "ok", command="ls")]

    send(user("Go."))
    send(*first, at=timedelta(seconds=1))
    send(*second, at=timedelta(seconds=2))
    send(*second, user("Go on."), at=timedelta(seconds=3))

    assert counts() == {
        "edit_accepted": 1, "files_edited": 1, "lines_added": 2, "lines_removed": 1,
        "commands_run": 1,
    }  # fmt: skip
    assert SessionOutcomeDay.objects.get().requests_read == 4


def test_the_same_records_again_and_a_retry_change_nothing() -> None:
    messages = [user("Go."), *turn("toolu_0123456789", "Edit", "updated", **EDIT)]
    records = factories.exchange_records(
        body=factories.request_body(messages=messages), opening={"session_id": "s1"}
    )
    write_to_database([records])
    before = list(SessionOutcomeDay.objects.values())

    write_to_database([records])

    assert list(SessionOutcomeDay.objects.values()) == before
    send(*messages, at=timedelta(seconds=1))  # a retry is another request with the same body
    assert counts()["edit_accepted"] == 1


def test_an_open_row_is_counted_before_its_close_record_arrives() -> None:
    messages = [user("Go."), *turn("toolu_0123456789", "Edit", "updated", **EDIT)]
    opening = {"id": f"req_{ULID()}", "session_id": "s1"}
    fields = {"body": factories.request_body(messages=messages), "opening": opening}

    write_to_database([factories.exchange_records(**fields, closed=False)])
    write_to_database([factories.exchange_records(**fields)])

    assert counts()["edit_accepted"] == 1
    assert SessionOutcomeDay.objects.get().usage == UsageBySessionDay.objects.get()


def test_a_resumed_session_with_another_id_does_not_count_the_history_again() -> None:
    messages = [user("Go."), *turn("toolu_0123456789", "Edit", "updated", **EDIT)]
    send(*messages)

    send(*messages, user("Resume."), at=timedelta(days=1), opening={"session_id": "s2"})

    rows = SessionOutcomeDay.objects.order_by("start")
    assert [row.edit_accepted for row in rows] == [1, 0]


def test_another_team_cannot_prevent_the_count_and_short_ids_are_of_their_session() -> None:
    messages = [user("Go."), *turn("call_1", "Edit", "updated", **EDIT)]
    send(*messages)

    send(*messages, opening={"session_id": "s2"}, at=timedelta(seconds=1))
    send(*messages, team="research", at=timedelta(seconds=2))

    assert [row.edit_accepted for row in SessionOutcomeDay.objects.all()] == [1, 1, 1]


def test_a_team_that_stores_metadata_only_has_no_figures() -> None:
    send(user("Go."), *turn("toolu_0123456789", "Edit", "updated", **EDIT), with_content=False)

    row = SessionOutcomeDay.objects.get()
    assert (row.requests_read, row.requests_unread, row.edit_accepted) == (0, 1, 0)


def test_repository_and_branch_come_from_the_prompt(tmp_path: Path) -> None:
    session = AgentSession(tmp_path / "maps")
    session.request()

    row = SessionOutcomeDay.objects.get()
    assert (row.repository, row.branch) == ("maps", "feature/tiles")
    factories.record(
        opening={"session_id": session.session_id}
    )  # a request beside the conversation, without its prompt
    row.refresh_from_db()
    assert (row.repository, row.branch) == ("maps", "feature/tiles")


@pytest.mark.parametrize(
    ("name", "tool_input", "expected"),
    [
        ("str_replace_based_edit_tool", {"command": "create", "path": "a", "file_text": "1\n2\n"},
         {"write_accepted": 1, "edits_without_lines": 1, "files_edited": 1}),
        ("str_replace_based_edit_tool",
         {"command": "str_replace", "path": "a", "old_str": "x", "new_str": "y"},
         {"edit_accepted": 1, "lines_added": 1, "lines_removed": 1, "files_edited": 1}),
        ("str_replace_based_edit_tool", {"command": "view", "path": "a"}, {}),
        ("apply_patch", {"input": "*** Begin Patch\n*** Update File: a.py\n@@\n-x\n+y\n+z\n*** End Patch"},
         {"edit_accepted": 1, "lines_added": 2, "lines_removed": 1, "files_edited": 1}),
        ("replace_in_file", {"path": "a", "diff": "<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE"},
         {"edit_accepted": 1, "lines_added": 1, "lines_removed": 1, "files_edited": 1}),
        ("edit", {"filePath": "a", "oldString": "x", "newString": "x\ny"},
         {"edit_accepted": 1, "lines_added": 1, "files_edited": 1}),
        ("NotebookEdit", {"notebook_path": "n", "new_source": "1\n2", "edit_mode": "insert"},
         {"notebook_edit_accepted": 1, "lines_added": 2, "files_edited": 1}),
        ("NotebookEdit", {"notebook_path": "n", "new_source": "1"},
         {"notebook_edit_accepted": 1, "edits_without_lines": 1, "files_edited": 1}),
        ("Read", {"file_path": "a"}, {}),
    ],
)  # fmt: skip
def test_the_edit_tools_of_agents(name: str, tool_input: dict, expected: dict[str, int]) -> None:
    assert one_call(name, "done", **tool_input) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (REJECTED, {"edit_rejected": 1}),
        ([{"type": "text", "text": REJECTED}], {"edit_rejected": 1}),
        ("Error: The user rejected permission to use this tool.", {"edit_rejected": 1}),
        ("<tool_use_error>String to replace not found</tool_use_error>", {"edit_failed": 1}),
        (None, {"edit_failed": 1}),
    ],
)
def test_a_refused_edit_is_not_a_failed_one(text: Any, expected: dict[str, int]) -> None:
    assert one_call("Edit", text, is_error=True, **EDIT) == expected


COMMITTED = "[main 1a2b3c4] One\n 2 files changed, 5 insertions(+), 1 deletion(-)"


@pytest.mark.parametrize(
    ("script", "output", "is_error", "expected"),
    [
        ("git commit -am One && git push", f"Exit code 1\n{COMMITTED}\nerror: failed to push", True,
         {"commands_failed": 1, "commits_reported": 1, "commit_lines_added": 5, "commit_lines_removed": 1}),
        ("cd /src && git -C maps commit -qm 'a; b'", "", False,
         {"commits_derived": 1, "commits_without_lines": 1}),
        ("git commit -m x", "On branch main\nnothing to commit, working tree clean", True,
         {"commands_failed": 1}),
        ("git commit --amend --no-edit", COMMITTED, False, {}),
        ("git log --grep commit; echo git commit", COMMITTED, False, {}),
        ("gh pr create --fill", "https://github.com/acme/maps/pull/7", False, {"pull_requests": 1}),
        ("gh pr create --fill", "pull request create failed", True, {"commands_failed": 1}),
        ("glab mr create -y", "!3 https://gitlab.com/acme/maps/-/merge_requests/3", False,
         {"pull_requests": 1}),
        (".venv/bin/python -m pytest -q tests | tail -3", "2 failed, 7 passed in 0.1s", False,
         {"test_runs": 1, "test_runs_failed": 1}),
        ("CI=1 npm run test:unit && npx vitest run", "ok", False,
         {"test_runs": 2, "test_runs_passed": 2}),
        ("pytest --collect-only", "9 tests collected", False, {}),
        ("it's broken && go test ./...", "ok", False, {"test_runs": 1, "test_runs_passed": 1}),
    ],
)  # fmt: skip
def test_tests_commits_and_pull_requests_of_a_script(
    script: str, output: str, is_error: bool, expected: dict[str, int]
) -> None:
    found = one_call("Bash", output, is_error=is_error, command=script)

    assert found == {"commands_run": 1, **expected}


def test_a_script_in_the_background_has_no_result_yet() -> None:
    found = one_call("Bash", "started", command="pytest", run_in_background=True)

    assert found == {"commands_run": 1, "test_runs": 1}


HOSTILE = [
    {"content": [{"type": "tool_use", "id": "toolu_0123456789", "name": "Edit", "input": [1]}]},
    {"content": [call("toolu_0123456789", "Edit", file_path=7, old_string=None, new_string={})]},
    {"content": [call("toolu_0123456789", "MultiEdit", edits=[1, None, {"old_string": 3}])]},
    {"content": [call("toolu_0123456789", "Bash", command={"a": ["b"]})]},
    {"content": [call("toolu_0123456789", "Bash", command="(" * 30_000 + "git 'test")]},
    {"content": [call("toolu_0123456789", "apply_patch", input="*** Add File: \0\n+\n" * 900)]},
    {"content": [call("toolu_0123456789", "Edit", old_string="a\nb\n" * 9_000, new_string="b\nc\na\n" * 9_000)]},
    {"content": [{"type": "tool_use", "id": ["x"], "name": None}]},
]  # fmt: skip


@pytest.mark.parametrize("message", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_tool_call_does_not_stop_the_ledger(message: dict[str, Any]) -> None:
    system = "Working directory: /\0\nCurrent branch: " + "b" * 5000
    body = factories.request_body(
        system=system,
        messages=[{"role": "assistant", **message}, user(result("toolu_0123456789", [7, None]))],
    )

    factories.record(body=json.loads(json.dumps(body)), opening={"session_id": "s1"})

    assert Exchange.objects.count() == 1
    assert SessionOutcomeDay.objects.get().requests_read == 1


def test_a_body_that_is_no_valid_text_is_unread() -> None:
    send(user("\ud800"), *turn("toolu_0123456789", "Edit", "updated", **EDIT))

    row = SessionOutcomeDay.objects.get()
    assert (row.requests_read, row.requests_unread, row.edit_accepted) == (0, 1, 0)


def test_outcomes_are_deleted_when_the_retention_of_their_team_ends() -> None:
    factories.team("platform", retention_days=30)
    messages = [user("Go."), *turn("toolu_0123456789", "Edit", "updated", **EDIT)]
    send(*messages)

    assert sum(retention.prune_outcomes(factories.NOON + timedelta(days=29))) == 0
    assert sum(retention.prune_outcomes(factories.NOON + timedelta(days=32))) == 3

    assert not SessionOutcomeDay.objects.exists()
    assert not CountedToolCall.objects.exists()
    assert UsageBySessionDay.objects.exists()
