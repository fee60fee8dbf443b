import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.upstreams.grammar import faults_of_events
from tests.for_each import for_each
from translator.anthropic.usage import Usage
from translator.anthropic_upstream import DIALECT
from translator.anthropic_upstream.stream import AnthropicStream
from translator.dialect import ResponseContext, UpstreamError
from translator.message_stream.events_to_message import fold
from translator.stream.sse import SSEDecoder

from .test_stream_validator import END, ERROR, START, STOP, closed, delta, opened

CORPUS = Path(__file__).parents[4] / "shared" / "corpus"
TEXT = [START, opened(0), delta(0), closed(0), END, STOP]


def stream() -> AnthropicStream:
    made = DIALECT.stream(ResponseContext())
    assert isinstance(made, AnthropicStream)
    return made


def fed(*events: dict) -> tuple[AnthropicStream, list[dict]]:
    made = stream()
    return made, [emitted for event in events for emitted in made.feed(event)]


def recordings(kind: str) -> list[Path]:
    files = sorted((CORPUS / kind).glob("*"))
    if not files:
        pytest.skip("NO RECORDINGS: ../shared/corpus is not here, only small cases are tried")
    return files


def test_recorded_streams_pass_unchanged_and_are_parsed():
    for file in recordings("anthropic-stream"):
        decoder = SSEDecoder()
        events = [
            json.loads(event.data) for event in decoder.feed(file.read_bytes()) + decoder.end()
        ]
        following, emitted = fed(*events)

        assert following.end() == [], file.name
        assert (following.error, following.fault) == (None, None), file.name
        assert all(a is b for a, b in zip(events, emitted, strict=True)), file.name
        assert following.usage.source == "reported"
        assert following.stop_reason
        assert following.upstream_id.startswith("msg")


def test_recorded_messages_become_equivalent_streams():
    for file in recordings("anthropic-json"):
        message = json.loads(file.read_text())
        following = stream()

        events = following.feed_body(message)

        assert fold(events) == message, file.name
        assert following.finished
        assert following.stop_reason == message["stop_reason"]
        assert following.usage.output == message["usage"]["output_tokens"]


def test_the_stream_records_usage_and_stop_reason():
    following, emitted = fed({"type": "ping"}, *TEXT)

    assert emitted == [{"type": "ping"}, *TEXT]
    assert following.finished
    assert following.end() == following.feed(START) == following.feed_body({}) == []
    assert (following.upstream_id, following.upstream_model) == ("msg_1", "m")
    assert following.stop_reason == "end_turn"
    assert following.usage == Usage(input=1, output=2, source="reported")


def test_unknown_events_pass_and_are_counted():
    following, emitted = fed({"type": "hello"}, START, {"type": "hello"})

    assert len(emitted) == 3
    assert following.unknown == {"hello": 2}


@for_each("cut", range(len(TEXT)))
def test_a_cut_stream_ends_in_an_error_and_never_in_message_stop(cut):
    following, emitted = fed(*TEXT[:cut])

    emitted += following.end()

    assert emitted[-1]["type"] == "error"
    assert following.error.message == "upstream stream ended early"
    assert [fault for fault in faults_of_events(emitted) if not fault.startswith("I12")] == []


def test_the_output_of_a_broken_answer_is_estimated():
    long = {**delta(0), "delta": {"type": "text_delta", "text": "x" * 400}}

    following, _ = fed(START, opened(0), long)

    assert following.usage == Usage(
        input=1, output=118, source="reported", output_source="estimated"
    )
    assert stream().usage == Usage()


def test_an_upstream_error_passes_after_the_open_block_closes():
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}

    first, emitted = fed(overloaded)
    assert emitted == [overloaded]
    assert first.error == UpstreamError(
        status=529, error_type="overloaded_error", message="Overloaded"
    )
    _, emitted = fed(START, opened(0), delta(0), overloaded)
    assert emitted[-2:] == [closed(0), overloaded]


def test_an_illegal_event_ends_the_stream_with_an_error():
    misplaced = {**delta(0), "delta": {"type": "thinking_delta", "thinking": "x"}}

    following, emitted = fed(START, opened(0), delta(0), misplaced)

    assert [event["type"] for event in emitted[-2:]] == ["content_block_stop", "error"]
    assert faults_of_events(emitted) == []
    assert str(following.fault) == "thinking_delta in a block of type text"


def test_an_external_failure_ends_the_stream_once():
    following, _ = fed(START)
    timeout = UpstreamError(status=504, error_type="timeout_error", message="too slow")

    assert following.fail(timeout) == [
        {"type": "error", "error": {"type": "timeout_error", "message": "too slow"}}
    ]
    assert following.error is timeout
    assert following.fail(timeout) == []


JSON = st.recursive(
    st.none() | st.integers(0, 2) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "index", "id", "usage", "text"]), inner, max_size=3
        )
    ),
    max_leaves=5,
)


@given(data=st.data(), events=st.lists(st.sampled_from([*TEXT, ERROR]), max_size=9))
def test_any_upstream_event_gives_a_legal_stream(data, events):
    following = stream()
    emitted = []
    for event in events:
        name = data.draw(st.sampled_from(sorted(event)))
        emitted += following.feed({**event, name: data.draw(JSON)})
    emitted += following.feed(data.draw(JSON)) + following.end()

    assert following.finished
    assert emitted[-1]["type"] in ("error", "message_stop")
    assert following.usage.to_wire()


@for_each(
    "body",
    [
        {},
        [],
        {"type": "completion"},
        {"type": "message", "content": [5], "usage": {}},
        {"type": "message", "content": None, "usage": {}},
    ],
)
def test_an_invalid_whole_response_is_an_error(body):
    following = stream()

    assert [event["type"] for event in following.feed_body(body)] == ["error"]
    assert following.error.status == 502


def test_an_error_body_becomes_an_error_event():
    following = stream()

    assert following.feed_body(ERROR) == [ERROR]
    assert following.error.error_type == "api_error"


def test_a_signature_does_not_count_as_output():
    thought = {**opened(0), "content_block": {"type": "thinking", "thinking": "", "signature": ""}}
    signed = {**delta(0), "delta": {"type": "signature_delta", "signature": "x" * 4_000}}

    silent, _ = fed(START, thought)
    following, emitted = fed(START, thought, signed)

    assert emitted[-1] is signed
    assert following.usage.output == silent.usage.output
