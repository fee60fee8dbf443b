"""Attributes, errors and properties of the Chat stream; the cases test its events."""

from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.anthropic_requests import KEYS
from tests.fakes.upstreams.grammar import faults_of_events
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
from translator.dialect import UpstreamError
from translator.message_stream.events_to_message import fold
from translator.notes import Note
from translator.openai_chat import DIALECT
from translator.openai_chat.chat_stream import ChatStream
from translator.stream.tool_arguments import compact_json

LATE = UpstreamError(status=504, error_type="timeout_error", message="upstream fell silent")


def kinds(events):
    return [event["type"] for event in events]


def test_the_dialect_has_its_endpoint_path():
    assert (DIALECT.name, DIALECT.path, DIALECT.stream) == ("chat", "/chat/completions", ChatStream)


def test_the_stream_records_the_upstream_id_and_model():
    decoder = stream(model="claude-bridge")

    start, *_ = feed_all(decoder, chunk(content="Hello."), chunk("stop"), usage())

    assert (decoder.upstream_id, decoder.upstream_model) == ("chatcmpl-1", "qwen3")
    assert (decoder.stop_reason, decoder.finished, decoder.error) == ("end_turn", True, None)
    assert start["message"]["model"] == "claude-bridge"
    assert start["message"]["id"] == "msg_1"


def test_the_message_id_derives_from_the_upstream_id():
    first, second = (message(chunk(content="x"), chunk("stop"), message_id="") for _ in range(2))

    assert first["id"] == second["id"]
    assert first["id"].startswith("msg_")
    assert "chatcmpl" not in first["id"]
    assert first["model"] == "qwen3"


REASONING = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
THOUGHT = {"google": {"thought": True}}


@for_each(
    "delta",
    [
        {"content": [REASONING, {"type": "text", "text": "Yes."}], "tool_calls": [CALL]},
        {"content": [REASONING, {"type": "output_text", "text": "Yes."}], "tool_calls": CALL},
        {"content": [REASONING, {"text": "Yes."}], "tool_calls": CALL},
        {"reasoning": {"content": "Hm."}, "content": {"text": "Yes."}, "tool_calls": CALL},
        {"reasoning_content": ["Hm."], "content": ["Yes."], "tool_calls": CALL},
        {"thinking_blocks": [{"thinking": "Hm."}], "content": "Yes.", "tool_calls": CALL},
        {
            "content": "<thought>Hm.</thought>Yes.",
            "extra_content": THOUGHT,
            "tool_calls": CALL,
        },
    ],
)
def test_wrapped_vendor_deltas_are_unwrapped(delta):
    """Deltas of Databricks, TGI, Gemini and others give the same message streamed and whole."""
    decoder = stream()
    streamed = fold(feed_all(decoder, chunk(**delta), chunk("tool_calls"), usage()))

    assert [list(block.values())[:2] for block in streamed["content"]] == [
        ["thinking", "Hm."],
        ["text", "Yes."],
        ["tool_use", "c"],
    ]
    assert not decoder.unknown
    assert fold(stream().feed_body(whole(delta, "tool_calls"))) == streamed


def test_gemini_reasoning_ends_where_the_answer_begins():
    reply = message(
        chunk(content="<thought>H", extra_content=THOUGHT),
        chunk(content="m.", extra_content=THOUGHT),
        chunk(content="</thought>Yes."),
        chunk("stop", content="", extra_content={"google": {"thought_signature": "s"}}),
    )

    assert [list(block.values())[:2] for block in reply["content"]] == [
        ["thinking", "Hm."],
        ["text", "Yes."],
    ]


@for_each("extra", [7, {"google": None}, {"google": {"news": "s"}}])
def test_unknown_extra_content_is_counted(extra):
    decoder = stream()
    feed_all(decoder, chunk(content="Yes."), chunk("stop", extra_content=extra))

    assert decoder.unknown == {"delta.extra_content": 1}


def test_a_choice_index_may_be_a_string():
    pieces = [{"choices": [{"index": "0", "delta": {"content": "Yes."}}]}, chunk("stop")]

    assert message(*pieces)["content"] == [{"type": "text", "text": "Yes.", "citations": None}]


@for_each("plain", [{"text": "Yes."}, {"delta": "Yes."}])
def test_a_choice_may_be_plain_text(plain):
    pieces = [{"choices": [{"index": 0, **plain}]}, {"choices": [{"finish_reason": "stop"}]}]

    assert message(*pieces)["content"] == [{"type": "text", "text": "Yes.", "citations": None}]
    body = {"choices": [{"finish_reason": "stop", **plain}], "usage": {}}
    assert fold(stream().feed_body(body))["content"][0]["text"] == "Yes."


def test_an_estimate_of_the_input_opens_the_message():
    start, *_ = feed_all(stream(input_estimate=77), chunk(content="x"), chunk("stop"), usage())

    assert start["message"]["usage"]["input_tokens"] == 77


