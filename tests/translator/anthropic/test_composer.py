import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.grammar import faults_of_events
from translator.anthropic.blocks import Block, merged
from translator.anthropic.composer import MessageComposer
from translator.dialect import AnswerContext
from translator.errors import BadUpstream, IllegalMove

from .composing import USAGE, Telling, begun, content, ended, kinds

# Laws


def say_text(composer, key, piece):
    return composer.text(("text", key), piece), ("text", key)


def say_thinking(composer, key, piece):
    return composer.thinking(("thinking", key), piece), ("thinking", key)


def start_tool(composer, key, piece):
    return composer.tool(("tool", key), id=f"call_{piece[1:-1]}", name="t"), None


def say_arguments(composer, key, piece):
    block = composer.block(("tool", key))
    if block is None or block.closed:
        assert composer.arguments(("tool", key), piece) == []
        return [], None
    lead = "" if block.said else "{"
    return composer.arguments(("tool", key), lead + piece), ("tool", key)


def close(composer, key, piece):
    kinds = ("text", "thinking", "tool")
    return [event for kind in kinds for event in composer.close((kind, key))], None


def sign(composer, key, piece):
    return composer.sign(("thinking", key), "sig"), None


def cite(composer, key, piece):
    return composer.citation(("text", key), {"type": "web_search_result_location"}), None


def say_block(composer, key, piece):
    block = {"type": "redacted_thinking", "data": piece}
    return composer.whole_block(("block", key), block), ("block", key)


def say_search(composer, key, piece):
    use = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"q": piece}}
    return composer.server_tool(("search", key), use), ("search", key)


def close_all(composer, key, piece):
    return composer.close_all(), None


SAY = [say_text, say_thinking, say_arguments, say_block, say_search]
DO = [start_tool, close, sign, cite, close_all]
STEPS = st.lists(st.tuples(st.sampled_from(SAY + DO), st.integers(0, 2)), max_size=25)


def play(composer: Telling, steps) -> tuple[list[dict], dict[tuple, list[str]]]:
    """Take the steps; return the events, and the unique pieces that were said, by kind and key."""
    events: list[dict] = []
    said: dict[tuple, list[str]] = {}
    for number, (step, key) in enumerate(steps):
        piece = f"<{number}>"
        more, heard = step(composer, key, piece)
        events += more
        if heard is not None:
            said.setdefault(heard, []).append(piece)
    return events, said


@given(steps=STEPS, cut=st.booleans())
def test_any_order_of_calls_gives_a_legal_stream_and_nothing_said_is_lost(steps, cut):
    composer, events = begun()
    more, said = play(composer, steps)
    events += more

    if cut:
        events += composer.fail(error_type="api_error", message="cut")
    else:
        reason = "tool_use" if composer.tool_calls else "end_turn"
        events = ended(composer, events, reason)

    assert faults_of_events(events, raw_tool_input=True) == []
    heard = json.dumps(content(events), ensure_ascii=False)
    for pieces in said.values():
        assert [heard.count(piece) for piece in pieces] == [1] * len(pieces)
        assert re.search(".*".join(map(re.escape, pieces)), heard)


@given(
    steps=STEPS,
    thinking=st.sampled_from(["shown", "omitted", "hidden"]),
    single=st.booleans(),
    blocks=st.booleans(),
    stop=st.sampled_from([(), ("3",), ("><1", "2>")]),
)
def test_every_context_gives_a_legal_stream(steps, thinking, single, blocks, stop):
    composer, events = begun(
        thinking=thinking,
        single_tool_call=single,
        finished_blocks=blocks,
        stop_sequences=stop,
        optional_properties={"t": frozenset({"x"})},
    )
    events += play(composer, steps)[0]
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
    composer, _ = begun()

    assert composer.text("k", "") == []
    assert kinds(composer.text("k", "a")) == ["start", "delta"]
    assert kinds(composer.text("k", "b")) == ["delta"]
    assert kinds(composer.close("k")) == ["stop"]
    assert composer.close("k") == []


