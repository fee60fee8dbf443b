import pytest

from tests.for_each import for_each
from translator.anthropic_upstream.stream import message_to_events
from translator.message_stream.events_to_message import fold


@for_each(
    "block",
    [
        {"type": "text", "text": "x", "citations": [{"url": "1"}]},
        {"type": "text", "text": "x", "citations": None},
        {"type": "text", "text": ""},
        {"type": "thinking", "thinking": "why", "signature": "s"},
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
        {"type": "server_tool_use", "id": "t", "name": "f", "input": {}},
        {"type": "redacted_thinking", "data": "x"},
    ],
)
def test_a_block_folds_back_into_itself(block):
    message = {
        "id": "m",
        "type": "message",
        "content": [block],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
        "usage": {"output_tokens": 1},
    }

    assert fold(message_to_events(message)) == message


CITED = {"type": "text", "text": "x", "citations": [{"url": "1"}, {"url": "2"}]}


@for_each(
    ("block", "opening", "deltas"),
    [
        (
            CITED, {"type": "text", "text": ""},
            [
                {"type": "text_delta", "text": "x"},
                {"type": "citations_delta", "citation": {"url": "1"}},
                {"type": "citations_delta", "citation": {"url": "2"}},
            ],
        ),
        (
            {"type": "thinking", "thinking": "why", "signature": "s"},
            {"type": "thinking", "thinking": "", "signature": ""},
            [
                {"type": "thinking_delta", "thinking": "why"},
                {"type": "signature_delta", "signature": "s"},
            ],
        ),
        (
            {"type": "thinking", "thinking": ""},
            {"type": "thinking", "thinking": "", "signature": ""},
            [{"type": "signature_delta", "signature": ""}],
        ),
        *(
            (
                {"type": kind, "id": "t", "input": input_}, {"type": kind, "id": "t", "input": {}},
                [{"type": "input_json_delta", "partial_json": written}],
            )
            for kind in ("tool_use", "server_tool_use", "mcp_tool_use")
            for input_, written in (({"a": "é"}, '{"a":"é"}'), ({}, ""))
        ),
        ({"type": "redacted_thinking", "data": "x"}, {"type": "redacted_thinking", "data": "x"}, []),
    ],
)  # fmt: skip
def test_a_block_becomes_stream_events(block, opening, deltas):
    message = {"type": "message", "content": [{"type": "new"}, block], "usage": {}}

    _, _, _, start, *emitted, stop, _, _ = message_to_events(message)

    assert start == {"type": "content_block_start", "index": 1, "content_block": opening}
    assert [event["delta"] for event in emitted] == deltas
    assert [(event["type"], event["index"]) for event in emitted] == (
        [("content_block_delta", 1)] * len(deltas)
    )
    assert stop == {"type": "content_block_stop", "index": 1}


def test_only_messages_have_a_stream():
    with pytest.raises(ValueError, match="completion"):
        message_to_events({"type": "completion"})
