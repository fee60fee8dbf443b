"""What some servers leave out or splice into a stream is completed, or ends it."""

from typing import Any

from tests.for_each import for_each
from translator.anthropic_upstream import DIALECT
from translator.anthropic_upstream.stream import (
    ESTIMATED_USAGE,
    FOREIGN_REASON,
    AnthropicStream,
)
from translator.dialect import ResponseContext
from translator.message_stream.events_to_message import fold
from translator.message_stream.response_stream import FIRST_DROPPED, SPLICED

from .test_stream_validator import closed

MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
START = {
    "type": "message_start",
    "message": {**MESSAGE, "usage": {"input_tokens": 5, "output_tokens": 1}},
}
END = {
    "type": "message_delta",
    "delta": {"stop_reason": "end_turn", "stop_sequence": None},
    "usage": {"output_tokens": 2},
}
STOP = {"type": "message_stop"}


def opened(index: int) -> dict[str, Any]:
    block = {"type": "text", "text": ""}
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, piece: str = "x", kind: str = "text_delta") -> dict[str, Any]:
    name = "text" if kind == "text_delta" else "partial_json"
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, name: piece}}


def stream(**context: Any) -> AnthropicStream:
    made = DIALECT.stream(ResponseContext(input_estimate=9, **context))
    assert isinstance(made, AnthropicStream)
    return made


def fed(*events: dict[str, Any]) -> tuple[AnthropicStream, list[dict[str, Any]]]:
    made = stream()
    return made, [emitted for event in events for emitted in made.feed(event)]


@for_each("usage", [None, {}, {"input_tokens": None, "output_tokens": "x"}])
def test_usage_that_a_server_leaves_out_is_estimated_because_sdks_read_it(usage):
    start = {**START, "message": {"id": "m", "usage": usage}}
    end = {**END, "usage": usage}

    following, emitted = fed(start, opened(0), delta(0, "x" * 8), closed(0), end)

    first, last = emitted[0]["message"]["usage"], emitted[-1]["usage"]
    assert (first["input_tokens"], first["output_tokens"]) == (9, 0)
    assert last["output_tokens"] == 3
    assert (following.usage.input, following.usage.output) == (9, 3)
    assert (following.usage.source, following.usage.output_source) == ("estimated", "estimated")
    assert ESTIMATED_USAGE in following.notes


@for_each(
    "usage",
    [
        {"input_tokens": "7", "output_tokens": "3"},
        {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
        {"input_tokens": 7.0, "output_tokens": 3.0},
    ],
)
def test_counts_in_another_spelling_are_counts(usage):
    following, emitted = fed(
        {**START, "message": {"id": "m", "usage": usage}}, {**END, "usage": usage}
    )

    for event_usage in (emitted[0]["message"]["usage"], emitted[-1]["usage"]):
        assert event_usage["output_tokens"] == 3
    assert emitted[0]["message"]["usage"]["input_tokens"] == 7
    assert (following.usage.input, following.usage.output) == (7, 3)
    assert following.usage.source == "reported"
    assert not following.notes


@for_each(
    ("reason", "expected"),
    [("stop", "end_turn"), ("LENGTH", "max_tokens"), ("tool_calls", "tool_use"), ("new", "new")],
)
def test_stop_reasons_of_openai_become_anthropic_s(reason, expected):
    end = {**END, "delta": {"stop_reason": reason, "stop_sequence": None}}

    following, emitted = fed(START, end)

    assert emitted[-1]["delta"]["stop_reason"] == following.stop_reason == expected
    assert (FOREIGN_REASON in following.notes) == (reason != expected)


@for_each(
    ("value", "expected"),
    [('{"a": 1}', {"a": 1}), (None, {}), ("", {}), ('{"a": ', '{"a": ')],
)
def test_the_input_of_a_whole_call_is_an_object(value, expected):
    body = {**MESSAGE, "content": [{**CALL, "input": value}], "stop_reason": "tool_use"}
    following = stream(whole=True)

    message = fold(following.feed_body({**body, "usage": {"input_tokens": 5, "output_tokens": 1}}))

    assert message["content"][0]["input"] == expected
    assert following.is_changed


def test_a_reported_count_stays_reported_beside_an_estimated_one():
    following, _ = fed({**START, "message": {"id": "m", "usage": None}}, END)

    usage = following.usage
    assert (usage.input, usage.output) == (9, 2)
    assert (usage.source, usage.output_source) == ("estimated", "reported")


CALL = {"type": "tool_use", "id": "t", "name": "f"}


def inputs_of(events):
    return [block.get("input") for block in fold(events)["content"]]


@for_each(
    ("between", "expected"),
    [
        ([closed(0)], [{"a": 1}]),
        ([], [{"a": 1}]),
        ([delta(0, "", "input_json_delta"), closed(0)], [{"a": 1}]),
        ([delta(0, '{"b":2}', "input_json_delta"), closed(0)], [{"b": 2}]),
        ([opened(1), closed(0), closed(1)], [{"a": 1}, None]),
    ],
)
@for_each("early", [{"a": 1}, '{"a": 1}'])
def test_an_input_in_the_start_becomes_one_delta(early, between, expected):
    start = {**opened(0), "content_block": {**CALL, "input": early}}

    _, emitted = fed(START, start, *between, END, STOP)

    assert emitted[1]["content_block"]["input"] == {}
    assert inputs_of(emitted) == expected


def test_the_calls_of_anthropic_s_code_execution_pass_unchanged():
    block = {**CALL, "input": {"a": 1}, "caller": {"type": "code_execution_20260120"}}
    start = {**opened(0), "content_block": block}

    _, emitted = fed(START, start, closed(0), END)

    assert emitted[1] is start


SECOND = {**START, "message": {**START["message"], "id": "msg_2"}}


def test_a_second_generation_ends_the_stream_with_an_error_to_ask_again_for():
    following, emitted = fed(START, opened(0), delta(0), SECOND, opened(0), delta(0))

    assert following.error is SPLICED
    assert [event["type"] for event in emitted[-2:]] == ["content_block_stop", "error"]
    assert emitted[-1]["error"]["type"] == "overloaded_error"


def test_a_client_that_does_not_stream_gets_the_second_generation_alone():
    following = stream(whole=True)
    events = [START, opened(0), delta(0, "one"), SECOND, opened(0), delta(0, "two"), closed(0)]

    message = fold(following.feed(*events, END, STOP))

    assert (message["id"], [block["text"] for block in message["content"]]) == ("msg_2", ["two"])
    assert FIRST_DROPPED in following.notes
    assert following.error is None


def test_the_same_start_again_is_ignored():
    following, emitted = fed(START, opened(0), START, delta(0), closed(0), END)

    assert following.error is None
    assert [event["type"] for event in emitted].count("message_start") == 1
