import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.upstreams.grammar import faults_of_events
from tests.for_each import for_each
from translator.dialect import ResponseContext
from translator.errors import BadUpstream, IllegalMove
from translator.message_stream.message_composer import MessageComposer
from translator.message_stream.open_block import Block, merge_deltas

from .composing import USAGE, EventRecorder, content, ended, kinds, started

# Properties


def add_text(composer, key, piece):
    return composer.add_text(("text", key), piece), ("text", key)


def add_thinking(composer, key, piece):
    return composer.add_thinking(("thinking", key), piece), ("thinking", key)


def start_tool(composer, key, piece):
    return composer.start_tool_call(("tool", key), id=f"call_{piece[1:-1]}", name="t"), None


def add_arguments(composer, key, piece):
    block = composer.find_block(("tool", key))
    if block is None or block.is_closed:
        assert composer.add_arguments(("tool", key), piece) == []
        return [], None
    lead = "" if block.text else "{"
    return composer.add_arguments(("tool", key), lead + piece), ("tool", key)


def close(composer, key, piece):
    kinds = ("text", "thinking", "tool")
    return [event for kind in kinds for event in composer.close_block((kind, key))], None


def sign(composer, key, piece):
    return composer.close_thinking(("thinking", key), "sig"), None


def cite(composer, key, piece):
    return composer.add_citation(("text", key), {"type": "web_search_result_location"}), None


def add_block(composer, key, piece):
    block = {"type": "redacted_thinking", "data": piece}
    return composer.add_complete_block(("block", key), block), ("block", key)


def add_search(composer, key, piece):
    use = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"q": piece}}
    return composer.add_server_tool_use(("search", key), use), ("search", key)


def close_all(composer, key, piece):
    return composer.close_all_blocks(), None


ADD = [add_text, add_thinking, add_arguments, add_block, add_search]
DO = [start_tool, close, sign, cite, close_all]
STEPS = st.lists(st.tuples(st.sampled_from(ADD + DO), st.integers(0, 2)), max_size=25)


def run_steps(composer: EventRecorder, steps) -> tuple[list[dict], dict[tuple, list[str]]]:
    """Run the steps; return the events and the unique pieces of output, by type and key."""
    events: list[dict] = []
    emitted: dict[tuple, list[str]] = {}
    for number, (step, key) in enumerate(steps):
        piece = f"<{number}>"
        more, decoder = step(composer, key, piece)
        events += more
        if decoder is not None:
            emitted.setdefault(decoder, []).append(piece)
    return events, emitted


@given(steps=STEPS, cut=st.booleans())
def test_any_order_of_steps_gives_a_legal_stream_without_loss(steps, cut):
    composer, events = started()
    more, emitted = run_steps(composer, steps)
    events += more

    if cut:
        events += composer.fail(error_type="api_error", message="cut")
    else:
        reason = "tool_use" if composer.tool_calls else "end_turn"
        events = ended(composer, events, reason)

    assert faults_of_events(events, raw_tool_input=True) == []
    decoder = json.dumps(content(events), ensure_ascii=False)
    for pieces in emitted.values():
        assert [decoder.count(piece) for piece in pieces] == [1] * len(pieces)
        assert re.search(".*".join(map(re.escape, pieces)), decoder)


@given(
    steps=STEPS,
    thinking=st.sampled_from(["shown", "omitted", "hidden"]),
    single=st.booleans(),
    blocks=st.booleans(),
    stop=st.sampled_from([(), ("3",), ("><1", "2>")]),
)
def test_every_context_gives_a_legal_stream(steps, thinking, single, blocks, stop):
    composer, events = started(
        thinking=thinking,
        single_tool_call=single,
        finished_blocks=blocks,
        stop_sequences=stop,
        optional_properties={"t": frozenset({"x"})},
    )
    events += run_steps(composer, steps)[0]
    matched = composer.matched_stop
    reason = "stop_sequence" if matched else "tool_use" if composer.tool_calls else "end_turn"
    events += composer.finish(stop_reason=reason, usage=USAGE, stop_sequence=matched)

    assert faults_of_events(events, raw_tool_input=True) == []
    shown = [
        event["content_block"]
        for event in events
        if event["type"] == "content_block_stop" and "content_block" in event
    ]
    assert shown == (content(events) if blocks else [])
    assert "thinking" not in [b["type"] for b in content(events)] or thinking != "hidden"
    assert single <= (sum(b["type"] == "tool_use" for b in content(events)) <= 1)


# Text


