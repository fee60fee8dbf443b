"""What the ids of calls cannot carry goes into the record of the session, and back from there."""

import dataclasses
import hashlib
from typing import Any

from tests.fakes.anthropic_requests import KEYS, assistant, make_request, result, user
from tests.for_each import for_each
from translator import openai_chat, openai_responses
from translator.capabilities import profile_with
from translator.dialect import RecordedCalls, Stream, TranslationTarget, UpstreamCall
from translator.message_stream.events_to_message import fold
from translator.request.builder import RECORD_GONE, RECORD_USED

NOISE = "".join(hashlib.sha256(b"%d" % n).hexdigest() for n in range(1_000))
LONG_ID = f"functions.f:{NOISE}"
ARGUMENTS = '{"a":1}'
SIGNATURE = {"thought_signature": "AYe4+/=="}
BEFORE = {"type": "reasoning.encrypted", "data": "before", "index": 0}
AFTER = {"type": "reasoning.encrypted", "data": "after", "index": 1}
DIALECTS = {"chat": openai_chat.DIALECT, "responses": openai_responses.DIALECT}


def target(dialect: str, profile: str, recorded: RecordedCalls | None) -> TranslationTarget:
    return TranslationTarget(
        upstream="local", model="m", profile=profile_with(profile, {}), signing_keys=KEYS,
        recorded_calls=recorded,
    )  # fmt: skip


def answer(
    events: list[dict[str, Any]], *history: dict[str, Any], dialect: str = "chat",
    profile: str = "generic", recorded: RecordedCalls | None = None,
) -> tuple[list[dict[str, Any]], Stream]:  # fmt: skip
    """Return the content of a response, and its stream. The client asked for no thinking."""
    request = make_request(*(history or [user("a")]))
    made = DIALECTS[dialect].build_request(request, target(dialect, profile, recorded or {}))
    machine = DIALECTS[dialect].stream(made.response_context)
    emitted = [event for each in events for event in machine.feed(each)]
    return fold(emitted + ([] if machine.finished else machine.end()))["content"], machine


def next_request(
    content: list[dict[str, Any]], recorded: RecordedCalls | None, *, dialect: str = "chat",
    profile: str = "generic", model: str = "m",
) -> tuple[list[dict[str, Any]], set[tuple[str, str]]]:  # fmt: skip
    """Return the history that the upstream gets in the next request, and the notes."""
    ids = [block["id"] for block in content if block["type"] == "tool_use"]
    turns = user("a"), assistant(*content), user(*(result("ok", call_id=id_) for id_ in ids))
    where = dataclasses.replace(target(dialect, profile, recorded), model=model)
    built = DIALECTS[dialect].build_request(make_request(*turns), where)
    history = built.body.get("messages") or built.body["input"]
    return history[1:], {(note.fate, note.reason) for note in built.notes}


# Chat Completions


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def call(index: int, id_: str | None = None, name: str = "", arguments: str = "", **fields: Any):
    function = {"name": name, "arguments": arguments}
    return chunk(tool_calls=[{"index": index, "id": id_, "function": function, **fields}])


def test_a_signature_after_the_next_call_belongs_to_its_own_call():
    chunks = [call(0, "call_1", "f", '{"a":1}'), call(1, "call_2", "g", ARGUMENTS),
              call(0, **SIGNATURE), call(0, extra_content={"x": 1}), chunk("tool_calls")]  # fmt: skip

    content, machine = answer(chunks, profile="gemini")
    (turn, *results), notes = next_request(content, machine.call_records, profile="gemini")

    first, second = turn["tool_calls"]
    assert (first["id"], first["thought_signature"]) == ("call_1", SIGNATURE["thought_signature"])
    assert first["extra_content"] == {"x": 1}
    assert "thought_signature" not in second
    assert [each["tool_call_id"] for each in results] == ["call_1", "call_2"]
    assert RECORD_USED in notes


def test_a_late_signature_joins_the_fields_that_the_id_carries():
    chunks = [call(0, "call_1", "f", "{", extra_content={"x": "y" * 99}),
              call(0, arguments="}", **SIGNATURE), chunk("tool_calls")]  # fmt: skip

    content, machine = answer(chunks)
    (turn, _), _ = next_request(content, machine.call_records)

    assert len(content[0]["id"]) > 64
    assert turn["tool_calls"][0].items() >= {"extra_content": {"x": "y" * 99}, **SIGNATURE}.items()
    assert machine.notes[-1].reason.startswith("the upstream reported no final usage")


def test_a_long_id_and_its_late_signature_return():
    content, machine = answer(
        [call(0, LONG_ID, "f", ARGUMENTS), call(0, **SIGNATURE), chunk("stop")]
    )
    (turn, output), _ = next_request(content, machine.call_records)

    assert len(content[0]["id"]) <= 64
    assert turn["tool_calls"][0]["id"] == output["tool_call_id"] == LONG_ID
    assert turn["tool_calls"][0].items() >= SIGNATURE.items()


