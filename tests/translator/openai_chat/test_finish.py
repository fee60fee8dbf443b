"""Finish reasons."""

import pytest

from tests.translator.openai_chat.answers import calls, chunk, message, piece
from translator.openai_chat.finish import FAILURES, FINISH_REASONS

CALL = calls(piece(index=0, id="c", name="f", arguments="{}"))


def test_no_reason_is_both_an_end_and_a_failure():
    assert FINISH_REASONS.keys().isdisjoint(FAILURES)


@pytest.mark.parametrize(
    ("finish", "without_a_call", "with_a_call"),
    [
        ("stop", "end_turn", "tool_use"),
        ("tool_calls", "end_turn", "tool_use"),
        ("function_call", "end_turn", "tool_use"),
        ("length", "max_tokens", "max_tokens"),
        ("content_filter", "refusal", "refusal"),
        ("eos", "end_turn", "tool_use"),
        ("something_new", "end_turn", "tool_use"),
    ],
)
def test_what_was_emitted_decides_unless_the_answer_was_cut(finish, without_a_call, with_a_call):
    assert message(chunk(content="x"), chunk(finish))["stop_reason"] == without_a_call
    assert message(CALL, chunk(finish))["stop_reason"] == with_a_call