def test_text_ends_where_a_tool_begins_and_goes_on_after_it():
    composer, events = begun()
    events += composer.text("t", "one")
    events += composer.tool("c", id="call_1", name="f")
    events += composer.text("t", "two")
    events += composer.arguments("c", '{"a":1}')
    events += composer.close("c")

    assert [b.get("text") or b["input"] for b in content(ended(composer, events))] == [
        "one",
        {"a": 1},
        "two",
    ]


def test_two_texts_at_once_stay_two_blocks():
    composer, events = begun()
    for key, piece in [("a", "1"), ("b", "x"), ("a", "2"), ("b", "y")]:
        events += composer.text(key, piece)

    assert [b["text"] for b in content(ended(composer, events))] == ["12", "xy"]


def test_what_may_be_a_stop_sequence_is_held_back_and_let_go_at_the_close():
    composer, events = begun(stop_sequences=("STOP",), finished_blocks=True)
    events += composer.text("t", "go ST")
    assert events[-1]["delta"]["text"] == "go "

    events += composer.close("t")

    assert events[-2]["delta"]["text"] == "ST"
    assert events[-1]["content_block"] == {"type": "text", "text": "go ST"}


def test_nothing_is_said_after_a_stop_sequence():
    composer, events = begun(stop_sequences=("STOP",), finished_blocks=True)
    events += composer.tool("c", id="call_1", name="f")
    events += composer.text("t", "go ST")
    events += composer.tool("d", id="call_2", name="f")
    events += composer.text("u", "x")
    events += composer.text("t", "more")
    events += composer.close("c")
    assert composer.matched_stop is None

    composer, events = begun(stop_sequences=("STOP",), finished_blocks=True)
    events += composer.tool("c", id="call_1", name="f")
    events += composer.text("t", "go ST")
    events += composer.text("u", "later")
    events += composer.text("t", "OP now")
    assert composer.matched_stop == "STOP"
    for silent in (
        composer.text("t", "x"),
        composer.thinking("r", "x"),
        composer.sign("r", "x"),
        composer.tool("d", id="call_2", name="f"),
        composer.arguments("u", "x"),
        composer.whole_block("w", {"type": "redacted_thinking", "data": ""}),
        composer.server_tool("s", {"type": "server_tool_use", "input": {}}),
    ):
        assert silent == []
    events += composer.finish(stop_reason="stop_sequence", usage=USAGE, stop_sequence="STOP")

    assert content(events)[1:] == [{"type": "text", "text": "go "}]
    assert events[-3]["content_block"] == {"type": "text", "text": "go "}
    assert events[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "STOP"}


def test_a_text_that_is_nothing_but_a_stop_sequence_leaves_no_block():
    composer, events = begun(stop_sequences=("STOP",))
    events += composer.text("t", "STOP")

    assert content(ended(composer, events, "stop_sequence")) == []


def test_a_citation_joins_its_text_and_comes_too_late_after_it():
    composer, events = begun(finished_blocks=True)
    citation = {"type": "web_search_result_location", "url": "u"}
    assert composer.citation("t", citation) == []
    events += composer.text("t", "a")
    events += composer.citation("t", citation)
    events += composer.close("t")
    assert composer.citation("t", citation) == []

    [block] = content(ended(composer, events))
    assert block == {"type": "text", "text": "a", "citations": [citation]}
    assert block in [event.get("content_block") for event in events]


# Reasoning


def test_reasoning_is_shown_and_signed_right_before_its_end():
    composer, events = begun(finished_blocks=True)
    events += composer.thinking("r", "why")
    events += composer.sign("r", "sig")
    assert composer.sign("r", "again") == []

    assert kinds(events[1:]) == ["start", "delta", "delta", "stop"]
    assert events[-1]["content_block"] == {
        "type": "thinking",
        "thinking": "why",
        "signature": "sig",
    }


