"""Tool calls through the composer: in order, whole, and only what may be shown."""

import json

import pytest

from tests.fakes.grammar import faults_of_events
from translator.anthropic.composer import BROKEN, CHANGED, REPAIRED
from translator.errors import BadUpstream

from .composing import STRICT, USAGE, begun, content, ended


def test_a_tool_call_starts_with_an_empty_delta():
    composer, _ = begun(tool_names={"short": "the long name"})

    start, delta = composer.tool("c", id="call_1", name="short")

    assert start["content_block"] == {
        "type": "tool_use",
        "id": "call_1",
        "name": "the long name",
        "input": {},
    }
    assert delta["delta"] == {"type": "input_json_delta", "partial_json": ""}


def test_interleaved_calls_leave_one_after_the_other_as_whole_deltas():
    composer, events = begun()
    events += composer.tool("a", id="call_1", name="f")
    events += composer.tool("b", id="call_2", name="g")
    for key, piece in [("b", '{"x"'), ("a", '{"y"'), ("b", ":1"), ("a", ":2}"), ("b", "}")]:
        events += composer.arguments(key, piece)
    events += composer.close("b")
    waited = composer.close("a")

    assert [event["delta"]["partial_json"] for event in waited if "delta" in event] == [
        "",
        '{"x":1}',
    ]
    blocks = content(ended(composer, events + waited, "tool_use"))
    assert [(b["id"], b["input"]) for b in blocks] == [("call_1", {"y": 2}), ("call_2", {"x": 1})]


def test_the_same_call_again_is_nothing_and_another_id_is_another_call():
    composer, events = begun()
    events += composer.tool("c", id="call_1", name="f")
    assert composer.tool("c", id="call_1", name="f") == []
    events += composer.tool("c", id="call_2", name="f")

    assert [b["id"] for b in content(ended(composer, events, "tool_use"))] == ["call_1", "call_2"]
    assert composer.tool_calls == 2


def test_only_the_first_call_is_kept_where_one_was_asked_for():
    composer, events = begun(single_tool_call=True)
    events += composer.tool("a", id="call_1", name="f")
    for _ in range(2):
        assert composer.tool("b", id="call_2", name="f") == []
    assert composer.arguments("b", "{}") == []

    assert len(content(ended(composer, events, "tool_use"))) == 1
    assert [note.fate for note in composer.notes] == ["dropped"]


def arguments(*pieces: str, whole: str | None = None, **context) -> tuple[str, object, list]:
    """What is sent of a call's arguments, the finished input, and the notes."""
    composer, events = begun(finished_blocks=True, **context)
    events += composer.tool("c", id="call_1", name="f")
    for piece in pieces:
        events += composer.arguments("c", piece)
    if whole is not None:
        events += composer.whole_arguments("c", whole)
    events += composer.close("c")
    assert composer.whole_arguments("c", '{"late":1}') == []
    sent = "".join(event["delta"]["partial_json"] for event in events if "delta" in event)
    return sent, events[-1]["content_block"]["input"], composer.notes


@pytest.mark.parametrize(
    ("pieces", "whole", "sent", "value", "notes"),
    [
        (["{}"], None, "{}", {}, []),
        ([], None, "", {}, []),
        ([" ", "\n"], None, "", {}, []),
        ([" ", '{"a"', ":1}"], None, '{"a":1}', {"a": 1}, []),
        (["null"], None, "", {}, []),
        (["[1]"], None, '{"value":[1]}', {"value": [1]}, [REPAIRED]),
        (["oh", " no"], None, "oh no", "oh no", [BROKEN]),
        (['{"a":'], None, '{"a":', '{"a":', [BROKEN]),
        (['{"a":1,', "}"], None, '{"a":1,}', '{"a":1,}', [BROKEN]),
        ([], '{"a": 1}', '{"a": 1}', {"a": 1}, []),
        ([], "", "", {}, []),
        ([], "{'a': 1}", '{"a":1}', {"a": 1}, [REPAIRED]),
        (['{"a"'], '{"a":1}', '{"a":1}', {"a": 1}, []),
        (['{"a":1}'], "", '{"a":1}', {"a": 1}, []),
        (['{"a":1}'], '{"b":1}', '{"a":1}', {"a": 1}, [CHANGED]),
        (["nul"], '{"a":1}', '{"a":1}', {"a": 1}, []),
    ],
)
def test_arguments_reach_the_client_as_an_object_wherever_that_is_safe(
    pieces, whole, sent, value, notes
):
    assert arguments(*pieces, whole=whole) == (sent, value, notes)


def test_one_note_is_enough_for_many_broken_calls():
    composer, events = begun()
    for number in range(2):
        events += composer.tool(number, id=f"call_{number}", name="f")
        events += composer.arguments(number, "{oops}")
        events += composer.close(number)

    assert composer.notes == [BROKEN]


def test_nulls_of_optional_properties_are_taken_out_again():
    optional = {"f": frozenset({"b"})}

    assert arguments('{"a":null,"b"', ":null}", optional_properties=optional) == (
        '{"a":null}',
        {"a": None},
        [],
    )
    assert arguments('{"b":null}', optional_properties=optional)[0] == "{}"
    assert arguments("{oops", optional_properties=optional)[:2] == ("{oops", "{oops")


@pytest.mark.parametrize(
    "context", [{"finished_blocks": True}, {"optional_properties": {"f": {"b"}}}]
)
def test_an_escape_that_is_half_a_pair_can_be_sent_once_it_is_read(context):
    composer, events = begun(**context)
    events += composer.tool("c", id="call_1", name="f")
    events += composer.arguments("c", r'{"a":"\ud83d","c":"\u00e9"}')
    events += composer.close("c")

    json.dumps(events, ensure_ascii=False).encode()
    lost = "\N{REPLACEMENT CHARACTER}"
    assert {"a": lost, "c": "é"} in (
        events[-1].get("content_block", {}).get("input"),
        json.loads(events[-2]["delta"]["partial_json"]),
    )


def test_broken_arguments_can_be_made_a_fault_of_the_answer():
    composer, events = begun(target=STRICT)
    events += composer.tool("c", id="call_1", name="f")
    events += composer.arguments("c", "{oops}")
    with pytest.raises(BadUpstream, match="invalid tool arguments"):
        composer.finish(stop_reason="tool_use", usage=USAGE)

    composer.fail(error_type="api_error", message="x")
    events = composer.writer.written  # nobody emptied it: all of it
    assert faults_of_events(events, raw_tool_input=True) == []


def test_arguments_that_were_cut_are_no_fault():
    composer, events = begun(target=STRICT)
    events += composer.tool("c", id="call_1", name="f")
    events += composer.arguments("c", '{"a":')

    assert ended(composer, events, "max_tokens")[-1] == {"type": "message_stop"}


def test_a_server_tool_s_call_and_its_result_are_told_whole():
    composer, events = begun(finished_blocks=True)
    use = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}
    result = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    events += composer.server_tool("s", use)
    events += composer.whole_block("r", result)

    assert content(ended(composer, events)) == [use, result]
