"""The machine as its callers see it: what it promises beside the events of the cases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.grammar import faults_of_events
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
from tests.translator.requests import KEYS
from translator.anthropic.fold import fold
from translator.arguments import compact_json
from translator.dialect import UpstreamError
from translator.notes import Note
from translator.openai_chat import DIALECT
from translator.openai_chat.stream import ChatStream

LATE = UpstreamError(status=504, error_type="timeout_error", message="upstream fell silent")


def kinds(events):
    return [event["type"] for event in events]


def test_the_dialect_says_where_it_posts():
    assert (DIALECT.name, DIALECT.path, DIALECT.stream) == ("chat", "/chat/completions", ChatStream)


def test_it_remembers_who_answered_what():
    heard = stream(model="claude-bridge")

    start, *_ = hear(heard, chunk(content="Hello."), chunk("stop"), usage())

    assert (heard.upstream_id, heard.upstream_model) == ("chatcmpl-1", "qwen3")
    assert (heard.stop_reason, heard.finished, heard.error) == ("end_turn", True, None)
    assert start["message"]["model"] == "claude-bridge"
    assert start["message"]["id"] == "msg_1"


def test_without_an_id_of_ours_the_upstream_s_decides():
    first, second = (message(chunk(content="x"), chunk("stop"), message_id="") for _ in range(2))

    assert first["id"] == second["id"]
    assert first["id"].startswith("msg_")
    assert "chatcmpl" not in first["id"]
    assert first["model"] == "qwen3"


REASONING = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
THOUGHT = {"google": {"thought": True}}


@pytest.mark.parametrize(
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
def test_vendors_wrap_what_they_say(delta):
    """Databricks, TGI, Gemini and others; the same streamed and whole."""
    heard = stream()
    streamed = fold(hear(heard, chunk(**delta), chunk("tool_calls"), usage()))

    assert [list(block.values())[:2] for block in streamed["content"]] == [
        ["thinking", "Hm."],
        ["text", "Yes."],
        ["tool_use", "c"],
    ]
    assert not heard.unknown
    assert fold(stream().feed_whole(whole(delta, "tool_calls"))) == streamed


def test_gemini_ends_its_reasoning_where_the_answer_begins():
    told = message(
        chunk(content="<thought>H", extra_content=THOUGHT),
        chunk(content="m.", extra_content=THOUGHT),
        chunk(content="</thought>Yes."),
        chunk("stop", content="", extra_content={"google": {"thought_signature": "s"}}),
    )

    assert [list(block.values())[:2] for block in told["content"]] == [
        ["thinking", "Hm."],
        ["text", "Yes."],
    ]


@pytest.mark.parametrize("extra", [7, {"google": None}, {"google": {"news": "s"}}])
def test_what_is_said_beside_the_content_is_counted_where_nobody_knows_it(extra):
    heard = stream()
    hear(heard, chunk(content="Yes."), chunk("stop", extra_content=extra))

    assert heard.unknown == {"delta.extra_content": 1}


def test_a_choice_may_be_counted_in_words():
    pieces = [{"choices": [{"index": "0", "delta": {"content": "Yes."}}]}, chunk("stop")]

    assert message(*pieces)["content"] == [{"type": "text", "text": "Yes."}]


@pytest.mark.parametrize("plain", [{"text": "Yes."}, {"delta": "Yes."}])
def test_a_choice_may_be_nothing_but_text(plain):
    pieces = [{"choices": [{"index": 0, **plain}]}, {"choices": [{"finish_reason": "stop"}]}]

    assert message(*pieces)["content"] == [{"type": "text", "text": "Yes."}]
    body = {"choices": [{"finish_reason": "stop", **plain}], "usage": {}}
    assert fold(stream().feed_whole(body))["content"] == [{"type": "text", "text": "Yes."}]


def test_an_estimate_of_the_input_opens_the_message():
    start, *_ = hear(stream(input_estimate=77), chunk(content="x"), chunk("stop"), usage())

    assert start["message"]["usage"]["input_tokens"] == 77


def test_after_its_end_it_says_nothing_more():
    heard = stream()
    hear(heard, chunk(content="Hello."), chunk("stop"))

    assert heard.feed(chunk(content="more")) == []
    assert heard.feed_whole(whole({"content": "more"})) == []
    assert heard.end() == heard.fail(LATE) == []
    assert heard.error is None


def test_a_cause_outside_the_events_ends_it_in_an_error():
    heard = stream()
    events = heard.feed(chunk(content="Hel")) + heard.fail(LATE)

    assert kinds(events)[-2:] == ["content_block_stop", "error"]
    assert events[-1]["error"]["type"] == "timeout_error"
    assert heard.error is LATE
    assert heard.stop_reason is None


def test_a_failure_before_anything_was_said_has_no_message_around_it():
    assert kinds(stream().fail(LATE)) == ["error"]


@pytest.mark.parametrize(
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
def test_a_chunk_that_makes_no_sense_is_the_upstream_s_fault(broken):
    heard = stream()
    heard.feed(chunk(content="Hel"))

    events = heard.feed(broken)

    assert kinds(events)[-1] == "error"
    assert heard.error.status == 502
    assert heard.fault is not None
    assert heard.finished


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
def test_whatever_comes_it_speaks_legally_and_never_raises(chunks, capabilities):
    heard = stream(keys=KEYS, capabilities=capabilities, stop_sequences=("a",))

    events = [event for each in chunks for event in heard.feed(each)] + heard.end()

    assert faults_of_events(events, raw_tool_input=True) == []


@given(JSON | CHUNKS)
def test_whatever_comes_whole_it_speaks_legally_and_never_raises(body):
    events = stream().feed_whole(body)

    assert faults_of_events(events, raw_tool_input=True) == []
    assert kinds(events)[-1] in {"message_stop", "error"}


WORDS = st.text(alphabet="ab <think/>", max_size=12)
ARGUMENTS = st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=4), max_size=3)


@given(WORDS, WORDS, st.lists(ARGUMENTS, max_size=3), st.data())
def test_a_stream_folds_into_what_the_whole_answer_is(thinking, said, inputs, data):
    texts = [compact_json(each) for each in inputs]
    named = [piece(id=f"call_{n}", name="f", arguments=t) for n, t in enumerate(texts)]
    told = {"reasoning": thinking, "content": said, "tool_calls": named}
    deltas = [chunk(reasoning=part) for part in cut(thinking, data)]
    deltas += [chunk(content=part) for part in cut(said, data)]
    for n, arguments in enumerate(texts):
        deltas.append(calls(piece(index=n, id=f"call_{n}", name="f", arguments="")))
        deltas += [calls(piece(index=n, arguments=part)) for part in cut(arguments, data)]

    streamed = message(*deltas, chunk("stop"), usage())

    assert streamed == fold(stream().feed_whole(whole(told)))


def cut(text, data):
    """The text in pieces, cut anywhere."""
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def test_refused_prompts_in_mid_answer_end_as_refusals():
    refused = {"error": {"code": "content_filter", "message": "no"}}

    told = message(chunk(content="Hel"), refused)

    assert told["stop_reason"] == "refusal"
    assert told["stop_details"]["explanation"]


def test_a_refusal_in_a_content_part_is_a_refusal():
    part = {"type": "refusal", "refusal": "No."}

    told = message(chunk(content=[part, {"type": "refusal"}, "!"]), chunk("stop"))

    assert [block["text"] for block in told["content"]] == ["No.!"]
    assert told["stop_reason"] == "refusal"


def test_thinking_parts_may_hold_plain_text():
    told = message(chunk(content=[{"type": "thinking", "thinking": "Hm."}]), chunk("stop"))

    assert told["content"][0]["thinking"] == "Hm."


def test_flat_annotations_are_citations_too_and_bad_ranges_cite_nothing():
    flat = {"type": "url_citation", "url": "https://a", "start_index": 9, "end_index": 2}

    told = message(chunk(content="Hello."), chunk(annotations=[flat]), chunk("stop"))

    citation = told["content"][0]["citations"][0]
    assert (citation["url"], citation["title"], citation["cited_text"]) == ("https://a", None, "")


def test_a_citation_without_its_text_is_dropped_and_told():
    heard = stream()

    hear(heard, chunk(annotations=[{"type": "url_citation", "url": "https://a"}]), chunk("stop"))

    assert Note("content", "dropped", "a citation without its text") in heard.notes


def test_opaque_reasoning_is_carried_with_keys_and_told_without():
    details = [{"type": "reasoning.encrypted", "data": "gAAAA"}]
    chunks = [chunk(reasoning_details=details)] * 2 + [chunk(content="No."), chunk("stop"), usage()]
    kept, lost = stream(keys=KEYS), stream()

    with_keys = fold(hear(kept, *chunks))
    without = fold(hear(lost, *chunks))

    assert with_keys["content"][0]["signature"].startswith("brg1.")
    assert [block["type"] for block in without["content"]] == ["text"]
    assert [note.fate for note in lost.notes] == ["dropped"]


def test_hidden_reasoning_with_details_stays_hidden():
    details = [{"type": "reasoning.encrypted", "data": "gAAAA"}]

    told = message(chunk(reasoning_details=details), chunk("stop"), keys=KEYS, thinking="hidden")

    assert told["content"] == []


def test_a_bad_count_is_missing_and_told_once():
    heard = stream()

    hear(heard, chunk(content="x"), usage(prompt_tokens=-1), chunk("stop"), usage(prompt_tokens=-1))

    reasons = [note.reason for note in heard.notes if note.reason.startswith("bad_usage")]
    assert len(reasons) == 1
    assert heard.usage.source == "estimated"


def test_text_after_the_end_is_kept_and_told_once():
    heard = stream()

    told = fold(hear(heard, chunk("stop"), chunk(content="a"), chunk(content="b"), usage()))

    assert [block["text"] for block in told["content"]] == ["ab"]
    assert [note.fate for note in heard.notes] == ["repaired"]


def test_sources_beside_the_answer_are_told_once():
    heard = stream()
    cited = chunk(content="x") | {"citations": ["https://a"], "search_results": []}

    hear(heard, cited, cited, chunk("stop"), usage())

    assert [note.path for note in heard.notes] == ["citations"]


def test_what_a_chunk_said_before_it_broke_still_leaves():
    heard = stream()

    events = heard.feed(chunk(content="Hel", tool_calls=[7]))

    assert kinds(events) == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "error",
    ]


def test_broken_arguments_in_a_whole_answer_are_a_fault_where_the_profile_says_so():
    heard = stream(capabilities={"broken_tool_json": "error"})

    events = heard.feed_whole(whole({"tool_calls": [piece(id="c", name="f", arguments='{"a')]}))

    assert faults_of_events(events, raw_tool_input=True) == []
    assert events[-1]["error"]["message"] == "invalid tool arguments from upstream"


def test_nesting_that_overflows_a_stack_is_a_fault():
    deep = []
    for _ in range(100_000):
        deep = [deep]

    events = stream().feed(calls(piece(index=0, id="c", name="f", arguments=deep)))

    assert kinds(events) == ["message_start", "error"]
