import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.grammar import faults_of_events
from translator.anthropic.fold import fold
from translator.anthropic.usage import Usage
from translator.anthropic_upstream import DIALECT
from translator.anthropic_upstream.stream import AnthropicStream
from translator.dialect import AnswerContext, UpstreamError
from translator.sse import SSEDecoder

from .test_guard import END, ERROR, START, STOP, closed, delta, opened

CORPUS = Path(__file__).parents[4] / "shared" / "corpus"
TEXT = [START, opened(0), delta(0), closed(0), END, STOP]


def stream() -> AnthropicStream:
    made = DIALECT.stream(AnswerContext())
    assert isinstance(made, AnthropicStream)
    return made


def fed(*events: dict) -> tuple[AnthropicStream, list[dict]]:
    made = stream()
    return made, [said for event in events for said in made.feed(event)]


def recordings(kind: str) -> list[Path]:
    files = sorted((CORPUS / kind).glob("*"))
    if not files:
        pytest.skip("NO RECORDINGS: ../shared/corpus is not here, only small cases are tried")
    return files


def test_recorded_streams_pass_untouched_and_read():
    for file in recordings("anthropic-stream"):
        decoder = SSEDecoder()
        events = [
            json.loads(event.data) for event in decoder.feed(file.read_bytes()) + decoder.end()
        ]
        following, said = fed(*events)

        assert following.end() == [], file.name
        assert (following.error, following.fault) == (None, None), file.name
        assert all(a is b for a, b in zip(events, said, strict=True)), file.name
        assert following.usage.source == "reported"
        assert following.stop_reason
        assert following.upstream_id.startswith("msg")


def test_recorded_messages_are_the_streams_that_they_would_have_been():
    for file in recordings("anthropic-json"):
        message = json.loads(file.read_text())
        following = stream()

        events = following.feed_whole(message)

        assert fold(events) == message, file.name
        assert following.finished
        assert following.stop_reason == message["stop_reason"]
        assert following.usage.output == message["usage"]["output_tokens"]


def test_what_it_learns():
    following, said = fed({"type": "ping"}, *TEXT)

    assert said == [{"type": "ping"}, *TEXT]
    assert following.finished
    assert following.end() == following.feed(START) == following.feed_whole({}) == []
    assert (following.upstream_id, following.upstream_model) == ("msg_1", "m")
    assert following.stop_reason == "end_turn"
    assert following.usage == Usage(input=1, output=2, source="reported")


def test_unknown_events_pass_and_are_counted():
    following, said = fed({"type": "hello"}, START, {"type": "hello"})

    assert len(said) == 3
    assert following.unknown == {"hello": 2}


@pytest.mark.parametrize("cut", range(len(TEXT)))
def test_a_cut_stream_ends_in_an_error_and_never_in_message_stop(cut):
    following, said = fed(*TEXT[:cut])

    said += following.end()

    assert said[-1]["type"] == "error"
    assert following.error.message == "upstream stream ended early"
    assert [fault for fault in faults_of_events(said) if not fault.startswith("I12")] == []


def test_the_output_of_a_broken_answer_is_estimated():
    long = {**delta(0), "delta": {"type": "text_delta", "text": "x" * 400}}

    following, _ = fed(START, opened(0), long)

    assert following.usage == Usage(
        input=1, output=100, source="reported", output_source="estimated"
    )
    assert stream().usage == Usage()


def test_a_server_may_report_no_usage():
    following, _ = fed({**START, "message": {"id": "m", "usage": None}}, END)

    assert following.usage == Usage(output=2)


def test_its_own_error_passes_and_an_open_block_is_closed_before_it():
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}

    first, said = fed(overloaded)
    assert said == [overloaded]
    assert first.error == UpstreamError(
        status=529, error_type="overloaded_error", message="Overloaded"
    )
    _, said = fed(START, opened(0), delta(0), overloaded)
    assert said[-2:] == [closed(0), overloaded]


def test_an_illegal_move_ends_correctly_and_is_recorded():
    following, said = fed(START, opened(0), delta(0), opened(1), delta(1))

    assert [event["type"] for event in said[-2:]] == ["content_block_stop", "error"]
    assert faults_of_events(said) == []
    assert "started" in str(following.fault) or "content_block_start" in str(following.fault)


def test_a_cause_from_outside_ends_it_once():
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
def test_no_event_of_an_upstream_can_break_it(data, events):
    following = stream()
    said = []
    for event in events:
        name = data.draw(st.sampled_from(sorted(event)))
        said += following.feed({**event, name: data.draw(JSON)})
    said += following.feed(data.draw(JSON)) + following.end()

    assert following.finished
    assert said[-1]["type"] in ("error", "message_stop")
    assert following.usage.to_wire()


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"type": "completion"},
        {"type": "message", "content": [5], "usage": {}},
        {"type": "message", "content": None, "usage": {}},
    ],
)
def test_a_whole_answer_that_is_none_is_an_error(body):
    following = stream()

    assert [event["type"] for event in following.feed_whole(body)] == ["error"]
    assert following.error.status == 502


def test_a_whole_error_is_an_error():
    following = stream()

    assert following.feed_whole(ERROR) == [ERROR]
    assert following.error.error_type == "api_error"


def test_a_signature_says_nothing_that_counts_as_output():
    thought = {**opened(0), "content_block": {"type": "thinking", "thinking": "", "signature": ""}}
    signed = {**delta(0), "delta": {"type": "signature_delta", "signature": "x" * 4_000}}

    silent, _ = fed(START, thought)
    following, said = fed(START, thought, signed)

    assert said[-1] is signed
    assert following.usage.output == silent.usage.output
