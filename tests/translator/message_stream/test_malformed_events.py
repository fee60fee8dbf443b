"""A step that the grammar forbids, which is a bug of the translator, ends the stream in an error."""

import pytest

from translator.dialect import ResponseContext
from translator.errors import IllegalMove
from translator.message_stream.response_stream import INTERNAL_ERROR, end_on_malformed_data
from translator.openai_chat.chat_stream import ChatStream


def chunk(text):
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}


class StreamWithBugs(ChatStream):
    """A stream with handlers that the grammar forbids, as no handler of the translator should be."""

    @end_on_malformed_data
    def write_wrong_delta(self):
        self.composer.writer.write_delta({"type": "input_json_delta", "partial_json": "x"})

    @end_on_malformed_data
    def fail_and_continue(self):
        self.composer.fail(error_type="api_error", message="first")
        self.composer.writer.write_delta({"type": "text_delta", "text": "x"})


@pytest.fixture
def stream():
    return StreamWithBugs(ResponseContext(message_id="msg_1", model="m"))


def test_an_illegal_step_closes_the_block_and_sends_an_internal_error(stream):
    stream.feed(chunk("a"))

    events = stream.write_wrong_delta()

    assert [event["type"] for event in events] == ["content_block_stop", "error"]
    assert events[-1]["error"] == {"type": "api_error", "message": "internal error"}
    assert stream.finished
    assert stream.error is INTERNAL_ERROR
    assert isinstance(stream.fault, IllegalMove)
    assert stream.feed(chunk("c")) == []


def test_an_illegal_step_after_the_end_sends_nothing_more(stream):
    stream.feed(chunk("a"))

    events = stream.fail_and_continue()

    assert [event["type"] for event in events] == ["content_block_stop", "error"]
    assert isinstance(stream.fault, IllegalMove)
