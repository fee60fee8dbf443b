"""The order of servers whose blocks overlap is repaired; the content stays the same."""

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.upstreams.grammar import faults_of_events
from tests.for_each import for_each
from tests.lanes.hypothesis_profiles import law
from translator.anthropic.usage import Usage
from translator.anthropic_upstream import DIALECT, stream_repair
from translator.anthropic_upstream.stream import AnthropicStream
from translator.dialect import ResponseContext
from translator.message_stream.events_to_message import fold
from translator.stream.sse import SSEDecoder

from .test_stream_validator import END, START, STOP, closed, opened

RECORDINGS = Path(__file__).parents[4] / "shared" / "engines" / "recordings"
CALLED = {**END, "delta": {"stop_reason": "tool_use", "stop_sequence": None}}
CONTEXT = {"message_id": "msg_own", "model": "claude-x", "input_estimate": 9}


def fed(*events: dict) -> tuple[AnthropicStream, list[dict]]:
    stream = DIALECT.stream(ResponseContext(**CONTEXT))
    assert isinstance(stream, AnthropicStream)
    return stream, [emitted for event in events for emitted in stream.feed(event)]


def order_faults(emitted: list[dict]) -> list[str]:
    """Return the faults of the stream, without rules that Anthropic itself breaks.

    Anthropic may send empty blocks; the empty first delta of a call is a habit of the gateway.
    """
    habits = ("I12", "I5: a tool block's first delta", "I5: a tool block without its empty")
    return [fault for fault in faults_of_events(emitted) if not fault.startswith(habits)]


def texts(emitted: list[dict]) -> list[str]:
    return ["".join(block.get("text", ".")) for block in fold(emitted)["content"]]


def text(index: int, piece: str) -> dict:
    return _delta(index, {"type": "text_delta", "text": piece})


def thinking(index: int, piece: str) -> dict:
    return _delta(index, {"type": "thinking_delta", "thinking": piece})


def signature(index: int, value: str) -> dict:
    return _delta(index, {"type": "signature_delta", "signature": value})


def arguments(index: int, piece: str) -> dict:
    return _delta(index, {"type": "input_json_delta", "partial_json": piece})


def _delta(index: int, delta: dict) -> dict:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def started(index: int, **block: object) -> dict:
    return {"type": "content_block_start", "index": index, "content_block": block}


def call(index: int, name: str) -> dict:
    return started(index, type="tool_use", id=f"toolu_{name}", name=name, input={})


def unsigned(index: int) -> dict:
    return started(index, type="thinking", thinking="")


def signed(index: int) -> dict:
    return started(index, type="thinking", thinking="", signature="")


def reasons(stream: AnthropicStream) -> list[str]:
    return [note.reason for note in stream.notes]


def recorded(name: str) -> list[dict]:
    file = RECORDINGS / name
    if not file.exists():
        pytest.skip("NO RECORDINGS: ../shared/engines is not here")
    decoder = SSEDecoder()
    return [json.loads(each.data) for each in decoder.feed(file.read_bytes()) + decoder.end()]


def content_by_index(events: list[dict]) -> list[dict]:
    """Return the blocks of an illegal stream: what each index contains, in the order of starts."""
    message_start = [] if events[0]["type"] == "message_start" else [START]
    complete = copy.deepcopy([*message_start, *events])
    for event in complete:
        if event.get("content_block", {}).get("type") == "tool_use":
            event["content_block"].setdefault("input", {})  # llama.cpp omits it
    return fold(complete)["content"]


@for_each(
    "name",
    [
        "llamacpp-messages-no-message_start.sse",
        "llamacpp-messages-thinking-text.sse",
        "llamacpp-messages-two-tools.sse",
        "litellm-1.106.2-messages-two-tools.sse",
        "ccr-2.0.0-messages-zero-usage.sse",
    ],
)
def test_a_recorded_stream_becomes_legal_and_keeps_its_content(name):
    events = recorded(name)

    stream, emitted = fed(*events)

    assert order_faults(emitted) == []
    assert (stream.end(), stream.error, stream.fault) == ([], None, None)
    assert fold(emitted)["content"] == content_by_index(events)
    assert stream.stop_reason == fold(emitted)["stop_reason"]


def test_text_after_unsigned_thinking_leaves_at_once():
    stream, emitted = fed(START, unsigned(0), thinking(0, "hm"), opened(1), text(1, "a"))

    assert emitted[-1] == text(1, "a")
    assert order_faults([*emitted, closed(1), END, STOP]) == []
    late = signature(0, ""), closed(0), text(1, "b"), closed(1), END, STOP
    emitted += [each for event in late for each in stream.feed(event)]
    assert order_faults(emitted) == []
    assert texts(emitted) == [".", "ab"]
    assert reasons(stream) == ["the upstream's content blocks overlapped"]