def test_text_leaves_at_once_and_opens_its_block_lazily():
    composer, _ = started()

    assert composer.add_text("k", "") == []
    assert kinds(composer.add_text("k", "a")) == ["start", "delta"]
    assert kinds(composer.add_text("k", "b")) == ["delta"]
    assert kinds(composer.close_block("k")) == ["stop"]
    assert composer.close_block("k") == []


def test_text_ends_where_a_tool_begins_and_goes_on_after_it():
    composer, events = started()
    events += composer.add_text("t", "one")
    events += composer.start_tool_call("c", id="call_1", name="f")
    events += composer.add_text("t", "two")
    events += composer.add_arguments("c", '{"a":1}')
    events += composer.close_block("c")

    assert [b.get("text") or b["input"] for b in content(ended(composer, events))] == [
        "one",
        {"a": 1},
        "two",
    ]


def test_two_texts_at_once_stay_two_blocks():
    composer, events = started()
    for key, piece in [("a", "1"), ("b", "x"), ("a", "2"), ("b", "y")]:
        events += composer.add_text(key, piece)

    assert [b["text"] for b in content(ended(composer, events))] == ["12", "xy"]


def test_a_possible_stop_sequence_is_withheld_until_the_block_closes():
    composer, events = started(stop_sequences=("STOP",), finished_blocks=True)
    events += composer.add_text("t", "go ST")
    assert events[-1]["delta"]["text"] == "go "

    events += composer.close_block("t")

    assert events[-2]["delta"]["text"] == "ST"
    assert events[-1]["content_block"] == {"type": "text", "text": "go ST", "citations": None}


def test_no_output_follows_a_stop_sequence():
    composer, events = started(stop_sequences=("STOP",), finished_blocks=True)
    events += composer.start_tool_call("c", id="call_1", name="f")
    events += composer.add_text("t", "go ST")
    events += composer.start_tool_call("d", id="call_2", name="f")
    events += composer.add_text("u", "x")
    events += composer.add_text("t", "more")
    events += composer.close_block("c")
    assert composer.matched_stop is None

    composer, events = started(stop_sequences=("STOP",), finished_blocks=True)
    events += composer.start_tool_call("c", id="call_1", name="f")
    events += composer.add_text("t", "go ST")
    events += composer.add_text("u", "later")
    events += composer.add_text("t", "OP now")
    assert composer.matched_stop == "STOP"
    for silent in (
        composer.add_text("t", "x"),
        composer.add_thinking("r", "x"),
        composer.close_thinking("r", "x"),
        composer.start_tool_call("d", id="call_2", name="f"),
        composer.add_arguments("u", "x"),
        composer.add_complete_block("w", {"type": "redacted_thinking", "data": ""}),
        composer.add_server_tool_use("s", {"type": "server_tool_use", "input": {}}),
    ):
        assert silent == []
    events += composer.finish(stop_reason="stop_sequence", usage=USAGE, stop_sequence="STOP")

    assert content(events)[1:] == [{"type": "text", "text": "go ", "citations": None}]
    assert events[-3]["content_block"] == content(events)[1]
    end = events[-2]["delta"]
    assert (end["stop_reason"], end["stop_sequence"]) == ("stop_sequence", "STOP")


def test_text_that_is_only_a_stop_sequence_makes_no_block():
    composer, events = started(stop_sequences=("STOP",))
    events += composer.add_text("t", "STOP")

    assert content(ended(composer, events, "stop_sequence")) == []


def test_a_citation_joins_its_open_text_block_only():
    composer, events = started(finished_blocks=True)
    citation = {"type": "web_search_result_location", "url": "u"}
    assert composer.add_citation("t", citation) == []
    events += composer.add_text("t", "a")
    events += composer.add_citation("t", citation)
    events += composer.close_block("t")
    assert composer.add_citation("t", citation) == []

    [block] = content(ended(composer, events))
    assert block == {"type": "text", "text": "a", "citations": [citation]}
    assert block in [event.get("content_block") for event in events]


# Reasoning


def test_reasoning_is_shown_and_signed_right_before_its_end():
    composer, events = started(finished_blocks=True)
    events += composer.add_thinking("r", "why")
    events += composer.close_thinking("r", "sig")
    assert composer.close_thinking("r", "again") == []

    assert kinds(events[1:]) == ["start", "delta", "delta", "stop"]
    assert events[-1]["content_block"] == {
        "type": "thinking",
        "thinking": "why",
        "signature": "sig",
    }


