"""Compare the translation of every recording with a plain reading of its JSON."""

import json
import random
from pathlib import Path

import pytest

from tests.fakes.upstreams import recordings
from tests.fakes.upstreams.grammar import faults_of_events
from tests.fakes.upstreams.recordings import ResponseSummary, summary_of_message
from tests.fakes.upstreams.stream_cuts import Cut, pieces
from tests.for_each import for_each
from tests.lanes import repeat
from translator import openai_chat, openai_responses
from translator.dialect import Dialect, ResponseContext, Stream
from translator.message_stream.events_to_message import fold
from translator.stream.sse import SSEDecoder

STREAMS = [
    *recordings.recordings("responses-stream"),
    *recordings.recordings("chat-stream"),
]
SOME_STREAMS = STREAMS[:: repeat(fast=4, slow=1)]
WHOLE = [*recordings.recordings("responses-json"), *recordings.recordings("chat-json")]
CONTEXT = ResponseContext(message_id="msg_corpus", model="claude-corpus", input_estimate=1)

pytestmark = pytest.mark.skipif(not STREAMS, reason=recordings.ABSENT)


def ids(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


def dialect_of(path: Path) -> Dialect:
    chat = path.parent.name.startswith("chat")
    return openai_chat.DIALECT if chat else openai_responses.DIALECT


def streamed(path: Path, cut: Cut = "whole") -> tuple[Stream, list[dict]]:
    """Return the stream and the Anthropic events for a recording whose bytes are split like this."""
    decoder = SSEDecoder()
    stream = dialect_of(path).stream(CONTEXT)
    emitted: list[dict] = []
    frames = [e for piece in pieces(path.read_bytes(), cut) for e in decoder.feed(piece)]
    for event in [*frames, *decoder.end()]:
        if not stream.finished and event.data.strip() != b"[DONE]":
            emitted += stream.feed(json.loads(event.data))
    return stream, [*emitted, *stream.end()]


def assert_output(message: dict, expected: ResponseSummary) -> None:
    actual = summary_of_message(message)

    assert actual.text == expected.text
    assert actual.thinking == expected.thinking
    assert recordings.same_calls(expected.calls, actual.calls), (actual.calls, expected.calls)
    assert actual.stop_reason == expected.stop_reason
    if expected.usage is not None:
        assert actual.usage == expected.usage


@for_each("path", STREAMS, ids=ids)
def test_a_recorded_stream_equals_its_recording(path):
    expected = recordings.summary_of_recording(path)

    stream, emitted = streamed(path)

    assert faults_of_events(emitted) == []
    if expected.failed:
        assert emitted[-1]["type"] == "error"
        assert stream.error is not None
    else:
        assert_output(fold(emitted), expected)
        assert stream.fault is None
        assert stream.usage.source == ("reported" if expected.usage else "estimated")


@pytest.mark.repeated
@for_each("path", SOME_STREAMS, ids=ids)
def test_cutting_a_recorded_stream_anywhere_changes_nothing(path):
    _, whole = streamed(path)

    for cut in ("lines", 1, 2, 3):
        assert streamed(path, cut)[1] == whole
    if path.stat().st_size < 20_000:
        assert streamed(path, "bytes")[1] == whole


@pytest.mark.repeated
@for_each("path", SOME_STREAMS, ids=ids)
def test_a_recorded_stream_that_is_cut_off_ends_in_an_error(path):
    events = recordings.events_of(path.read_bytes())
    ends = [n for n, event in enumerate(events) if is_end(event)]
    last = ends[0] if ends else len(events)
    rng = random.Random(path.name)  # noqa: S311 - seeded on purpose

    for stop in {0, 1, last, *(rng.randint(0, last) for _ in range(5))}:
        stream = dialect_of(path).stream(CONTEXT)
        emitted = [each for event in events[:stop] for each in stream.feed(event)]
        emitted += stream.end()

        assert faults_of_events(emitted) == []
        assert emitted[-1]["type"] == "error"


def is_end(event: dict) -> bool:
    if "choices" in event:
        finished = any(choice.get("finish_reason") for choice in event["choices"][:1])
        return finished or bool(event.get("usage") and not event["choices"])
    return event.get("type") in recordings.RESPONSES_ENDS or "error" in event


WITHOUT_ITS_ANSWER = {
    "ai__openai-responses-openai-error.1": "ends in an error",
    "ai__openai-responses-openai-mcp-tool-approval.1": "waits for an approval",
    "ai__openai-responses-openai-shell-container.1": "edited: its deltas and its end differ",
}
ENDING_WITH_ITS_ANSWER = [
    path
    for path in recordings.recordings("responses-stream")
    if path.stem not in WITHOUT_ITS_ANSWER
]


@for_each("path", ENDING_WITH_ITS_ANSWER, ids=ids)
def test_a_recorded_stream_folds_to_the_answer_that_it_ends_with(path):
    ends = [e for e in recordings.events_of(path.read_bytes()) if is_end(e)]
    whole = fold(dialect_of(path).stream(CONTEXT).feed_body(ends[-1]["response"]))

    folded = fold(streamed(path)[1])
    assert [block["type"] for block in folded["content"]] == [b["type"] for b in whole["content"]]
    assert summary_of_message(folded) == summary_of_message(whole)


@for_each("path", WHOLE, ids=ids)
def test_a_recorded_whole_response_equals_its_recording(path):
    expected = recordings.summary_of_recording(path)

    emitted = dialect_of(path).stream(CONTEXT).feed_body(json.loads(path.read_bytes()))

    assert faults_of_events(emitted) == []
    if expected.failed:
        assert emitted[-1]["type"] == "error"
    else:
        assert_output(fold(emitted), expected)
