"""The id and the thought signature of a tool call return as the server made them, to that server."""

import dataclasses
import hashlib

from tests.fakes.anthropic_requests import KEYS, assistant, make_request, result, user
from tests.for_each import for_each
from tests.translator.openai_chat.requests import build, target
from translator.message_stream.events_to_message import fold
from translator.openai_chat import DIALECT

from .responses import calls, chunk, feed_all, message, piece, stream

SIGNATURE = "AYe4+/=="
EXTRA = {"google": {"thought_signature": SIGNATURE}}
KIMI = "functions.get_weather:0"
LITELLM = "call_abc__thought__" + "AYe4+/" * 300 + "=="


def returned(content: list, profile: str = "gemini", **fields) -> tuple[list[dict], list[dict]]:
    """Return the calls and the tool messages of the next request to the upstream."""
    ids = [block["id"] for block in content if block["type"] == "tool_use"]
    results = [result("ok", call_id=id_) for id_ in ids]
    history = [user("a"), assistant(*content), user(*results)]
    messages = build(make_request(*history), profile, **{"keys": KEYS, **fields}).body["messages"]
    tool_calls = next(m for m in messages if m["role"] == "assistant")["tool_calls"]
    return tool_calls, [m for m in messages if m["role"] == "tool"]


@for_each("call_id", [KIMI, LITELLM, "call_" + "x" * 80, "ид:1", "\ud83d", "a b"])
@for_each("is_whole", [True, False])
def test_an_id_that_clients_may_not_accept_returns_unchanged(call_id, is_whole):
    call = piece(index=0, id=call_id, name="f", arguments='{"a":1}')
    chunks = [calls(call, finish="tool_calls")]
    if is_whole:
        chunks = [{"choices": [{"index": 0, "message": {"tool_calls": [call]},
                                "finish_reason": "tool_calls"}]}]  # fmt: skip

    content = message(*chunks, profile="generic")["content"]
    (sent,), (output,) = returned(content, "generic")

    assert content[0]["id"] != call_id
    assert content[0]["id"].isascii()
    assert content[0]["id"].replace("_", "").replace("-", "").isalnum()
    assert (sent["id"], output["tool_call_id"]) == (call_id, call_id)


@for_each(
    "fields",
    [
        {"extra_content": EXTRA},
        {"provider_specific_fields": {"thought_signature": SIGNATURE}},
        {"thought_signature": SIGNATURE},
    ],
)
@for_each("context", [{}, {"thinking": "hidden"}, {"keys": KEYS}])
def test_a_signature_returns_in_its_field_also_for_clients_without_thinking(fields, context):
    call = piece(index=0, id="call_1", name="f", arguments="{}", **fields)

    content = message(calls(call, finish="tool_calls"), profile="gemini", **context)["content"]
    (sent,), (output,) = returned(content)

    assert [block["type"] for block in content] == ["tool_use"]
    assert {**sent, **fields} == sent
    assert sent["id"] == output["tool_call_id"] == "call_1"


