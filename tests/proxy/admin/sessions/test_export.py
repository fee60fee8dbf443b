"""Exports of a session: Claude Code's JSONL format, and Markdown."""

import json
import uuid

import pytest

from proxy.ledger.transcripts import storage
from tests.proxy.admin import factories
from tests.proxy.admin.session_factories import SESSION, ConversationBuilder, text, user

pytestmark = pytest.mark.django_db


def lines_of(client):
    answer = client.get(f"/admin/sessions/export/?id={SESSION}&format=jsonl")
    assert answer["Content-Disposition"] == f'attachment; filename="{SESSION}.jsonl"'
    return [json.loads(line) for line in answer.content.decode().splitlines()]


def test_jsonl_is_a_chain_of_messages_in_the_format_of_claude_code(root, rows):
    lines = lines_of(root)

    known = {line["uuid"] for line in lines}
    assert len(known) == len(lines)
    assert all(uuid.UUID(each) for each in known)
    assert all(line["parentUuid"] in known | {None} for line in lines)
    assert {line["sessionId"] for line in lines} == {SESSION}
    assert {line["type"] for line in lines} == {"user", "assistant"}
    assert {line["message"]["role"] for line in lines} == {"user", "assistant"}
    assert [line["isSidechain"] for line in lines].count(True) == 4
    answers = [line for line in lines if line["type"] == "assistant"]
    assert len(answers) == 12
    assert all(line["requestId"].startswith("req_") for line in answers)
    assert lines[0]["timestamp"] == "2026-11-20T12:00:03Z"


def test_the_chain_of_the_last_answer_is_the_whole_conversation(root, rows):
    lines = {line["uuid"]: line for line in lines_of(root)}
    line = list(lines.values())[-1]
    chain = []
    while line is not None:
        chain.append(line["message"])
        line = lines.get(line["parentUuid"])

    stored = storage.read(rows[-1].pk)
    assert [message["role"] for message in chain[::-1]][:-1] == [
        message["role"] for message in stored.request["messages"]
    ]


def test_the_same_session_exported_twice_is_the_same_file(root, rows):
    assert lines_of(root) == lines_of(root)


def test_text_cannot_leave_its_markdown_fence(root):
    conversation = ConversationBuilder(factories.NOON)
    conversation.add_request(user("```\n# not a heading\n```\n````"), answer=[text("plain")])
    factories.write_to_database(conversation.records)

    answer = root.get(f"/admin/sessions/export/?id={SESSION}&format=markdown")

    document = answer.content.decode()
    assert document.count("`````") == 2
    assert answer["Content-Disposition"].endswith('.md"')
    assert "sandbox" in answer["Content-Security-Policy"]


def test_an_export_is_logged_and_offered_only_to_those_who_may_export(client, rows):
    client.force_login(factories.staff("rita", "view_exchange", "view_transcript"))
    text = client.get(f"/admin/sessions/one/?id={SESSION}").content.decode()
    assert "Claude Code JSONL" not in text

    client.force_login(factories.staff("aida", groups=("auditor",)))
    assert client.get(f"/admin/sessions/export/?id={SESSION}&format=markdown").status_code == 200
    (entry,) = factories.audit()
    assert (entry.action, entry.detail) == ("export", f"session {SESSION} as markdown")