def test_reasoning_that_is_omitted_leaves_only_its_signature():
    composer, events = begun(thinking="omitted", finished_blocks=True)
    events += composer.thinking("r", "why")
    events += composer.sign("r", "sig")

    assert composer.block("r").said == "why"
    assert events[-1]["content_block"] == {"type": "thinking", "thinking": "", "signature": "sig"}


def test_reasoning_with_nothing_to_show_or_carry_leaves_no_block():
    composer, events = begun(thinking="omitted")
    events += composer.thinking("r", "why")
    events += composer.sign("r", "")

    assert content(ended(composer, events)) == []


def test_a_second_stretch_of_reasoning_gets_a_new_block():
    composer, events = begun()
    for piece in "ab":
        events += composer.thinking("r", piece)
        events += composer.sign("r", piece)

    assert [b["thinking"] for b in content(ended(composer, events))] == ["a", "b"]


# Endings


def test_it_starts_once_and_ends_once():
    composer, _ = begun()
    assert composer.start(message_id="msg_2", model="m") == []

    assert kinds(composer.finish(stop_reason="end_turn", usage=USAGE)) == [
        "message_delta",
        "message_stop",
    ]
    assert composer.finish(stop_reason="end_turn", usage=USAGE) == []
    assert composer.fail(error_type="api_error", message="x") == []
    assert composer.text("t", "x") == []
    assert composer.live is None


def test_nothing_starts_after_a_failure():
    composer = Telling(MessageComposer(AnswerContext()))
    composer.fail(error_type="api_error", message="x")

    assert composer.start(message_id="msg_1", model="m") == []


def test_a_failure_lets_go_what_was_waiting():
    composer, events = begun()
    events += composer.tool("c", id="call_1", name="f")
    events += composer.text("t", "waits")
    assert composer.live is composer.block("c")

    events += composer.fail(error_type="api_error", message="cut")

    assert content(events)[1] == {"type": "text", "text": "waits"}
    assert faults_of_events(events) == []


def test_a_failure_before_anything_is_just_an_error():
    composer = Telling(MessageComposer(AnswerContext()))

    assert composer.fail(error_type="api_error", message="x") == [
        {"type": "error", "error": {"type": "api_error", "message": "x"}}
    ]


def test_a_block_before_the_start_is_illegal():
    with pytest.raises(IllegalMove):
        MessageComposer(AnswerContext()).text("t", "x")


@pytest.mark.parametrize("junk", [[1], {"a": 1}, 5])
def test_what_is_no_text_is_refused_before_it_changes_anything(junk):
    composer, events = begun()
    events += composer.tool("c", id="call_1", name="f")
    for say in (
        lambda: composer.text("t", junk),
        lambda: composer.thinking("r", junk),
        lambda: composer.tool("d", id=junk, name="f"),
        lambda: composer.tool("d", id="call_2", name=junk),
        lambda: composer.arguments("c", junk),
        lambda: composer.whole_arguments("c", junk),
    ):
        with pytest.raises(BadUpstream, match="where text belongs"):
            say()

    assert len(content(ended(composer, events, "tool_use"))) == 1


# Deltas that waited


def test_waiting_deltas_of_one_kind_leave_as_one():
    def args(piece):
        return {"type": "input_json_delta", "partial_json": piece}

    citation = {"type": "citations_delta", "citation": {}}
    text = {"type": "text_delta", "text": "x"}

    assert merged([]) == []
    assert merged([args(""), args("a"), args("b")]) == [args(""), args("ab")]
    assert merged([text, text, citation, citation, text]) == [
        {"type": "text_delta", "text": "xx"},
        citation,
        citation,
        text,
    ]


def test_a_block_knows_its_type_and_its_deltas():
    block = Block("k", {"type": "thinking"})

    assert (block.type, block.delta("a")) == (
        "thinking",
        {"type": "thinking_delta", "thinking": "a"},
    )