def test_a_call_of_a_whole_response_is_repaired_and_keeps_its_signature():
    call = piece(index=0, id="call_1", name="f", arguments='{"a":1,}', extra_content=EXTRA)
    choice = {"index": 0, "message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}

    content = message({"choices": [choice]}, profile="gemini")["content"]
    (sent,), _ = returned(content)

    assert content[0]["input"] == {"a": 1}
    assert sent["extra_content"] == EXTRA


def test_a_signature_inside_of_the_function_returns_there():
    call = piece(index=0, id="call_1", name="f", arguments="{}")
    call["function"]["thought_signature"] = SIGNATURE

    content = message(calls(call, finish="tool_calls"), profile="gemini")["content"]
    (sent,), _ = returned(content)

    assert sent["function"] == {"name": "f", "arguments": "{}", "thought_signature": SIGNATURE}


def test_a_signature_at_the_end_of_a_call_is_in_time_for_its_id():
    pieces = [
        calls(piece(index=0, id="call_1", name="f", arguments='{"a"')),
        calls(piece(index=0, arguments=":1}")),
        calls(piece(index=0, extra_content=EXTRA)),
        calls(piece(index=1, id="call_2", name="g", arguments='{"b":2}'), finish="tool_calls"),
    ]

    content = message(*pieces, profile="gemini")["content"]
    (first, second), _ = returned(content)

    assert [block["input"] for block in content] == [{"a": 1}, {"b": 2}]
    assert first["extra_content"] == EXTRA
    assert "extra_content" not in second
    assert content[1]["id"] == "call_2"


def test_a_signature_after_the_start_of_a_call_is_noted_if_the_profile_does_not_wait():
    machine = stream(profile="generic")

    machine.feed(calls(piece(index=0, id="call_1", name="f", arguments='{"a":1}')))
    machine.feed(calls(piece(index=0, extra_content=EXTRA)), chunk("tool_calls"))

    assert [note.reason for note in machine.notes] == [
        "a thought signature that arrived after the start of its call"
    ]


def test_a_signature_goes_to_no_other_upstream_or_model():
    call = piece(index=0, id=KIMI, name="f", arguments="{}", extra_content=EXTRA)
    content = message(calls(call, finish="tool_calls"), profile="gemini")["content"]

    history = [user("a"), assistant(*content), user(result("ok", call_id=content[0]["id"]))]
    other = dataclasses.replace(target("gemini"), model="other")
    messages = DIALECT.build_request(make_request(*history), other).body["messages"]
    sent, output = messages[1]["tool_calls"][0], messages[2]

    assert sent["extra_content"] != EXTRA
    assert sent["id"] == output["tool_call_id"]
    assert sent["id"].startswith("functions_get_weather_0_")
    assert len(sent["id"]) <= 64


def test_a_signature_that_is_too_long_is_dropped_with_a_note():
    machine = stream(profile="gemini")
    noise = "".join(hashlib.sha256(b"%d" % n).hexdigest() for n in range(600))
    long_call = piece(index=0, id="call_1", name="f", arguments="{}", thought_signature=noise)

    events = machine.feed(calls(long_call), chunk("tool_calls"))

    start = next(event for event in events if event["type"] == "content_block_start")
    assert start["content_block"]["id"] == "call_1"
    assert [note.reason for note in machine.notes] == [
        "a call id or thought signature that is too long"
    ]


def test_the_signature_of_a_text_is_dropped_with_a_note():
    decoder = stream(profile="gemini", keys=KEYS)

    decoder.feed(
        chunk(content="Hello.", extra_content=EXTRA), chunk("stop", extra_content={"x": 1})
    )

    assert [note.reason for note in decoder.notes] == ["a thought signature of text, not of a call"]
    assert decoder.unknown == {"delta.extra_content": 1}


DETAILS = [
    {"type": "reasoning.summary", "summary": "Hm.", "index": 0},
    {"type": "reasoning.encrypted", "data": "AYe4+/==", "id": "rs_1", "index": 1},
]
LONG_DATA = "".join(hashlib.sha256(b"%d" % n).hexdigest() for n in range(1_000))


def test_hidden_reasoning_details_return_with_the_first_call_of_their_turn():
    chunks = [chunk(reasoning_details=[detail]) for detail in DETAILS]
    chunks += [calls(piece(index=0, id="call_1", name="f", arguments="{}"))]
    chunks += [calls(piece(index=1, id="call_2", name="f", arguments="{}"), finish="tool_calls")]

    content = message(*chunks, profile="openrouter", thinking="hidden")["content"]
    sent, outputs = returned(content, "openrouter")

    assert [each["id"] for each in sent] == ["call_1", "call_2"]
    assert [each["tool_call_id"] for each in outputs] == ["call_1", "call_2"]
    assert [block["type"] for block in content] == ["tool_use", "tool_use"]
    history = make_request(user("a"), assistant(*content), user("b"))
    for profile, expected in (("openrouter", DETAILS), ("generic", None)):
        messages = build(history, profile, keys=KEYS).body["messages"]
        turn = next(m for m in messages if m["role"] == "assistant")
        assert turn.get("reasoning_details") == expected


@for_each(
    ("before", "after", "note"),
    [
        ([{"type": "reasoning.encrypted", "data": LONG_DATA}], [], "too long for the id"),
        ([], DETAILS, "after the start of its call"),
    ],
)
def test_hidden_reasoning_that_no_id_can_carry_is_noted(before, after, note):
    call = piece(index=0, id="call_1", name="f", arguments='{"a":')
    machine = stream(profile="openrouter", thinking="hidden")

    events = [
        chunk(reasoning_details=before),
        calls(call),
        calls(piece(index=0, arguments="1}")),
        chunk("tool_calls", reasoning_details=after),
    ]
    answer = fold(feed_all(machine, *events))

    assert [(b["id"], b["input"]) for b in answer["content"]] == [("call_1", {"a": 1})]
    assert any(note in each.reason for each in machine.notes), machine.notes


PLACEHOLDER = {"google": {"thought_signature": "skip_thought_signature_validator"}}


def test_the_first_unsigned_call_of_each_step_has_googles_placeholder():
    history = [
        user("a"),
        assistant({"type": "text", "text": "b"}, block("t1"), block("t2")),
        user(result("1", call_id="t1"), result("2", call_id="t2")),
        assistant(block("t3")),
        user(result("3", call_id="t3")),
    ]
    request = make_request(*history)

    gemini = DIALECT.build_request(request, target("gemini"))
    other = DIALECT.build_request(request, target("openai"))

    extra = [
        [call.get("extra_content") for call in message["tool_calls"]]
        for message in gemini.body["messages"]
        if message["role"] == "assistant"
    ]
    assert extra == [[PLACEHOLDER, None], [PLACEHOLDER]]
    assert [note.path for note in gemini.notes] == ["messages.1.content.1", "messages.3.content.0"]
    assert "skip_thought" not in str(other.body)


def test_a_signed_call_has_its_own_signature_alone():
    first = piece(index=0, id="c1", name="f", arguments="{}", extra_content=EXTRA)
    content = message(calls(first, finish="tool_calls"), profile="gemini")["content"]
    history = [user("a"), assistant(*content), user(result("ok", call_id=content[0]["id"]))]

    body = DIALECT.build_request(make_request(*history), target("gemini")).body

    assert body["messages"][1]["tool_calls"][0]["extra_content"] == EXTRA


def block(call_id):
    return {"type": "tool_use", "id": call_id, "name": "f", "input": {}}
