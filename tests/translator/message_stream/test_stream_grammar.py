import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.upstreams.grammar import faults_of_events
from translator.errors import IllegalMove
from translator.message_stream.stream_grammar import AFTER, ORDER, MessageWriter

MOVES = {
    "start": lambda w: w.start(
        message_id="msg_1", model="m", usage={"input_tokens": 0, "output_tokens": 0}
    ),
    "open": lambda w: w.open_block({"type": "text", "text": ""}),
    "delta": lambda w: w.write_delta({"type": "text_delta", "text": "x"}),
    "close": lambda w: w.close_block(),
    "finish": lambda w: w.finish(stop_reason="end_turn", usage={"output_tokens": 1}),
    "fail": lambda w: w.fail(error_type="api_error", message="x"),
}
EMPTY_BLOCK = "I12"  # the composer checks this; the writer only checks the grammar


@given(moves=st.lists(st.sampled_from(list(MOVES)), max_size=20))
def test_any_sequence_of_calls_writes_a_legal_stream(moves):
    writer = MessageWriter()
    for move in moves:
        with contextlib.suppress(IllegalMove):
            MOVES[move](writer)
    if writer.phase != AFTER:
        writer.fail(error_type="api_error", message="end")

    faults = faults_of_events(writer.events)
    assert [fault for fault in faults if not fault.startswith(EMPTY_BLOCK)] == []


def test_every_phase_defines_its_next_events():
    assert {phase for nexts in ORDER.values() for phase in nexts.values()} < set(ORDER)
    assert ORDER[AFTER] == {}


def test_a_delta_must_fit_its_block():
    writer = MessageWriter()
    MOVES["start"](writer)
    writer.open_block({"type": "thinking", "thinking": "", "signature": ""})

    with pytest.raises(IllegalMove, match="text_delta inside a block in a block of type thinking"):
        MOVES["delta"](writer)


def test_a_failure_inside_a_block_closes_it_first():
    writer = MessageWriter()
    MOVES["start"](writer)
    MOVES["open"](writer)

    MOVES["fail"](writer)

    assert [event["type"] for event in writer.events[-2:]] == ["content_block_stop", "error"]


def test_each_step_returns_only_its_own_events():
    writer = MessageWriter()
    MOVES["start"](writer)
    before, writer.events = writer.events, []

    MOVES["open"](writer)

    assert [event["type"] for event in before] == ["message_start"]
    assert [event["type"] for event in writer.events] == ["content_block_start"]


def test_empty_optional_fields_are_omitted():
    writer = MessageWriter()
    MOVES["start"](writer)
    MOVES["open"](writer)
    writer.close_block({"type": "text", "text": "x"})
    writer.finish(
        stop_reason="refusal",
        usage={"output_tokens": 1},
        stop_details={"type": "refusal"},
        context_management={"applied_edits": []},
    )
    *_, stop, delta, _ = writer.events

    assert stop["content_block"] == {"type": "text", "text": "x"}
    assert delta["delta"]["stop_details"] == {"type": "refusal"}
    assert delta["context_management"] == {"applied_edits": []}


def test_a_delta_after_its_block_is_rejected():
    writer = MessageWriter()
    writer.start(message_id="m", model="x", usage={})
    writer.open_block({"type": "text", "text": ""})
    writer.close_block()

    with pytest.raises(IllegalMove, match="text_delta between blocks"):
        writer.write_delta({"type": "text_delta", "text": "x"})
