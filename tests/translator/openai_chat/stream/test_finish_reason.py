"""Finish reasons."""

from tests.for_each import for_each
from tests.translator.openai_chat.responses import calls, chunk, message, piece
from translator.dialect import ResponseContext
from translator.openai_chat.chat_stream import ChatStream
from translator.openai_chat.finish_reason import FAILURES, FINISH_REASONS

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
        ("max_output_tokens", "max_tokens", "max_tokens"),
        ("context_length", "model_context_window_exceeded", "model_context_window_exceeded"),
        ("PROHIBITED_CONTENT", "refusal", "refusal"),
        ("MODEL_ARMOR", "refusal", "refusal"),
        ("OTHER", "end_turn", "tool_use"),
        ("something_new", "end_turn", "tool_use"),
    ],
)
def test_the_emitted_blocks_decide_the_stop_reason_unless_truncated(
    finish, without_a_call, with_a_call
):
    assert message(chunk(content="x"), chunk(finish))["stop_reason"] == without_a_call
    assert message(CALL, chunk(finish))["stop_reason"] == with_a_call


@for_each(
    ("finish", "kind"),
    [
        ("MALFORMED_FUNCTION_CALL", "api_error"),
        ("function_call_filter: UNEXPECTED_TOOL_CALL", "api_error"),
        ("UNEXPECTED_TOOL_CALL", "api_error"),
        ("TOO_MANY_TOOL_CALLS", "api_error"),
        ("cancelled", "api_error"),
        ("server_error", "api_error"),
        ("insufficient_system_resource", "overloaded_error"),
        ("engine_overloaded", "overloaded_error"),
    ],
)
def test_a_reason_of_a_failure_ends_the_stream_with_an_error(finish, kind):
    stream = ChatStream(ResponseContext())
    events = stream.feed(chunk(content="x")) + stream.feed(chunk(finish))

    assert events[-1]["error"]["type"] == kind
    assert stream.error is FAILURES[finish.partition(":")[0].lower()]


def test_a_stop_field_without_a_string_is_ignored():
    ended = chunk("stop")
    ended["choices"][0] |= {"stop_reason": 151645, "matched_stop": ""}

    assert message(chunk(content="x"), ended)["stop_reason"] == "end_turn"
