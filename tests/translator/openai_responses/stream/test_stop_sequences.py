"""Stop sequences in the Responses stream: where the answer ends and what its usage is."""

from tests.for_each import for_each
from tests.translator.openai_responses.responses import (
    blocks,
    call,
    completed,
    created,
    done,
    output_message,
    stream,
    text,
)
from translator.anthropic.usage import Usage
from translator.message_stream.events_to_message import fold
from translator.message_stream.open_block import StopScanner


def test_a_stop_sequence_ends_the_answer_at_once_with_estimated_usage():
    machine = stream(stop_sequences=("END",), input_estimate=7)
    machine.feed(created())

    events = machine.feed(text("four END more"))

    end = events[-2]["delta"]
    assert (end["stop_reason"], end["stop_sequence"]) == ("stop_sequence", "END")
    assert events[-2]["usage"] == Usage(input=7, output=3).to_delta()
    assert machine.usage.source == "estimated"
    assert machine.finished


@for_each("size", [1, 2, 7, 100])
def test_the_estimate_at_a_stop_sequence_is_the_same_however_the_text_is_cut(size):
    whole = "twelve times END and a lot more that was read with it"
    machine = stream(stop_sequences=("END",))

    for start in range(0, len(whole), size):
        machine.feed(text(whole[start : start + size]))

    assert machine.usage.output == 5  # 16 characters: the text and the sequence


@for_each("kind", ["text", "item"])
def test_a_stop_sequence_is_found_in_whole_texts_too(kind):
    whole = {"type": "response.output_text.done", "output_index": 0, "text": "a END b"}
    event = whole if kind == "text" else done(0, **output_message("a END b"))

    [block] = blocks(created(), event, stop_sequences=("END",))
    assert block["text"] == "a "


def test_a_stop_sequence_in_a_whole_response_preserves_the_reported_usage():
    body = completed(
        output_message("a END b"), call(), usage={"input_tokens": 5, "output_tokens": 3}
    )["response"]

    folded = fold(stream(stop_sequences=("END",)).feed_body(body))

    assert folded["content"] == [{"type": "text", "text": "a ", "citations": None}]
    assert (folded["stop_reason"], folded["stop_sequence"]) == ("stop_sequence", "END")
    assert folded["usage"] == Usage(input=5, output=3).to_wire()


def test_arguments_and_reasoning_are_not_scanned_for_stop_sequences():
    scanner = StopScanner(("END",))
    assert scanner.feed("END")[1] == "END"

    reply = blocks(created(), completed(call('{"a":"END"}')), stop_sequences=("END",))

    assert reply[0]["input"] == {"a": "END"}
