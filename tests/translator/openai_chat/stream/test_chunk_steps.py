"""Several chunks in one step, chunks without text, and content that waits for other content."""

from tests.translator.openai_chat.responses import calls, chunk, feed_all, piece, stream
from translator.message_stream.events_to_message import fold


def kinds(events):
    return [event["type"] for event in events]


def test_chunks_behind_an_error_in_one_step_are_ignored():
    decoder = stream()
    failed = {"choices": [], "error": {"message": "no more"}}

    events = decoder.feed(chunk(content="a"), failed, chunk(content="b"))

    assert fold(events)["content"] == [{"type": "text", "text": "a", "citations": None}]
    assert kinds(events)[-1] == "error"


def test_chunks_behind_a_stop_sequence_in_one_step_are_ignored():
    decoder = stream(stop_sequences=("STOP",))

    events = decoder.feed(chunk(content="a STOP"), chunk(content="b"))

    assert fold(events)["content"] == [{"type": "text", "text": "a ", "citations": None}]
    assert decoder.finished


def test_reasoning_between_the_pieces_of_a_call_waits_for_it():
    first = calls(piece(index=0, id="c", name="f", arguments="{"))
    last = calls(piece(index=0, arguments="}"))
    decoder = stream()

    reply = fold(feed_all(decoder, first, chunk(reasoning_content="hm"), last, chunk("tool_calls")))

    assert [block["type"] for block in reply["content"]] == ["tool_use", "thinking"]
    assert reply["content"][0]["input"] == {}


def test_a_content_part_without_text_only_starts_the_message():
    assert kinds(stream().feed(chunk(content=[{"type": "text"}]))) == ["message_start"]


def test_a_stop_sequence_in_a_refusal_ends_the_response():
    decoder = stream(stop_sequences=("STOP",))

    events = decoder.feed(chunk(refusal="No STOP of it"))

    assert fold(events)["content"] == [{"type": "text", "text": "No ", "citations": None}]
    assert decoder.stop_reason == "stop_sequence"


def test_an_empty_part_of_reasoning_starts_no_block():
    empty = {"type": "thinking", "thinking": []}
    parts = [empty, {"type": "text", "text": "Yes."}]

    reply = fold(feed_all(stream(), chunk(content=parts), chunk("stop")))

    assert [block["type"] for block in reply["content"]] == ["text"]
