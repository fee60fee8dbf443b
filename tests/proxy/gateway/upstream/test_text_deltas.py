"""Text deltas translated without their events, or many as one, have the same result."""

import json

from hypothesis import example, given
from hypothesis import strategies as st

from proxy.gateway.upstream.response_decoder import (
    NO_TEXT,
    ResponseDecoder,
    chat_piece,
    responses_piece,
)
from proxy.gateway.upstream.response_writers import BatchedTextDelta
from tests.for_each import for_each
from tests.translator.openai_responses.responses import (
    added,
    arguments,
    completed,
    done,
    output_message,
    reasoning,
    summary,
    text,
)
from translator.capabilities import Profile
from translator.dialect import TranslationTarget
from translator.message_stream.events_to_message import fold

from .test_response_decoder import frame, one_by_one, stream_of

USAGE = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
CALL = {"index": 0, "id": "call_1", "function": {"name": "f", "arguments": "{}"}}
FAILED = {"choices": [], "error": {"message": "no more"}}
BEGUN = {"tool_calls": [{"index": 1, "id": "call_2", "function": {"name": "g", "arguments": "{"}}]}
ENDED = {"tool_calls": [{"index": 1, "function": {"arguments": "}"}}]}
NAMED = {"tool_calls": [{"index": 2, "id": "call_3", "function": {"name": "h"}}]}


def chunk(delta, reason=None):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


TEXTS = [
    chunk({"content": piece}) for piece in ("a", "b", "STOP", "ST", "OP", "<think>", "</think>")
]
CHUNKS = st.sampled_from(
    [
        *TEXTS * 2,
        *map(chunk, ({"reasoning_content": "hm"}, {"tool_calls": [CALL]}, BEGUN, ENDED, NAMED)),
        chunk({"content": "c", "role": "assistant"}),
        chunk({}, "stop"),
        USAGE,
        FAILED,
    ]
)

MESSAGE = {"type": "message", "id": "msg_1", "content": []}
TOOL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": ""}
PIECES = st.builds(
    lambda piece, item, output, part: text(piece, output, part, item_id=item),
    st.sampled_from(["a", "STOP", "ST", "OP"]),
    st.sampled_from(["msg_1", "msg_2"]),
    st.integers(0, 2),
    st.integers(0, 1),
)
EVENTS = PIECES | st.sampled_from(
    [
        added(0, **MESSAGE),
        added(1, **MESSAGE, status="in_progress"),
        added(1, **TOOL),
        added(2, type="reasoning", id="rs_1"),
        arguments("{}", 1),
        summary("hm", 2),
        done(0, **output_message("a")),
        done(1, **TOOL | {"arguments": "{}"}),
        done(2, **reasoning("hm")),
        {"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": "aa"},
        {"type": "ping"},
        completed(output_message("a")),
    ]
)
A = text("a", item_id="msg_1")
VALUES = st.sampled_from([None, 0, 1, "", "a", "error", "chat.completion.chunk", [], ["a"], {}])
CHUNK_FIELDS = (
    "base_resp", "citations", "error", "id", "object", "search_results", "timings", "type", "usage",
    "x_groq",
)  # fmt: skip
CHOICE_FIELDS = ("error", "finish_reason", "index", "logprobs", "usage")
DELTA_FIELDS = ("role", "refusal", "tool_calls", "reasoning_content", "reasoning", "audio")
STOPS = st.sampled_from([(), ("STOP",)])


def outcome(events, stream):
    return fold(events), stream.usage, stream.notes, stream.stop_reason, stream.error


def decoded(dialect, events, **context):
    """Return the result of a response whose events all arrive in one read."""
    stream = stream_of(dialect, **context)
    decoder, result = ResponseDecoder(stream, dialect), []
    for raw in (b"".join(map(frame, events)), b""):
        if raw or not stream.finished:
            decoder.feed(raw)
            result += decoder.events
    return outcome(result, stream)


def expected(dialect, events, **context):
    return outcome(*one_by_one(dialect, [*map(frame, events)], **context))


@given(st.lists(CHUNKS, min_size=1, max_size=12), STOPS, st.booleans())
@example([*TEXTS[:2], chunk(BEGUN), *TEXTS[:2], chunk(ENDED), chunk(NAMED), *TEXTS[:2]], (), False)
@example([*TEXTS[:2], FAILED, *TEXTS[:2]], (), False)
@example([*TEXTS[2:5], *TEXTS[:2]], ("STOP",), False)
def test_chat_runs_equal_single_chunks(events, stops, tags):
    target = TranslationTarget(profile=Profile(think_tags=tags))
    context = {"stop_sequences": stops, "target": target}

    assert decoded("chat", events, **context) == expected("chat", events, **context)