def test_text_waits_for_the_signature_of_signed_thinking():
    stream, emitted = fed(
        START, signed(0), thinking(0, "hm"), opened(1), text(1, "a"), text(1, "b")
    )

    assert emitted[-1] == thinking(0, "hm")
    emitted += stream.feed(signature(0, "sig"), closed(0))
    assert emitted[-3:] == [closed(0), opened(1), text(1, "ab")]
    emitted += stream.feed(text(1, "c"), closed(1), END, STOP)
    assert order_faults(emitted) == []
    assert fold(emitted)["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "text", "text": "abc"},
    ]


def test_the_arguments_of_interleaved_calls_stay_with_their_call():
    events = [START, call(0, "a"), call(1, "b")]
    for pieces in zip('{"x": 1}', '{"y": 2}', strict=True):
        events += [arguments(index, piece) for index, piece in enumerate(pieces)]

    _, emitted = fed(*events, closed(0), closed(1), CALLED, STOP)

    assert order_faults(emitted) == []
    assert [block["input"] for block in fold(emitted)["content"]] == [{"x": 1}, {"y": 2}]


def test_interleaved_texts_are_delivered_whole():
    events = [START, opened(0), text(0, "a"), opened(1), text(1, "b"), text(0, "c"), text(1, "d")]

    _, emitted = fed(*events, text(0, "e"), closed(0), closed(1), END, STOP)

    assert order_faults(emitted) == []
    assert texts(emitted) == ["a", "bd", "ce"]


OVERLAP = (START, opened(0), text(0, "a"), opened(1))
"""The start of a stream whose blocks overlap."""


@for_each(
    ("events", "content", "reason"),
    [
        ([opened(0), text(0, "a"), closed(0)], ["a"], "the upstream sent no message_start"),
        ([START, START, opened(0), text(0, "a"), closed(0)], ["a"], "sent message_start again"),
        ([START, opened(0), text(0, "a")], ["a"], "did not stop"),
        (
            [START, opened(0), text(0, "a"), opened(1), text(0, "b"), closed(0), closed(1)],
            ["a", "", "b"],
            "arrived after",
        ),
        ([START, opened(1), text(1, "a"), closed(1)], ["a"], "not consecutive"),
        (
            [START, opened(0), text(0, "a"), opened(0), text(0, "b"), closed(0)],
            ["a", "b"],
            "did not stop",
        ),
        ([START, opened(0), text(0, "a"), closed(0), closed(0)], ["a"], "that was not open"),
        (
            [*OVERLAP, signature(0, ""), signature(0, "late"), text(1, "b"), closed(1), closed(0)],
            ["a", "b"],
            "a signature arrived after",
        ),
    ],
)
def test_other_faults_of_the_order_are_repaired_with_a_note(events, content, reason):
    stream, emitted = fed(*events, END, STOP)

    assert order_faults(emitted) == []
    assert texts(emitted) == content
    assert any(reason in each for each in reasons(stream)), reasons(stream)
    assert {note.fate for note in stream.notes} <= {"repaired", "ignored"}


def test_a_missing_start_gets_the_id_and_model_that_the_client_expects():
    stream, emitted = fed(opened(0))

    message = emitted[0]["message"]
    assert (message["id"], message["model"]) == ("msg_own", "claude-x")
    assert message["usage"] == Usage(input=9, output=0).to_wire()
    assert stream.upstream_id == ""
    assert stream.usage.input is None  # the estimate is not a reported count


@for_each(
    ("events", "reason", "code"),
    [
        (
            [START, opened(0), _delta(0, {"type": "thinking_delta", "thinking": "x"})],
            "thinking_delta in a block of type text",
            "illegal_content_block_delta",
        ),
        ([START, arguments(0, "{")], "a block that is not open", "illegal_content_block_delta"),
        ([START, text(7, "x")], "a block that is not open", "illegal_content_block_delta"),
        (
            [START, opened(0), text(0, "x"), closed(0), text(0, "y")],
            "a block that is not open",
            "illegal_content_block_delta",
        ),
        ([START, END, opened(0)], "after message_delta", "illegal_content_block_start"),
        ([START, STOP], "message_stop between blocks", "illegal_message_stop"),
        ([START, {"type": "content_block_stop"}], "malformed", "illegal_content_block_stop"),
        ([START, {"type": ["x"]}], "a malformed event", "illegal_event"),
        (
            [*OVERLAP, {"type": "content_block_start", "index": 2, "content_block": {"type": 1}}],
            "a type that is no string",
            "illegal_content_block_start",
        ),
        (
            [*OVERLAP, arguments(0, "{")],
            "input_json_delta for a block that is not open",
            "illegal_content_block_delta",
        ),
        ([*OVERLAP, text(1, None)], "text_delta without a string", "illegal_content_block_delta"),
    ],
)
def test_what_cannot_be_repaired_is_named_in_the_error(events, reason, code):
    stream, emitted = fed(*events)

    assert emitted[-1]["type"] == "error"
    assert order_faults(emitted) == []
    assert stream.error is not None
    assert stream.error.message.startswith("upstream sent a bad event: ")
    assert reason in stream.error.message
    assert stream.error.code == code


