"""Answers that come as two choices, and answers that come twice."""

import copy

import pytest

from tests.translator.openai_chat.answers import (
    USAGE,
    calls,
    chunk,
    hear,
    message,
    piece,
    stream,
    whole,
)
from translator.anthropic.fold import fold

OSLO = '{"city":"Oslo"}'
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": OSLO}}
TAGS = {"capabilities": {"think_tags": True}}


def said(told):
    """Each block as what it is and what it says."""
    keys = {"text": "text", "thinking": "thinking", "tool_use": "name"}
    return [(block["type"], block[keys[block["type"]]]) for block in told["content"]]


def again(**fields):
    """The whole answer once more, as MiniMax ends a stream."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **fields}}
    return {"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], "usage": USAGE}


@pytest.mark.parametrize(
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
def test_a_message_behind_its_pieces_says_only_what_they_did_not(pieces, fields, expected):
    assert said(message(*pieces, again(**fields))) == expected


def test_a_message_behind_its_pieces_may_hold_reasoning_in_tags():
    told = message(
        chunk(content="<think>Hm"), chunk(content="</think>\nYes."),
        again(content="<think>Hm</think>\nYes."), **TAGS,
    )  # fmt: skip

    assert said(told) == [("thinking", "Hm"), ("text", "Yes.")]


def test_a_broken_call_behind_its_pieces_is_the_upstream_s_fault():
    heard = stream()

    events = hear(heard, chunk(content="One."), again(tool_calls=["none"]))

    assert events[-1]["type"] == "error"


def test_messages_that_come_piece_by_piece_are_no_repetition():
    pieces = [{"choices": [{"index": 0, "message": {"content": "ha"}}]} for _ in range(2)]

    assert said(message(chunk(role="assistant"), *pieces, chunk("stop"))) == [("text", "haha")]


def told_so_far(*contents, **fields):
    """Messages in the place of deltas, and the end."""
    pieces = [{"content": each} if isinstance(each, str) else each for each in contents]
    chunks = [{"choices": [{"index": 0, "message": each}]} for each in pieces]
    return said(message(chunk(role="assistant"), *chunks, chunk("stop"), **fields))


@pytest.mark.parametrize(
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
def test_messages_that_tell_all_of_the_answer_so_far_are_heard_once(contents, expected):
    assert told_so_far(*contents) == expected


def two(*messages, finish="tool_calls", **fields):
    return [{"finish_reason": finish, "message": message, **fields} for message in messages]


@pytest.mark.parametrize("role", [{}, {"role": "assistant"}])
@pytest.mark.parametrize("finish", ["tool_calls", None])
def test_text_and_calls_in_choices_of_their_own_are_one_answer(role, finish):
    body = whole({}) | {
        "choices": two(
            {**role, "content": "One."}, {**role, "tool_calls": [CALL]},
            {**role, "content": None, "tool_calls": [CALL]}, finish=finish,
        )
    }  # fmt: skip

    told = fold(stream().feed_whole(body))

    assert said(told) == [("text", "One."), ("tool_use", "f")]
    assert told["stop_reason"] == "tool_use"


def test_choices_of_one_answer_may_stream():
    one = chunk("tool_calls", content="O")
    made = {"content": "ne.", "tool_calls": [piece(id="c", name="f", arguments=OSLO)]}
    one["choices"] += [{"delta": made}, None, {}]

    assert said(message(one)) == [("text", "One."), ("tool_use", "f")]


def test_a_numbered_choice_holds_the_calls_that_the_first_stops_for():
    choices = two({"content": "One."}, {"tool_calls": [CALL]})
    for index, choice in enumerate(choices):
        choice["index"] = index

    told = fold(stream().feed_whole(whole({}) | {"choices": copy.deepcopy(choices)}))
    assert said(told) == [("text", "One."), ("tool_use", "f")]

    choices[0]["message"]["tool_calls"] = [CALL | {"id": "d"}]
    told = fold(stream().feed_whole(whole({}) | {"choices": choices}))
    assert [block["id"] for block in told["content"] if block["type"] == "tool_use"] == ["d"]


def test_another_answer_is_not_told():
    choices = two({"content": "One."}, {"content": "Two."}, finish="stop")
    for index, choice in enumerate(choices):
        choice["index"] = index

    assert said(fold(stream().feed_whole(whole({}) | {"choices": choices}))) == [("text", "One.")]