def test_no_events_follow_the_end():
    decoder = stream()
    feed_all(decoder, chunk(content="Hello."), chunk("stop"))

    assert decoder.feed(chunk(content="more")) == []
    assert decoder.feed_body(whole({"content": "more"})) == []
    assert decoder.end() == decoder.fail(LATE) == []
    assert decoder.error is None


def test_an_external_failure_ends_the_stream_with_an_error():
    decoder = stream()
    events = decoder.feed(chunk(content="Hel")) + decoder.fail(LATE)

    assert kinds(events)[-2:] == ["content_block_stop", "error"]
    assert events[-1]["error"]["type"] == "timeout_error"
    assert decoder.error is LATE
    assert decoder.stop_reason is None


def test_a_failure_before_any_output_has_no_message_events():
    assert kinds(stream().fail(LATE)) == ["error"]


@for_each(
    "broken",
    [
        None,
        "text",
        {"choices": [{"delta": {"content": [7]}}]},
        {"choices": [{"delta": {"tool_calls": "none"}}]},
        {"choices": [{"delta": {"tool_calls": [None]}}]},
        {"choices": [{"delta": {"annotations": ["x"]}}]},
        {"choices": [{"delta": {"content": {"type": "text", "text": 7}}}]},
    ],
)
def test_an_invalid_chunk_is_an_upstream_error(broken):
    decoder = stream()
    decoder.feed(chunk(content="Hel"))

    events = decoder.feed(broken)

    assert kinds(events)[-1] == "error"
    assert decoder.error.status == 502
    assert decoder.fault is not None
    assert decoder.finished


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["content", "tool_calls", "function", "arguments", "id", "index", "name"]
            )
            | st.sampled_from(
                ["type", "text", "thinking", "reasoning", "reasoning_details", "refusal"]
            )
            | st.sampled_from(["annotations", "url_citation", "function_call", "message", "delta"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
CHOICES = st.fixed_dictionaries(
    {},
    optional={
        "index": st.sampled_from([0, 1, None]),
        "delta": JSON,
        "message": JSON,
        "finish_reason": st.sampled_from([None, "stop", "length", "tool_calls", "error", "x", 7]),
        "error": JSON,
        "stop_reason": JSON,
    },
)
CHUNKS = st.fixed_dictionaries(
    {},
    optional={
        "id": JSON,
        "model": JSON,
        "choices": st.lists(CHOICES, max_size=2) | JSON,
        "usage": st.dictionaries(st.sampled_from(["prompt_tokens", "completion_tokens"]), JSON)
        | JSON,
        "error": JSON,
        "x_groq": JSON,
    },
)


@given(
    st.lists(CHUNKS | JSON, max_size=6),
    st.sampled_from([{}, {"think_tags": True}, {"think_tags_opened": True}]),
)
def test_any_chunks_give_a_legal_stream(chunks, capabilities):
    decoder = stream(keys=KEYS, capabilities=capabilities, stop_sequences=("a",))

    events = [event for each in chunks for event in decoder.feed(each)] + decoder.end()

    assert faults_of_events(events, raw_tool_input=True) == []


@given(JSON | CHUNKS)
def test_any_whole_body_gives_a_legal_stream(body):
    events = stream().feed_body(body)

    assert faults_of_events(events, raw_tool_input=True) == []
    assert kinds(events)[-1] in {"message_stop", "error"}


WORDS = st.text(alphabet="ab <think/>", max_size=12)
ARGUMENTS = st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=4), max_size=3)


@given(WORDS, WORDS, st.lists(ARGUMENTS, max_size=3), st.data())
def test_a_stream_folds_into_the_whole_response(thinking, emitted, inputs, data):
    texts = [compact_json(each) for each in inputs]
    named = [piece(id=f"call_{n}", name="f", arguments=t) for n, t in enumerate(texts)]
    reply = {"reasoning": thinking, "content": emitted, "tool_calls": named}
    deltas = [chunk(reasoning=part) for part in cut(thinking, data)]
    deltas += [chunk(content=part) for part in cut(emitted, data)]
    for n, arguments in enumerate(texts):
        deltas.append(calls(piece(index=n, id=f"call_{n}", name="f", arguments="")))
        deltas += [calls(piece(index=n, arguments=part)) for part in cut(arguments, data)]

    streamed = message(*deltas, chunk("stop"), usage())

    assert streamed == fold(stream().feed_body(whole(reply)))


def cut(text, data):
    """Split the text at drawn positions."""
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def test_refused_prompts_in_mid_answer_end_as_refusals():
    refused = {"error": {"code": "content_filter", "message": "no"}}

    reply = message(chunk(content="Hel"), refused)

    assert reply["stop_reason"] == "refusal"
    assert reply["stop_details"]["explanation"]


