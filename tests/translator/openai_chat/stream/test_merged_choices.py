"""Responses that use two choices for one answer, and responses that repeat the answer."""

import copy

from tests.for_each import for_each
from tests.translator.openai_chat.responses import (
    USAGE,
    calls,
    chunk,
    feed_all,
    message,
    piece,
    stream,
    whole,
)
from translator.message_stream.events_to_message import fold

OSLO = '{"city":"Oslo"}'
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": OSLO}}
TAGS = {"capabilities": {"think_tags": True}}


def summarize(reply):
    """Return (type, content) of each block."""
    keys = {"text": "text", "thinking": "thinking", "tool_use": "name"}
    return [(block["type"], block[keys[block["type"]]]) for block in reply["content"]]


def again(**fields):
    """Return the whole message, as MiniMax repeats it at the end of a stream."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **fields}}
    return {"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], "usage": USAGE}


@for_each(
    ("pieces", "fields", "expected"),
    [
        (
            [chunk(content="Hel"), chunk("stop", content="lo.")],
            {"content": "Hello.", "name": "x"},
            [("text", "Hello.")],
        ),
        (
            [chunk(content="Hel")],
            {"content": "Hello.", "reasoning_content": ""},
            [("text", "Hel"), ("text", "lo.")],
        ),
        ([chunk(content="Hel")], {"content": "Bye."}, [("text", "Hel")]),
        ([chunk(content="Hel")], {"content": None}, [("text", "Hel")]),
        (
            [chunk(reasoning_content="Hm"), chunk(content="Yes.")],
            {
                "reasoning_content": "Hm",
                "reasoning_details": [{"type": "reasoning.text", "text": "Hm"}],
                "content": "Yes.",
            },
            [("thinking", "Hm"), ("text", "Yes.")],
        ),
        (
            [chunk(content="One."), calls(piece(index=0, id="c", name="f", arguments=OSLO))],
            {"content": "One.", "tool_calls": [CALL]},
            [("text", "One."), ("tool_use", "f")],
        ),
        (
            [calls(piece(index=0, id="c", name="f", arguments=OSLO), finish="tool_calls")],
            {"content": "One.", "tool_calls": [CALL, CALL | {"id": "d"}, CALL | {"id": None}]},
            [("tool_use", "f"), ("text", "One."), ("tool_use", "f")],
        ),
        (
            [chunk(refusal="I can")],
            {"refusal": "I cannot.", "content": ""},
            [("text", "I can"), ("text", "not.")],
        ),
    ],
)
def test_a_message_after_its_deltas_adds_only_new_content(pieces, fields, expected):
    assert summarize(message(*pieces, again(**fields))) == expected


def test_a_message_after_its_deltas_may_contain_think_tags():
    reply = message(
        chunk(content="<think>Hm"), chunk(content="</think>\nYes."),
        again(content="<think>Hm</think>\nYes."), **TAGS,
    )  # fmt: skip

    assert summarize(reply) == [("thinking", "Hm"), ("text", "Yes.")]


def test_an_invalid_call_after_its_deltas_is_an_upstream_error():
    decoder = stream()

    events = feed_all(decoder, chunk(content="One."), again(tool_calls=["none"]))

    assert events[-1]["type"] == "error"


def test_messages_used_as_deltas_are_not_repetitions():
    pieces = [{"choices": [{"index": 0, "message": {"content": "ha"}}]} for _ in range(2)]

    assert summarize(message(chunk(role="assistant"), *pieces, chunk("stop"))) == [("text", "haha")]


def summarize_repeated(*contents, **fields):
    """Summarize a stream that has messages instead of deltas."""
    pieces = [{"content": each} if isinstance(each, str) else each for each in contents]
    chunks = [{"choices": [{"index": 0, "message": each}]} for each in pieces]
    return summarize(message(chunk(role="assistant"), *chunks, chunk("stop"), **fields))


@for_each(
    ("contents", "expected"),
    [
        (["Hel", "Hello", "Hello Ada.", "Hello Ada."], [("text", "Hello Ada.")]),
        (["ha", "haha", "haha", "hahaha"], [("text", "hahaha")]),
        (["Hel", "lo"], [("text", "Hello")]),
        (["Hel", "Hello", " Ada.", ""], [("text", "Hello Ada.")]),
        (
            [
                {"reasoning_content": "Hm"},
                {"reasoning_content": "Hm so", "content": ""},
                {"reasoning_content": "Hm so", "content": "Yes"},
                {"reasoning_content": "Hm so", "content": "Yes.", "tool_calls": [CALL]},
                {"reasoning_content": "Hm so", "content": "Yes.", "tool_calls": [CALL]},
            ],
            [("thinking", "Hm so"), ("text", "Yes."), ("tool_use", "f")],
        ),
    ],
)
def test_cumulative_messages_are_emitted_once(contents, expected):
    assert summarize_repeated(*contents) == expected


def two(*messages, finish="tool_calls", **fields):
    return [{"finish_reason": finish, "message": message, **fields} for message in messages]


@for_each("role", [{}, {"role": "assistant"}])
@for_each("finish", ["tool_calls", None])
def test_text_and_calls_in_separate_choices_are_merged(role, finish):
    body = whole({}) | {
        "choices": two(
            {**role, "content": "One."}, {**role, "tool_calls": [CALL]},
            {**role, "content": None, "tool_calls": [CALL]}, finish=finish,
        )
    }  # fmt: skip

    reply = fold(stream().feed_body(body))

    assert summarize(reply) == [("text", "One."), ("tool_use", "f")]
    assert reply["stop_reason"] == "tool_use"


def test_merged_choices_may_stream():
    one = chunk("tool_calls", content="O")
    made = {"content": "ne.", "tool_calls": [piece(id="c", name="f", arguments=OSLO)]}
    one["choices"] += [{"delta": made}, None, {}]

    assert summarize(message(one)) == [("text", "One."), ("tool_use", "f")]


def test_another_choice_contains_the_calls_of_the_first_choice():
    choices = two({"content": "One."}, {"tool_calls": [CALL]})
    for index, choice in enumerate(choices):
        choice["index"] = index

    reply = fold(stream().feed_body(whole({}) | {"choices": copy.deepcopy(choices)}))
    assert summarize(reply) == [("text", "One."), ("tool_use", "f")]

    choices[0]["message"]["tool_calls"] = [CALL | {"id": "d"}]
    reply = fold(stream().feed_body(whole({}) | {"choices": choices}))
    assert [block["id"] for block in reply["content"] if block["type"] == "tool_use"] == ["d"]


def test_a_second_answer_is_ignored():
    choices = two({"content": "One."}, {"content": "Two."}, finish="stop")
    for index, choice in enumerate(choices):
        choice["index"] = index

    assert summarize(fold(stream().feed_body(whole({}) | {"choices": choices}))) == [
        ("text", "One.")
    ]
