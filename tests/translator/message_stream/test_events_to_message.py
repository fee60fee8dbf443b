from translator.message_stream.events_to_message import MessageFold, fold

START = {
    "type": "message_start",
    "message": {"id": "m", "content": [], "usage": {"input_tokens": 1, "output_tokens": 0}},
}


def opened(index, block):
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index, **fields):
    return {"type": "content_block_delta", "index": index, "delta": fields}


def test_a_stream_folds_into_its_message():
    events = [
        {"type": "ping"},
        START,
        opened(0, {"type": "thinking", "thinking": "", "signature": ""}),
        delta(0, type="thinking_delta", thinking="w"),
        delta(0, type="thinking_delta", thinking="hy"),
        delta(0, type="signature_delta", signature="sig"),
        {"type": "content_block_stop", "index": 0},
        opened(1, {"type": "text", "text": ""}),
        delta(1, type="text_delta", text="a"),
        delta(1, type="citations_delta", citation={"url": "1"}),
        delta(1, type="citations_delta", citation={"url": "2"}),
        opened(2, {"type": "tool_use", "id": "c", "name": "f", "input": {}}),
        delta(2, type="input_json_delta", partial_json=""),
        delta(2, type="input_json_delta", partial_json='{"a":'),
        delta(2, type="input_json_delta", partial_json="1}"),
        opened(3, {"type": "tool_use", "id": "d", "name": "f", "input": {}}),
        delta(3, type="input_json_delta", partial_json="{oops"),
        opened(4, {"type": "redacted_thinking", "data": "x"}),
        opened(5, {"type": "compaction", "content": None}),
        delta(5, type="compaction_delta", content="short"),
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {"output_tokens": 9, "input_tokens": None},
        },
        {"type": "message_stop"},
    ]

    assert fold(events) == {
        "id": "m",
        "content": [
            {"type": "thinking", "thinking": "why", "signature": "sig"},
            {"type": "text", "text": "a", "citations": [{"url": "1"}, {"url": "2"}]},
            {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
            {"type": "tool_use", "id": "d", "name": "f", "input": "{oops"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "compaction", "content": "short"},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 9},
    }


def test_a_partial_stream_folds_without_a_start():
    folding = MessageFold()
    assert folding.message == {}

    for event in [
        START,
        opened(0, {"type": "text", "text": ""}),
        delta(0, type="text_delta", text="a"),
    ]:
        folding.feed(event)
    assert folding.message["content"] == [{"type": "text", "text": "a"}]

    folding.feed(delta(0, type="text_delta", text="b"))
    folding.feed(delta(7, type="text_delta", text="nowhere"))
    assert folding.message["content"] == [{"type": "text", "text": "ab"}]


def test_the_error_of_a_failed_stream_is_stored():
    folding = MessageFold()
    folding.feed({"type": "error", "error": {"type": "api_error", "message": "x"}})

    assert folding.error == {"type": "api_error", "message": "x"}
    assert folding.message == {}


def test_content_of_message_start_is_preserved():
    whole = {"type": "message_start", "message": {"content": [{"type": "text", "text": "x"}]}}

    assert fold([whole, {"type": "message_stop"}])["content"] == [{"type": "text", "text": "x"}]


def test_the_output_length_is_known_during_the_stream():
    folding = MessageFold()
    assert (folding.characters, folding.last_block_type) == (0, "")

    folding.feed(opened(0, {"type": "thinking", "thinking": ""}))
    folding.feed(delta(0, type="thinking_delta", thinking="abc"))
    assert (folding.characters, folding.last_block_type) == (3, "thinking")

    folding.feed(opened(1, {"type": "text", "text": ""}))
    for piece in ("de", "f"):
        folding.feed(delta(1, type="text_delta", text=piece))
    assert (folding.characters, folding.last_block_type) == (6, "text")
    assert folding.characters == 6  # a second read does not count again