def test_a_refusal_in_a_content_part_is_a_refusal():
    part = {"type": "refusal", "refusal": "No."}

    reply = message(chunk(content=[part, {"type": "refusal"}, "!"]), chunk("stop"))

    assert [block["text"] for block in reply["content"]] == ["No.!"]
    assert reply["stop_reason"] == "refusal"


def test_thinking_parts_may_contain_plain_text():
    reply = message(chunk(content=[{"type": "thinking", "thinking": "Hm."}]), chunk("stop"))

    assert reply["content"][0]["thinking"] == "Hm."


def test_flat_annotations_are_citations_too_and_bad_ranges_cite_nothing():
    flat = {"type": "url_citation", "url": "https://a", "start_index": 9, "end_index": 2}

    reply = message(chunk(content="Hello."), chunk(annotations=[flat]), chunk("stop"))

    citation = reply["content"][0]["citations"][0]
    assert (citation["url"], citation["title"], citation["cited_text"]) == ("https://a", None, "")


def test_a_cited_text_is_cut_so_that_many_citations_do_not_multiply_it():
    cited = {"type": "url_citation", "url": "https://a", "start_index": 1, "end_index": 99_000}
    text = chunk(content="a" + "b" * 99_000 + "c")

    streamed = message(text, chunk(annotations=[cited] * 50), chunk("stop"))
    early = message(chunk(annotations=[cited] * 50), text, chunk("stop"))

    for reply in (streamed, early):
        citations = reply["content"][0]["citations"]
        assert [each["cited_text"] for each in citations] == ["b" * 1_000] * 50
        assert reply["content"][0]["text"][-2:] == "bc"  # pieces are appended after a look back


def test_a_citation_without_its_text_is_dropped_with_a_note():
    decoder = stream()

    feed_all(
        decoder, chunk(annotations=[{"type": "url_citation", "url": "https://a"}]), chunk("stop")
    )

    assert Note("content", "dropped", "a citation without its text") in decoder.notes


def test_opaque_reasoning_is_signed_with_keys_and_noted_without():
    details = [{"type": "reasoning.encrypted", "data": "gAAAA"}]
    chunks = [chunk(reasoning_details=details)] * 2 + [chunk(content="No."), chunk("stop"), usage()]
    stored, lost = stream(keys=KEYS), stream()

    with_keys = fold(feed_all(stored, *chunks))
    without = fold(feed_all(lost, *chunks))

    assert with_keys["content"][0]["signature"].startswith("brg1.")
    assert [block["type"] for block in without["content"]] == ["text"]
    assert [note.fate for note in lost.notes] == ["dropped"]


def test_hidden_reasoning_with_details_stays_hidden():
    details = [{"type": "reasoning.encrypted", "data": "gAAAA"}]

    reply = message(chunk(reasoning_details=details), chunk("stop"), keys=KEYS, thinking="hidden")

    assert reply["content"] == []


def test_a_bad_count_is_missing_and_noted_once():
    decoder = stream()

    feed_all(
        decoder, chunk(content="x"), usage(prompt_tokens=-1), chunk("stop"), usage(prompt_tokens=-1)
    )

    reasons = [note.reason for note in decoder.notes if note.reason.startswith("bad_usage")]
    assert len(reasons) == 1
    assert decoder.usage.source == "estimated"


def test_text_after_the_finish_reason_is_emitted_and_noted_once():
    decoder = stream()

    reply = fold(feed_all(decoder, chunk("stop"), chunk(content="a"), chunk(content="b"), usage()))

    assert [block["text"] for block in reply["content"]] == ["ab"]
    assert [note.fate for note in decoder.notes] == ["repaired"]


def test_sources_beside_the_answer_are_noted_once():
    decoder = stream()
    cited = chunk(content="x") | {"citations": ["https://a"], "search_results": []}

    feed_all(decoder, cited, cited, chunk("stop"), usage())

    assert [note.path for note in decoder.notes] == ["citations"]


def test_text_of_a_chunk_before_its_fault_is_emitted():
    decoder = stream()

    events = decoder.feed(chunk(content="Hel", tool_calls=[7]))

    assert kinds(events) == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "error",
    ]


def test_broken_arguments_in_a_whole_response_fail_if_the_profile_requires_it():
    decoder = stream(capabilities={"broken_tool_json": "error"})

    events = decoder.feed_body(whole({"tool_calls": [piece(id="c", name="f", arguments='{"a')]}))

    assert faults_of_events(events, raw_tool_input=True) == []
    assert events[-1]["error"]["message"] == "invalid tool arguments from upstream"


def test_nesting_that_overflows_a_stack_is_a_fault():
    deep = []
    for _ in range(100_000):
        deep = [deep]

    events = stream().feed(calls(piece(index=0, id="c", name="f", arguments=deep)))

    assert kinds(events) == ["message_start", "error"]