@given(st.lists(EVENTS, min_size=1, max_size=14), STOPS)
@example([A, A, A, completed(output_message("aaa"))], ())
@example([added(0, type="reasoning", id="rs_1"), A, done(0, **reasoning("hm")), A, A], ())
@example([A, added(0, **MESSAGE), A, A, done(0, **output_message("aaa")), A, A], ())
def test_responses_runs_equal_single_events(events, stops):
    assert decoded("responses", events, stop_sequences=stops) == expected(
        "responses", events, stop_sequences=stops
    )


@for_each("dialect", ["chat", "responses"])
def test_a_run_keeps_an_event_for_each_piece(dialect):
    event = {"chat": TEXTS[0], "responses": A}[dialect]
    decoder = ResponseDecoder(stream_of(dialect), dialect)
    decoder.feed(frame(event))
    decoder.feed(frame(event) * 5)

    (run,) = decoder.events
    assert isinstance(run, BatchedTextDelta)
    assert run["delta"]["text"] == "aaaaa"
    assert run.frames().count(b"event: content_block_delta") == 5


@for_each(
    "event", [A | {"delta": ""}, A | {"delta": 1}, A | {"item_id": None}, {"type": "ping"}, {}]
)
def test_a_responses_event_without_text_at_a_place_is_in_no_run(event):
    assert responses_piece(json.dumps(event).encode()) == NO_TEXT


@for_each(
    "event",
    [
        chunk({"content": ""}),
        chunk({"content": "a"}, "stop"),
        chunk({"content": "a", "tool_calls": [CALL]}),
        chunk({"content": ["a"]}),
        chunk({"role": "assistant"}),
        chunk({"content": "a"}) | {"usage": {"prompt_tokens": 1}},
        chunk({"content": "a"}) | {"citations": ["https://a.example"]},
        {"choices": [{"index": 1, "delta": {"content": "a"}}]},
        {"choices": [{"delta": {"content": "a"}}, {"index": 1, "delta": {"content": "b"}}]},
        chunk({"content": "a"}) | {"object": "error", "message": "no more"},
        {"choices": []},
        {"choices": [None]},
        {"choices": [{"delta": None}]},
        FAILED,
        {},
    ],
)
def test_a_chunk_that_carries_more_than_text_is_not_plain(event):
    assert chat_piece(json.dumps(event).encode()) == NO_TEXT


@for_each(
    "event",
    [
        chunk({"content": "a"}),
        chunk({"content": "a", "role": "assistant"}),
        chunk({"content": "a", "refusal": None, "tool_calls": None}) | {"obfuscation": "x" * 9},
    ],
)
def test_padding_and_null_fields_do_not_matter(event):
    assert chat_piece(json.dumps(event).encode())[1] == "a"


def assert_plain_text_is_all(event):
    """Compare a chunk from which ``chat_piece`` reads text with its whole translation."""
    location, found = chat_piece(json.dumps(event).encode())
    if location is None:
        return
    whole, text_only = stream_of("chat"), stream_of("chat")
    for stream in (whole, text_only):
        stream.feed(chunk({"content": "s"}))

    assert whole.feed(event) == text_only.feed_text(location, found)
    assert outcome([], whole) == outcome([], text_only)
    assert whole.unknown == text_only.unknown


@given(CHUNKS, st.dictionaries(st.sampled_from(CHUNK_FIELDS), VALUES))
def test_the_text_of_a_plain_chunk_is_all_that_the_translator_reads(chunk, fields):
    assert_plain_text_is_all(chunk | fields)


@given(st.dictionaries(st.sampled_from(CHOICE_FIELDS), VALUES))
def test_a_choice_with_other_content_is_not_plain(fields):
    assert_plain_text_is_all({"choices": [{"delta": {"content": "a"}} | fields]})


@given(st.dictionaries(st.sampled_from([*DELTA_FIELDS, "content", "new_field"]), VALUES))
def test_a_delta_with_other_content_is_not_plain(fields):
    delta = {"content": "a"} | fields
    assert_plain_text_is_all({"choices": [{"index": 0, "delta": delta}]})


def test_the_names_of_the_first_event_of_a_run_are_kept():
    stream = stream_of("chat")
    first = chunk({"content": "a"}) | {"id": "c1", "model": "m1"}
    ResponseDecoder(stream, "chat").feed(frame(first) + frame(first | {"id": "c2"}))

    assert (stream.upstream_id, stream.upstream_model) == ("c1", "m1")
