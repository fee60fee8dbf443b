"""Stop sequences and finish reasons end a message; usage alone does not."""

from tests.for_each import for_each
from tests.translator.openai_chat.responses import (
    calls,
    chunk,
    feed_all,
    message,
    piece,
    stream,
    usage,
    whole,
)
from translator.anthropic.stop_reason import LIMIT_REACHED
from translator.message_stream.events_to_message import fold


def kinds(events):
    return [event["type"] for event in events]


def test_a_stop_sequence_in_a_whole_response_preserves_the_reported_usage():
    decoder = stream(stop_sequences=("END",))

    reply = fold(
        decoder.feed_body(whole({"content": "one END two", "tool_calls": [piece(name="f")]}))
    )

    assert [block["text"] for block in reply["content"]] == ["one "]
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", "END")
    assert decoder.usage.source == "reported"


def test_a_stop_sequence_ends_the_stream_before_its_usage_is_known():
    decoder = stream(stop_sequences=("END",), input_estimate=50)

    decoder.feed(chunk(content="one END"))

    assert decoder.finished
    assert (decoder.usage.source, decoder.usage.input) == ("estimated", 50)


@for_each("size", [1, 2, 7, 100])
def test_the_estimate_at_a_stop_sequence_is_the_same_however_the_text_is_cut(size):
    text = "twelve times END and a lot more that was read with it"
    decoder = stream(stop_sequences=("END",))

    for start in range(0, len(text), size):
        decoder.feed(chunk(content=text[start : start + size]))

    assert decoder.usage.output == 5  # 16 characters: the text and the sequence


def test_stop_sequences_are_not_looked_for_in_reasoning_or_arguments():
    reply = message(
        chunk(reasoning="END"),
        calls(piece(index=0, id="c", name="f", arguments='{"a":"END"}')),
        chunk("tool_calls"),
        stop_sequences=("END",),
    )

    assert reply["stop_reason"] == "tool_use"


@for_each("named", [151645, None, "", "end_turn"])
def test_a_stop_reason_without_a_stop_sequence_is_ignored(named):
    ended = chunk("stop")
    ended["choices"][0]["stop_reason"] = named

    assert message(chunk(content="x"), ended)["stop_reason"] == "end_turn"


def test_a_whole_answer_without_a_finish_reason_has_ended():
    reply = fold(stream().feed_body(whole({"content": "Hello."}, finish=None)))

    assert reply["stop_reason"] == "end_turn"


@for_each(
    ("finish", "error_type"),
    [
        ("error", "api_error"),
        ("abort", "api_error"),
        ("insufficient_system_resource", "overloaded_error"),
    ],
)
def test_a_failure_named_as_finish_reason_is_one(finish, error_type):
    events = stream().feed_body(whole({"content": "Hel"}, finish=finish))

    assert (events[-1]["type"], events[-1]["error"]["type"]) == ("error", error_type)


def test_a_full_context_window_has_its_own_stop_reason():
    assert message(chunk(content="x"), chunk("model_length"))["stop_reason"] == (
        "model_context_window_exceeded"
    )


def test_an_incomplete_call_with_usage_is_not_an_end():
    events = feed_all(stream(), calls(piece(index=0, id="c", name="f", arguments='{"a')), usage())

    assert kinds(events)[-1] == "error"


def test_usage_before_the_answer_is_not_an_end():
    assert kinds(feed_all(stream(), usage(), chunk(content="Hel")))[-1] == "error"
    assert (
        kinds(feed_all(stream(), chunk(content="Hel"), usage(), chunk(content="lo")))[-1] == "error"
    )


def test_a_stream_with_only_usage_is_truncated():
    assert kinds(feed_all(stream(), usage())) == ["error"]


@for_each("code", [502, "content_filter"])
def test_usage_before_a_failure_counts(code):
    error = usage() | {"error": {"code": code, "message": "It broke."}}
    streamed, at_once = stream(), stream()

    streamed.feed(chunk(content="one"), error)
    at_once.feed_body(error)

    for decoder in (streamed, at_once):
        assert (decoder.usage.input, decoder.usage.output, decoder.usage.source) == (
            20,
            8,
            "reported",
        )


CUT_ARGUMENTS = '{"city": "Os'


@for_each(
    ("arguments", "used", "reason"),
    [
        (CUT_ARGUMENTS, 40, "max_tokens"),
        (CUT_ARGUMENTS, None, "max_tokens"),
        (CUT_ARGUMENTS, 20, "tool_use"),  # the model wrote broken JSON
        ('{"city": "Oslo"}', 40, "tool_use"),
        ("{city", None, "tool_use"),
        ("", 40, "tool_use"),
    ],
)
@for_each("is_whole", [True, False])
def test_a_call_that_the_limit_cut_is_never_a_finished_call(arguments, used, reason, is_whole):
    counts = {"usage": {"prompt_tokens": 9, "completion_tokens": used}}
    cut_call = piece(index=0, id="c", name="f", arguments=arguments)
    machine = stream(max_tokens=40)

    if is_whole:
        machine.feed_body(whole({"tool_calls": [cut_call]}, "tool_calls") | counts)
    else:
        machine.feed(calls(cut_call), chunk("tool_calls"), counts)
        machine.end()

    assert machine.stop_reason == reason
    assert (LIMIT_REACHED in machine.notes) == (reason == "max_tokens")


@for_each("counts", [{"prompt_tokens": 0, "completion_tokens": 0},
                                    {"prompt_tokens": 9, "completion_tokens": 10**12}])  # fmt: skip
def test_counts_that_cannot_be_true_are_estimated_with_a_note(counts):
    machine = stream(input_estimate=50)

    events = machine.feed(chunk(content="Hello, you."), chunk("stop"), {"usage": counts})
    events += machine.end()

    assert (machine.usage.source, machine.usage.output) == ("estimated", 4)
    assert machine.usage.input == (counts["prompt_tokens"] or 50)
    assert events[-2]["usage"]["output_tokens"] == 4
    assert any(note.reason.startswith("bad_usage") for note in machine.notes)


def test_the_counts_of_llama_cpp_s_chunks_are_used_at_a_stop_sequence():
    machine = stream(stop_sequences=("END",), input_estimate=50)
    timings = {"prompt_n": 9, "cache_n": 3, "predicted_n": 4}

    machine.feed(chunk(content="one END") | {"timings": timings})

    assert machine.finished
    assert (machine.usage.input, machine.usage.cache_read, machine.usage.output) == (9, 3, 4)
