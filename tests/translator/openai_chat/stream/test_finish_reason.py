"""Finish reasons."""

from tests.for_each import for_each
from tests.translator.openai_chat.responses import calls, chunk, message, piece
from translator.openai_chat.stream.finish_reason import FAILURES, FINISH_REASONS

CALL = calls(piece(index=0, id="c", name="f", arguments="{}"))


def test_no_reason_is_both_an_end_and_a_failure():
    assert FINISH_REASONS.keys().isdisjoint(FAILURES)


@for_each(
    ("finish", "without_a_call", "with_a_call"),
    [
        ("stop", "end_turn", "tool_use"),
        ("tool_calls", "end_turn", "tool_use"),
        ("function_call", "end_turn", "tool_use"),
        ("length", "max_tokens", "max_tokens"),
        ("content_filter", "refusal", "refusal"),
        ("eos", "end_turn", "tool_use"),
        ("eos_token", "end_turn", "tool_use"),
        ("TOOL_CALL", "end_turn", "tool_use"),
        ("MAX_TOKENS", "max_tokens", "max_tokens"),
        ("PROHIBITED_CONTENT", "refusal", "refusal"),
        ("something_new", "end_turn", "tool_use"),
    ],
)
def test_the_emitted_blocks_decide_the_stop_reason_unless_truncated(
    finish, without_a_call, with_a_call
):
    assert message(chunk(content="x"), chunk(finish))["stop_reason"] == without_a_call
    assert message(CALL, chunk(finish))["stop_reason"] == with_a_call


def test_a_malformed_gemini_call_is_a_failure():
    assert FAILURES["malformed_function_call"] is FAILURES["function_call_filter"]


def test_a_stop_field_without_a_string_is_ignored():
    ended = chunk("stop")
    ended["choices"][0] |= {"stop_reason": 151645, "matched_stop": ""}

    assert message(chunk(content="x"), ended)["stop_reason"] == "end_turn"