def test_two_calls_with_one_long_id_stay_apart():
    chunks = [
        call(0, LONG_ID, "f", ARGUMENTS),
        call(1, LONG_ID, "g", '{"b":1}'),
        chunk("tool_calls"),
    ]

    content, machine = answer(chunks)
    (turn, *results), _ = next_request(content, machine.call_records)

    sent = [each["id"] for each in turn["tool_calls"]]
    assert sent[0] == LONG_ID
    assert len(set(sent)) == 2
    assert [each["tool_call_id"] for each in results] == sent


@for_each("fields", [{}, SIGNATURE, {"thought_signature": NOISE}])
@for_each("call_id", ["call_1", LONG_ID])
def test_long_reasoning_before_a_call_and_reasoning_after_it_return(fields, call_id):
    long = BEFORE | {"data": NOISE}
    chunks = [chunk(reasoning_details=[long]), call(0, call_id, "f", ARGUMENTS, **fields),
              chunk(reasoning_details=[AFTER]), chunk("tool_calls")]  # fmt: skip

    content, machine = answer(chunks, profile="openrouter")
    (turn, output), notes = next_request(content, machine.call_records, profile="openrouter")

    assert turn["reasoning_details"] == [long, AFTER]
    assert turn["tool_calls"][0]["id"] == output["tool_call_id"] == call_id
    assert turn["tool_calls"][0].items() >= fields.items()
    assert RECORD_USED in notes


def test_late_reasoning_without_a_call_is_noted():
    chunks = [call(0, "call_1", arguments="{}"), chunk(reasoning_details=[AFTER]), chunk("stop")]

    _, machine = answer(chunks, profile="openrouter")

    assert machine.call_records == {}
    assert any("after the start of its call" in note.reason for note in machine.notes)


def test_an_entry_that_is_gone_is_noted_and_one_of_another_call_is_not():
    content, machine = answer(
        [call(0, "call_1", "f", ARGUMENTS), call(0, **SIGNATURE), chunk("stop")]
    )
    other = dict.fromkeys(["call_2"], UpstreamCall("", {}))

    (gone, _), notes = next_request(content, dict.fromkeys(machine.call_records))
    _, other_notes = next_request(content, other)

    assert "thought_signature" not in gone["tool_calls"][0]
    assert RECORD_GONE in notes
    assert not {RECORD_GONE, RECORD_USED} & other_notes


def test_a_new_call_does_not_get_the_id_of_a_recorded_call():
    recorded = {"call_1": UpstreamCall("", SIGNATURE)}

    content, machine = answer([call(0, "call_1", "f", ARGUMENTS), chunk("stop")], recorded=recorded)

    assert content[0]["id"] == "call_1_2"
    assert machine.call_records == {}


# The Responses API


def thought(number: int) -> dict[str, Any]:
    return {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": "gAAA"}


def function_call(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "id": f"fc_{call_id[:9]}", "call_id": call_id, "name": "f",
            "arguments": "{}"}  # fmt: skip


TEXT = {"type": "message", "id": "m", "role": "assistant",
        "content": [{"type": "output_text", "text": "Hm.", "annotations": []}]}  # fmt: skip


def whole(*output: dict[str, Any]) -> list[dict[str, Any]]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    response = {"id": "r", "status": "completed", "output": list(output), "usage": usage}
    done = [{"type": "response.output_item.done", "output_index": n, "item": item}
            for n, item in enumerate(output)]  # fmt: skip
    return [*done, {"type": "response.completed", "response": response}]


def test_hidden_reasoning_returns_in_its_place():
    output = [thought(1), TEXT, thought(2), function_call("call_1"), thought(3),
              function_call("call_2"), thought(4)]  # fmt: skip
    where = {"dialect": "responses", "profile": "openai"}

    content, machine = answer(whole(*output), **where)
    history, notes = next_request(content, machine.call_records, **where)

    assert [block["type"] for block in content] == ["text", "tool_use", "tool_use"]
    assert [item.get("id") or item.get("call_id") or item["role"] for item in history] == [
        "rs_1", "assistant", "rs_2", "call_1", "rs_3", "rs_4", "call_2", "call_1", "call_2",
    ]  # fmt: skip
    assert history[0] == thought(1)
    assert RECORD_USED in notes
    other, _ = next_request(content, None, model="other", **where)
    assert "reasoning" not in {item["type"] for item in other}


def test_a_long_id_of_the_responses_api_and_the_reasoning_before_it_return():
    where = {"dialect": "responses", "profile": "openai"}

    content, machine = answer(whole(thought(1), function_call(LONG_ID)), **where)
    history, _ = next_request(content, machine.call_records, **where)

    assert len(content[0]["id"]) <= 64
    assert history[0] == thought(1)
    assert [item["call_id"] for item in history[1:]] == [LONG_ID, LONG_ID]
    _, gone = next_request(content, dict.fromkeys(machine.call_records), **where)
    assert RECORD_GONE in gone


def test_hidden_reasoning_of_a_text_is_left_out_with_a_note():
    content, machine = answer(whole(thought(1), TEXT), dialect="responses", profile="openai")

    assert [block["type"] for block in content] == ["text"]
    assert machine.call_records == {}
    assert [note.reason for note in machine.notes] == [
        "encrypted reasoning is not kept, because no thinking was requested"
    ]