def test_unknown_events_and_deltas_pass_while_blocks_overlap():
    citation = _delta(1, {"type": "citations_delta", "citation": {"cited_text": "x"}})

    _, emitted = fed(*OVERLAP, {"type": "new_event"}, citation, closed(0), closed(1), END, STOP)

    assert {"type": "new_event"} in emitted
    assert [
        each["delta"]["type"] for each in emitted if each.get("index") == 1 and "delta" in each
    ] == ["citations_delta"]


def test_a_delta_without_text_waits_for_the_block_before_its_own():
    call = {"type": "tool_use", "id": "call_1", "name": "bash", "input": {}}
    start = {"type": "content_block_start", "index": 0, "content_block": call}
    citation = _delta(1, {"type": "citations_delta", "citation": {"cited_text": "x"}})

    stream, waiting = fed(START, start, opened(1), citation, text(1, "a"))
    emitted = waiting + [each for event in (closed(0), closed(1)) for each in stream.feed(event)]

    assert waiting == [START, start]
    assert [each["delta"]["type"] for each in emitted if "delta" in each] == [
        "citations_delta",
        "text_delta",
    ]


def test_an_error_never_quotes_the_upstream():
    secret = "s3cret" * 1000

    stream, _ = fed(START, opened(0), {**text(0, "x"), "index": secret})

    assert stream.error is not None
    assert secret[:6] not in stream.error.message


def test_the_events_that_wait_are_bounded():
    quarter = arguments(1, "x" * (stream_repair.MAX_WAITING_CHARACTERS // 4))

    below, _ = fed(START, call(0, "a"), call(1, "b"), *[quarter] * 3)
    stream, emitted = fed(START, call(0, "a"), call(1, "b"), *[quarter] * 5)

    assert below.error is None
    assert stream.error is not None
    assert "too large" in stream.error.message
    assert order_faults(emitted) == []


def test_content_that_waits_is_sent_before_an_error():
    stream, emitted = fed(START, call(0, "a"), call(1, "b"), arguments(1, '{"y": 2}'))

    emitted += stream.end()

    assert [each["type"] for each in emitted][-1] == "error"
    assert order_faults(emitted) == []
    assert fold(emitted)["content"][1]["input"] == {"y": 2}


PIECES = st.sampled_from(["a", "b", ""])
INDICES = st.integers(0, 3)
EVENTS = st.one_of(
    st.sampled_from([START, END, STOP, {"type": "ping"}]),
    INDICES.map(opened),
    INDICES.map(unsigned),
    INDICES.map(signed),
    INDICES.map(lambda index: call(index, "t")),
    INDICES.map(closed),
    st.builds(text, INDICES, PIECES),
    st.builds(thinking, INDICES, PIECES),
    st.builds(signature, INDICES, PIECES),
    st.builds(arguments, INDICES, PIECES),
    INDICES.map(lambda index: started(index, type="hologram", text="x")),
)


@law
@given(events=st.lists(EVENTS, max_size=14))
def test_any_order_yields_a_legal_stream_that_ends_once(events):
    stream, emitted = fed(*events)
    emitted += stream.end()

    contents = (
        "I4",
        "I6",
        "I7: a delta after",
        "I7: a thinking block without",
        "I8: message_delta",
    )
    not_order = (*contents, "I8: stop", "I11", "I14")
    assert [fault for fault in order_faults(emitted) if not fault.startswith(not_order)] == []
    assert emitted[-1]["type"] in ("message_stop", "error")


@law
@given(
    count=st.integers(1, 4),
    order=st.randoms(use_true_random=False),
)
def test_any_interleaving_of_blocks_keeps_the_content_of_each_call(count, order):
    scripts = [
        [call(n, f"t{n}"), *(arguments(n, p) for p in f'{{"n": {n}}}'), closed(n)]
        for n in range(count)
    ]
    events = [START]
    while any(scripts):
        events.append(order.choice([script for script in scripts if script]).pop(0))

    _, emitted = fed(*events, CALLED, STOP)

    assert order_faults(emitted) == []
    calls = {block["name"]: block["input"] for block in fold(emitted)["content"]}
    assert calls == {f"t{n}": {"n": n} for n in range(count)}
