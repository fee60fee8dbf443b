"""A step that the grammar forbids, which is a bug of the translator, ends the stream in an error."""

import pytest

from translator.dialect import ResponseContext
from translator.errors import IllegalMove
from translator.message_stream.malformed_events import INTERNAL_ERROR
from translator.message_stream.message_composer import MessageComposer
from translator.openai_chat.stream.chat_stream import ChatStream


def chunk(text):
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}


@pytest.fixture
def stream():
    return ChatStream(ResponseContext(message_id="msg_1", model="m"))


def test_an_illegal_step_closes_the_block_and_sends_an_internal_error(stream, monkeypatch):
    stream.feed(chunk("a"))
    wrong = {"type": "input_json_delta", "partial_json": "x"}

    def send_wrong_delta(composer, _key, _piece):
        composer.writer.write_delta(wrong)

    # A bug is planted: no event can cause one.
    monkeypatch.setattr(MessageComposer, "add_text", send_wrong_delta)

    events = stream.feed(chunk("b"))

    assert [event["type"] for event in events] == ["content_block_stop", "error"]
    assert events[-1]["error"] == {"type": "api_error", "message": "internal error"}
    assert stream.finished
    assert stream.error is INTERNAL_ERROR
    assert isinstance(stream.fault, IllegalMove)
    assert stream.feed(chunk("c")) == []


def test_an_illegal_step_after_the_end_sends_nothing_more(stream, monkeypatch):
    def fail_twice(composer, _key, _piece):
        composer.fail(error_type="api_error", message="first")
        raise IllegalMove("planted")

    # A bug is planted: no event can cause one.
    monkeypatch.setattr(MessageComposer, "add_text", fail_twice)

    events = stream.feed(chunk("a"))

    assert [event["type"] for event in events] == ["message_start", "error"]