def test_reasoning_that_is_omitted_leaves_only_its_signature():
    composer, events = started(thinking="omitted", finished_blocks=True)
    events += composer.add_thinking("r", "why")
    events += composer.close_thinking("r", "sig")

    assert composer.find_block("r").text == "why"
    assert events[-1]["content_block"] == {"type": "thinking", "thinking": "", "signature": "sig"}


def test_empty_reasoning_makes_no_block():
    composer, events = started(thinking="omitted")
    events += composer.add_thinking("r", "why")
    events += composer.close_thinking("r", "")

    assert content(ended(composer, events)) == []


def test_later_reasoning_gets_a_new_block():
    composer, events = started()
    for piece in "ab":
        events += composer.add_thinking("r", piece)
        events += composer.close_thinking("r", piece)

    assert [b["thinking"] for b in content(ended(composer, events))] == ["a", "b"]


# Endings


def test_the_message_starts_and_ends_once():
    composer, _ = started()
    assert composer.start(message_id="msg_2", model="m") == []

    assert kinds(composer.finish(stop_reason="end_turn", usage=USAGE)) == [
        "message_delta",
        "message_stop",
    ]
    assert composer.finish(stop_reason="end_turn", usage=USAGE) == []
    assert composer.fail(error_type="api_error", message="x") == []
    assert composer.add_text("t", "x") == []


def test_nothing_starts_after_a_failure():
    composer = EventRecorder(MessageComposer(ResponseContext()))
    composer.fail(error_type="api_error", message="x")

    assert composer.start(message_id="msg_1", model="m") == []


def test_a_failure_emits_withheld_text_first():
    composer, events = started()
    events += composer.start_tool_call("c", id="call_1", name="f")
    events += composer.add_text("t", "waits")
    assert "waits" not in str(events)

    events += composer.fail(error_type="api_error", message="cut")

    assert content(events)[1] == {"type": "text", "text": "waits", "citations": None}
    assert faults_of_events(events) == []


def test_a_failure_before_the_start_is_a_single_error_event():
    composer = EventRecorder(MessageComposer(ResponseContext()))

    assert composer.fail(error_type="api_error", message="x") == [
        {"type": "error", "error": {"type": "api_error", "message": "x"}}
    ]


def test_a_block_before_the_start_is_illegal():
    with pytest.raises(IllegalMove):
        MessageComposer(ResponseContext()).add_text("t", "x")


@for_each("junk", [[1], {"a": 1}, 5])
def test_a_value_that_is_not_text_is_rejected_without_changes(junk):
    composer, events = started()
    events += composer.start_tool_call("c", id="call_1", name="f")
    for step in (
        lambda: composer.add_text("t", junk),
        lambda: composer.add_thinking("r", junk),
        lambda: composer.start_tool_call("d", id=junk, name="f"),
        lambda: composer.start_tool_call("d", id="call_2", name=junk),
        lambda: composer.add_arguments("c", junk),
        lambda: composer.finish_arguments("c", junk),
    ):
        with pytest.raises(BadUpstream, match="where text belongs"):
            step()

    assert len(content(ended(composer, events, "tool_use"))) == 1


# Deltas that waited


def test_waiting_deltas_of_one_type_are_merged():
    def args(piece):
        return {"type": "input_json_delta", "partial_json": piece}

    citation = {"type": "citations_delta", "citation": {}}
    text = {"type": "text_delta", "text": "x"}

    assert merge_deltas([]) == []
    assert merge_deltas([args(""), args("a"), args("b")]) == [args(""), args("ab")]
    assert merge_deltas([text, text, citation, citation, text]) == [
        {"type": "text_delta", "text": "xx"},
        citation,
        citation,
        text,
    ]


def test_a_block_has_its_type_and_deltas():
    block = Block("k", {"type": "thinking"})

    assert (block.type, block.make_delta("a")) == (
        "thinking",
        {"type": "thinking_delta", "thinking": "a"},
    )


@for_each(
    ("pieces", "expected"),
    [
        ([" ", "\n\n"], []),
        ([" ", "\n", "a", " "], [" \na "]),
        (["a", "\n\n", "b"], ["a\n\nb"]),
        (["\u00a0\u2003"], []),
    ],
)
@for_each("stops", [(), ("STOP", "\n\nHuman:")])
def test_no_block_of_white_space_alone_is_made(pieces, expected, stops):
    composer, events = started(stop_sequences=stops)
    for piece in pieces:
        events += composer.add_text("t", piece)
    events += composer.start_tool_call("c", id="call_1", name="f")
    events += composer.add_text("u", "\n")
    blocks = content(ended(composer, events, "tool_use"))

    assert [block["text"] for block in blocks if block["type"] == "text"] == expected
