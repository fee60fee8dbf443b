"""What ends an answer, and what is no end: stop sequences, finish reasons, usage alone."""

import pytest

from tests.translator.openai_chat.answers import (
    calls,
    chunk,
    hear,
    message,
    piece,
    stream,
    usage,
    whole,
)
from translator.anthropic.fold import fold


def kinds(events):
    return [event["type"] for event in events]


def test_a_stop_sequence_in_a_whole_answer_keeps_the_reported_usage():
    heard = stream(stop_sequences=("END",))

    told = fold(
        heard.feed_whole(whole({"content": "one END two", "tool_calls": [piece(name="f")]}))
    )

    assert [block["text"] for block in told["content"]] == ["one "]
    assert (told["stop_reason"], told["stop_sequence"]) == ("stop_sequence", "END")
    assert heard.usage.source == "reported"


def test_a_stop_sequence_ends_the_stream_before_its_usage_is_known():
    heard = stream(stop_sequences=("END",), input_estimate=50)

    heard.feed(chunk(content="one END"))

    assert heard.finished
    assert (heard.usage.source, heard.usage.input) == ("estimated", 50)


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_the_estimate_at_a_stop_sequence_is_the_same_however_the_text_is_cut(size):
    text = "twelve times END and a lot more that was read with it"
    heard = stream(stop_sequences=("END",))

    for start in range(0, len(text), size):
        heard.feed(chunk(content=text[start : start + size]))

    assert heard.usage.output == 4  # of 16 characters: up to the sequence, and itself


def test_stop_sequences_are_not_looked_for_in_reasoning_or_arguments():
    told = message(
        chunk(reasoning="END"),
        calls(piece(index=0, id="c", name="f", arguments='{"a":"END"}')),
        chunk("tool_calls"),
        stop_sequences=("END",),
    )

    assert told["stop_reason"] == "tool_use"


@pytest.mark.parametrize("named", [151645, None, "", "end_turn"])
def test_a_stop_reason_that_names_no_string_means_nothing(named):
    ended = chunk("stop")
    ended["choices"][0]["stop_reason"] = named

    assert message(chunk(content="x"), ended)["stop_reason"] == "end_turn"


def test_a_whole_answer_without_a_finish_reason_has_ended():
    told = fold(stream().feed_whole(whole({"content": "Hello."}, finish=None)))

    assert told["stop_reason"] == "end_turn"


@pytest.mark.parametrize(
    ("finish", "error_type"),
    [
        ("error", "api_error"),
        ("abort", "api_error"),
        ("insufficient_system_resource", "overloaded_error"),
    ],
)
def test_a_failure_named_as_finish_reason_is_one(finish, error_type):
    events = stream().feed_whole(whole({"content": "Hel"}, finish=finish))

    assert (events[-1]["type"], events[-1]["error"]["type"]) == ("error", error_type)


def test_a_full_window_is_told_as_such():
    assert message(chunk(content="x"), chunk("model_length"))["stop_reason"] == (
        "model_context_window_exceeded"
    )


def test_half_a_call_is_no_end_even_with_usage():
    events = hear(stream(), calls(piece(index=0, id="c", name="f", arguments='{"a')), usage())

    assert kinds(events)[-1] == "error"


def test_usage_before_the_answer_is_no_end():
    assert kinds(hear(stream(), usage(), chunk(content="Hel")))[-1] == "error"
    assert kinds(hear(stream(), chunk(content="Hel"), usage(), chunk(content="lo")))[-1] == "error"


def test_a_stream_that_says_nothing_else_is_cut():
    assert kinds(hear(stream(), usage())) == ["error"]


@pytest.mark.parametrize("code", [502, "content_filter"])
def test_what_was_used_until_a_failure_counts(code):
    error = usage() | {"error": {"code": code, "message": "It broke."}}
    streamed, at_once = stream(), stream()

    streamed.feed(chunk(content="one"), error)
    at_once.feed_whole(error)

    for heard in (streamed, at_once):
        assert (heard.usage.input, heard.usage.output, heard.usage.source) == (20, 8, "reported")
