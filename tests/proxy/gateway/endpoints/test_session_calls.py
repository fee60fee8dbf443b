"""What fits into no call id returns to the upstream from the record of the session."""

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from proxy.counters.backends import CALLS_FILE
from proxy.counters.session_calls import ENTRY_LIFETIME_S, MAX_CALL, MAX_CALLS
from proxy.gateway.request import session_calls
from proxy.models import ApiKey, Team
from tests.fakes.outages import unusable
from tests.fakes.upstreams.script_steps import LAST_CHUNK, Script
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import message, row
from tests.proxy.gateway.endpoints.test_reasoning import reasoning_script
from tests.proxy.gateway.http_client import GatewayClient
from tests.proxy.gateway.upstream_scripts import THOUGHT_SIGNATURE, late_signature

TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {}}}
RECORDED = session_calls.RECORDED.reason
USED = "ids, signatures or reasoning of earlier calls come from the session's record"
GONE = "the session's record no longer has the id, signature or reasoning of an earlier call"
LATE = "a thought signature that arrived after the start of its call"


def long_id(length: int) -> str:
    """Return a call id of this length that does not compress to a short one."""
    return "call:" + "".join(f"{n:x}." for n in range(length // 2))[: length - 5]


LONG_ID = long_id(40_000)
"""Clients may not accept such an id as it is."""


def call_script(call_id: str) -> Script:
    """Return a Responses script with one function call."""
    call = {"type": "function_call", "id": "fc", "call_id": call_id, "name": "f", "arguments": "{}"}
    usage = {"input_tokens": 9, "output_tokens": 4}
    ended = {"id": "resp", "model": "m", "status": "completed", "output": [call], "usage": usage}
    event = {"type": "response.completed", "response": ended}
    return upstream_scripts.pieces([upstream_scripts.sse(event, event["type"])], LAST_CHUNK)


def turn(
    gateway: GatewayClient, model: str, history: list[dict[str, Any]], session: str, **headers: str
) -> set[str]:
    """Send one request, add its message and tool results to the history; return its notes."""
    request = message(model, messages=history, tools=[TOOL])
    reply = gateway.post(request, x_claude_code_session_id=session, **headers)
    assert reply.status == 200, reply.body
    content = reply.json["content"]
    calls = [block["id"] for block in content if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": id_, "content": "ok"} for id_ in calls]
    history += [{"role": "assistant", "content": content}]
    history += [{"role": "user", "content": results or "Go on."}]
    return {note["reason"] for note in row(reply.id).notes}


def start(gateway: GatewayClient, model: str, session: str, **headers: str) -> list[dict[str, Any]]:
    """Return the history after the first turn of a session, which must have been recorded."""
    history: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
    assert RECORDED in turn(gateway, model, history, session, **headers)
    return history


def sent_call(scripted: ScriptedUpstream, model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the call and the tool message in the last request that the upstream received."""
    messages = scripted.requests_for(model)[-1].json["messages"]
    (call,) = next(m for m in messages if m["role"] == "assistant")["tool_calls"]
    return call, next(m for m in messages if m["role"] == "tool")


def test_a_late_thought_signature_returns_with_its_call(gateway, scripted):
    scripted.on("chat-late", late_signature(), upstream_scripts.chat())
    history = start(gateway, "chat-late", "late")

    assert USED in turn(gateway, "chat-late", history, "late")
    call, output = sent_call(scripted, "chat-late")
    assert (call["id"], output["tool_call_id"]) == ("call_1", "call_1")
    assert call["extra_content"] == THOUGHT_SIGNATURE


def test_the_metadata_event_reports_what_was_recorded(gateway, scripted):
    scripted.on("chat-late-stream", late_signature(), upstream_scripts.chat())
    request = message("chat-late-stream", tools=[TOOL], stream=True)

    reply = gateway.post(request, x_claude_code_session_id="streamed", x_bridge_events="metadata")

    metadata = next(event for event in reply.events if event["type"] == "bridge.metadata")
    assert RECORDED in {note["reason"] for note in metadata["notes"]}
    assert reply.kinds[-1] == "message_stop"


def test_a_long_call_id_returns_as_the_server_made_it(gateway, scripted):
    scripted.on("chat-long", late_signature(LONG_ID), upstream_scripts.chat())
    history = start(gateway, "chat-long", "long")
    assert len(history[1]["content"][0]["id"]) <= 64

    assert USED in turn(gateway, "chat-long", history, "long")
    call, output = sent_call(scripted, "chat-long")
    assert call["id"] == output["tool_call_id"] == LONG_ID
    assert call["extra_content"] == THOUGHT_SIGNATURE


def test_a_long_call_id_of_the_responses_api_returns_too(gateway, scripted):
    scripted.on("responses-long", call_script(LONG_ID), upstream_scripts.responses())
    history = start(gateway, "responses-long", "long")

    assert USED in turn(gateway, "responses-long", history, "long")
    items = scripted.requests_for("responses-long")[-1].json["input"]
    assert [i["call_id"] for i in items if "call_id" in i] == [LONG_ID, LONG_ID]


def test_hidden_reasoning_of_the_responses_api_returns_before_its_call(gateway, scripted):
    scripts = [reasoning_script(n, call=n < 3) for n in (1, 2, 3)]
    scripted.on("responses-hidden", *scripts)
    history = start(gateway, "responses-hidden", "hidden")
    assert {block["type"] for block in history[1]["content"]} == {"tool_use"}

    notes = [turn(gateway, "responses-hidden", history, "hidden") for _ in range(2)]

    assert [USED in each for each in notes] == [True, True]
    items = scripted.requests_for("responses-hidden")[-1].json["input"]
    assert [item.get("id") or item["type"] for item in items[1:]] == [
        "rs_1", "function_call", "function_call_output", "rs_2", "function_call",
        "function_call_output",
    ]  # fmt: skip
    assert items[1]["encrypted_content"] == "gAAA-1-\u00e9"


def test_hidden_reasoning_without_a_session_is_left_out_with_a_note(gateway, scripted):
    scripted.on("responses-single", *(reasoning_script(n, call=True) for n in (1, 2)))
    history: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]

    notes = turn(gateway, "responses-single", history, "")
    turn(gateway, "responses-single", history, "")

    assert any(reason.startswith("encrypted reasoning is not kept") for reason in notes)
    items = scripted.requests_for("responses-single")[-1].json["input"]
    assert "reasoning" not in {item["type"] for item in items}


@pytest.mark.parametrize("team", ["platform", "foreign"])
def test_another_key_gets_no_entry_of_the_same_session_and_call(gateway, scripted, reload, team):
    scripted.on(f"chat-foreign-{team}", late_signature(), upstream_scripts.chat())
    _, secret = ApiKey.issue(Team.objects.get_or_create(name=team)[0], "eve", scopes=["messages"])
    reload()
    history = start(gateway, f"chat-foreign-{team}", "foreign")

    notes = turn(gateway, f"chat-foreign-{team}", history, "foreign", x_api_key=secret)

    call, _ = sent_call(scripted, f"chat-foreign-{team}")
    assert "extra_content" not in call
    assert not {USED, GONE} & notes


def test_another_model_of_the_session_gets_no_entry(gateway, scripted):
    scripted.on("chat-own", late_signature())
    scripted.on("chat-other", upstream_scripts.chat())
    history = start(gateway, "chat-own", "models")

    turn(gateway, "chat-other", history, "models")

    assert "extra_content" not in sent_call(scripted, "chat-other")[0]


def test_a_new_call_never_gets_the_id_of_a_recorded_one(gateway, scripted):
    plain = {"index": 0, "id": "call_1", "function": {"name": "f", "arguments": "{}"}}
    events = [{"tool_calls": [plain]}]
    second = [
        *map(upstream_scripts.chat_chunk, events),
        upstream_scripts.chat_chunk({}, "tool_calls"),
    ]
    scripts = late_signature(), upstream_scripts.pieces(second, LAST_CHUNK), upstream_scripts.chat()
    scripted.on("chat-reused", *scripts)
    start(gateway, "chat-reused", "reused")
    compacted: list[dict[str, Any]] = [{"role": "user", "content": "Summary. Go on."}]

    turn(gateway, "chat-reused", compacted, "reused")
    turn(gateway, "chat-reused", compacted, "reused")

    assert "extra_content" not in sent_call(scripted, "chat-reused")[0]


def test_entries_over_the_limit_of_a_session_are_reported_as_gone(gateway, scripted):
    most = [f"call_{number}" for number in range(2, MAX_CALLS + 2)]
    scripted.on("chat-full", late_signature(), late_signature(*most), upstream_scripts.chat())
    history = start(gateway, "chat-full", "full")

    assert USED in turn(gateway, "chat-full", history, "full")
    notes = turn(gateway, "chat-full", history, "full")

    messages = scripted.requests_for("chat-full")[-1].json["messages"]
    calls = [c for m in messages if m["role"] == "assistant" for c in m["tool_calls"]]
    assert ["extra_content" in call for call in calls] == [False, *[True] * MAX_CALLS]
    assert {USED, GONE} <= notes


def test_an_entry_over_the_limit_of_one_call_is_not_recorded(gateway, scripted):
    scripted.on("chat-large", late_signature(long_id(MAX_CALL)))
    history: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]

    assert session_calls.TOO_LARGE.reason in turn(gateway, "chat-large", history, "large")


def change_record(database: Path, statement: str, *values: object) -> None:
    with contextlib.closing(sqlite3.connect(database / CALLS_FILE)) as file, file:
        file.execute(statement, values)


def test_an_expired_entry_is_reported_as_gone(gateway, scripted, database):
    scripted.on("chat-old", late_signature(), upstream_scripts.chat())
    history = start(gateway, "chat-old", "old")
    change_record(database, "UPDATE calls SET at = at - ?", ENTRY_LIFETIME_S)

    assert GONE in turn(gateway, "chat-old", history, "old")
    assert "extra_content" not in sent_call(scripted, "chat-old")[0]


def test_nothing_is_recorded_for_a_team_that_stores_only_metadata(gateway, scripted, reload):
    team = Team.objects.create(name="discreet", store="metadata")
    _, secret = ApiKey.issue(team, "ben", scopes=["messages"])
    reload()
    scripted.on("chat-discreet", late_signature(), upstream_scripts.chat())
    history: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]

    assert LATE in turn(gateway, "chat-discreet", history, "discreet", x_api_key=secret)
    turn(gateway, "chat-discreet", history, "discreet", x_api_key=secret)

    assert "extra_content" not in sent_call(scripted, "chat-discreet")[0]


def test_while_the_record_is_unavailable_requests_go_on_with_a_note(gateway, scripted, database):
    scripted.on("chat-outage", late_signature(), upstream_scripts.chat())
    history = start(gateway, "chat-outage", "outage")

    with unusable(database / CALLS_FILE):
        assert session_calls.NOT_READ.reason in turn(gateway, "chat-outage", history, "outage")
        scripted.on("chat-outage", late_signature())
        notes = turn(gateway, "chat-outage", history[:1], "outage")
    assert session_calls.NOT_RECORDED.reason in notes


def test_an_entry_that_another_program_wrote_counts_as_gone(gateway, scripted, database):
    scripted.on("chat-foreign-entry", late_signature(), upstream_scripts.chat())
    history = start(gateway, "chat-foreign-entry", "odd")
    change_record(
        database,
        "INSERT INTO calls SELECT origin, session, 'x', at, '[1]' FROM calls ORDER BY at DESC LIMIT 1",
    )
    change_record(database, "UPDATE calls SET entry = '{' WHERE name = 'call_1'")

    assert GONE in turn(gateway, "chat-foreign-entry", history, "odd")
