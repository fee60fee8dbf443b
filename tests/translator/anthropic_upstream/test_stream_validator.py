import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.upstreams.grammar import faults_of_events
from tests.for_each import for_each
from translator.errors import IllegalMove
from translator.message_stream.stream_grammar import AFTER, ORDER, StreamValidator

START = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
}
END = {
    "type": "message_delta",
    "delta": {"stop_reason": "end_turn", "stop_sequence": None},
    "usage": {"output_tokens": 2},
}
STOP = {"type": "message_stop"}
ERROR = {"type": "error", "error": {"type": "api_error", "message": "x"}}


def opened(index, kind="text"):
    block = {"type": kind, "text": ""} if kind == "text" else {"type": kind}
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index, kind="text_delta"):
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, "text": "x"}}


def closed(index):
    return {"type": "content_block_stop", "index": index}


ALL = [START, END, STOP, ERROR, {"type": "ping"}]
ALL += [make(index) for make in (opened, delta, closed) for index in (0, 1, 2)]


@given(events=st.lists(st.sampled_from(ALL), max_size=25))
def test_accepted_events_form_a_legal_prefix(events):
    guard = StreamValidator()
    passed = []
    for event in [START, *events]:
        with contextlib.suppress(IllegalMove):
            guard.check(event)
            passed.append(event)
    for event in [closed(guard.index), END, STOP]:
        with contextlib.suppress(IllegalMove):
            guard.check(event)
            passed.append(event)

    assert guard.phase == AFTER
    legal_twice = "I8"  # Anthropic may send message_delta twice; the gateway never does
    own = ("I12", legal_twice)  # Anthropic may send an empty block
    assert [fault for fault in faults_of_events(passed) if not fault.startswith(own)] == []


@for_each(
    "events",
    [
        [STOP],
        [START, START],
        [START, STOP],
        [START, delta(0)],
        [START, opened(1)],
        [START, opened(0), opened(1)],
        [START, opened(0), delta(1)],
        [START, opened(0), closed(1)],
        [START, opened(0), END],
        [START, opened(0), ERROR],
        [START, opened(0), delta(0, "thinking_delta")],
        [START, opened(0), closed(0), closed(0)],
        [START, END, opened(0)],
        [START, END, STOP, STOP],
        [START, END, STOP, ERROR],
    ],
)
def test_the_last_of_these_events_is_illegal(events):
    guard = StreamValidator()
    *legal, illegal = events
    for event in legal:
        guard.check(event)
    before = guard.phase

    with pytest.raises(IllegalMove, match=r"\S"):
        guard.check(illegal)
    assert guard.phase == before


def test_events_before_an_illegal_one_in_a_batch_are_accepted():
    guard = StreamValidator()

    with pytest.raises(IllegalMove, match=r"\S"):
        guard.check(START, opened(0), delta(0), delta(1), closed(0))
    assert guard.valid_events == 3
    guard.check(closed(0), END, STOP)
    assert guard.phase == AFTER


def test_unknown_event_types_pass():
    guard = StreamValidator()
    for event in [
        {"type": "hello"},
        START,
        opened(0, "hologram"),
        delta(0, "text_delta"),
        delta(0, "hologram_delta"),
        closed(0),
        opened(1),
        delta(1, "hologram_delta"),
        closed(1),
        END,
        {"type": "fallback_info"},
        STOP,
    ]:
        guard.check(event)

    assert guard.phase == AFTER


def test_a_message_that_starts_complete_may_stop_at_once():
    guard = StreamValidator()
    guard.check({"type": "message_start", "message": {"stop_reason": "tool_use"}})
    guard.check(STOP)

    assert guard.phase == AFTER


def test_nothing_follows_the_end():
    assert ORDER[AFTER] == {}
