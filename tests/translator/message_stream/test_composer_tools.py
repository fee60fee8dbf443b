"""The composer emits tool calls in order, complete and without hidden content."""

import json

import pytest

from tests.fakes.upstreams.grammar import faults_of_events
from tests.for_each import for_each
from translator.errors import BadUpstream
from translator.message_stream.message_composer import CHANGED_ARGUMENTS, MAX_CALLS
from translator.message_stream.open_block import BROKEN_ARGUMENTS, REPAIRED_ARGUMENTS

from .composing import STRICT, USAGE, content, ended, started


def test_a_tool_call_starts_with_an_empty_delta():
    composer, _ = started(tool_names={"short": "the long name"})

    start, delta = composer.start_tool_call("c", id="call_1", name="short")

    assert start["content_block"] == {
        "type": "tool_use",
        "id": "call_1",
        "name": "the long name",
        "input": {},
        "caller": {"type": "direct"},
    }
    assert delta["delta"] == {"type": "input_json_delta", "partial_json": ""}


def test_interleaved_calls_are_emitted_one_after_the_other():
    composer, events = started()
    events += composer.start_tool_call("a", id="call_1", name="f")
    events += composer.start_tool_call("b", id="call_2", name="g")
    for key, piece in [("b", '{"x"'), ("a", '{"y"'), ("b", ":1"), ("a", ":2}"), ("b", "}")]:
        events += composer.add_arguments(key, piece)
    events += composer.close_block("b")
    waited = composer.close_block("a")

    assert [event["delta"]["partial_json"] for event in waited if "delta" in event] == [
        "",
        '{"x":1}',
    ]
    blocks = content(ended(composer, events + waited, "tool_use"))
    assert [(b["id"], b["input"]) for b in blocks] == [("call_1", {"y": 2}), ("call_2", {"x": 1})]


def test_a_repeated_call_is_ignored_and_a_new_id_is_a_new_call():
    composer, events = started()
    events += composer.start_tool_call("c", id="call_1", name="f")
    assert composer.start_tool_call("c", id="call_1", name="f") == []
    events += composer.start_tool_call("c", id="call_2", name="f")

    assert [b["id"] for b in content(ended(composer, events, "tool_use"))] == ["call_1", "call_2"]
    assert composer.tool_calls == 2


def test_only_the_first_call_remains_without_parallel_calls():
    composer, events = started(single_tool_call=True)
    events += composer.start_tool_call("a", id="call_1", name="f")
    for _ in range(2):
        assert composer.start_tool_call("b", id="call_2", name="f") == []
    assert composer.add_arguments("b", "{}") == []

    assert len(content(ended(composer, events, "tool_use"))) == 1
    assert [note.fate for note in composer.notes] == ["dropped"]


def arguments(*pieces: str, whole: str | None = None, **context) -> tuple[str, object, list]:
    """Return the emitted argument deltas, the finished input and the notes."""
    composer, events = started(finished_blocks=True, **context)
    events += composer.start_tool_call("c", id="call_1", name="f")
    for piece in pieces:
        events += composer.add_arguments("c", piece)
    if whole is not None:
        events += composer.finish_arguments("c", whole)
    events += composer.close_block("c")
    assert composer.finish_arguments("c", '{"late":1}') == []
    sent = "".join(event["delta"]["partial_json"] for event in events if "delta" in event)
    return sent, events[-1]["content_block"]["input"], composer.notes


@for_each(
    ("pieces", "whole", "sent", "value", "notes"),
    [
        (["{}"], None, "{}", {}, []),
        ([], None, "", {}, []),
        ([" ", "\n"], None, "", {}, []),
        ([" ", '{"a"', ":1}"], None, '{"a":1}', {"a": 1}, []),
        (["null"], None, "", {}, []),
        (["[1]"], None, '{"value":[1]}', {"value": [1]}, [REPAIRED_ARGUMENTS]),
        (["oh", " no"], None, "oh no", "oh no", [BROKEN_ARGUMENTS]),
        (['{"a":'], None, '{"a":', '{"a":', [BROKEN_ARGUMENTS]),
        (['{"a":1,', "}"], None, '{"a":1}', {"a": 1}, [REPAIRED_ARGUMENTS]),
        (['{"a":1,}'], None, '{"a":1}', {"a": 1}, [REPAIRED_ARGUMENTS]),
        (
            ['{"a":[1, ', "], ", '"b":2', ", }"],
            None,
            '{"a":[1 ], "b":2 }',
            {"a": [1], "b": 2},
            [REPAIRED_ARGUMENTS],
        ),
        (['{"a":"x,', '}"', "}"], None, '{"a":"x,}"}', {"a": "x,}"}, []),
        (['{"a":1,'], None, '{"a":1,', '{"a":1,', [BROKEN_ARGUMENTS]),
        (["{'a':1,", "}"], None, '{"a":1}', {"a": 1}, [REPAIRED_ARGUMENTS]),
        (["{", "'a':1}"], None, '{"a":1}', {"a": 1}, [REPAIRED_ARGUMENTS]),
        (["{", " ", '"a":1}'], None, '{ "a":1}', {"a": 1}, []),
        (["{"], None, "{", "{", [BROKEN_ARGUMENTS]),
        (["{", "}"], None, "{}", {}, []),
        (['{"a":1}', "I'll ", "look."], None, '{"a":1}', {"a": 1}, [REPAIRED_ARGUMENTS]),
        (['{"a":1}', '{"a"', ":1}"], None, '{"a":1}', {"a": 1}, [REPAIRED_ARGUMENTS]),
        (['{"a":x}', "?"], None, '{"a":x}?', '{"a":x}?', [BROKEN_ARGUMENTS]),
        ([], '{"a": 1}', '{"a": 1}', {"a": 1}, []),
        ([], "", "", {}, []),
        ([], "{'a': 1}", '{"a":1}', {"a": 1}, [REPAIRED_ARGUMENTS]),
        (['{"a"'], '{"a":1}', '{"a":1}', {"a": 1}, []),
        (['{"a":1}'], "", '{"a":1}', {"a": 1}, []),
        (['{"a":1}'], '{"b":1}', '{"a":1}', {"a": 1}, [CHANGED_ARGUMENTS]),
        (["nul"], '{"a":1}', '{"a":1}', {"a": 1}, []),
        (['{"a":1}</tool', "_call>"], None, '{"a":1}', {"a": 1}, [REPAIRED_ARGUMENTS]),
        (['{"a":1}', "\n"], None, '{"a":1}', {"a": 1}, []),
        (['{"a":1}', "{", "}"], None, '{"a":1}', {"a": 1}, [REPAIRED_ARGUMENTS]),
        (['{"a":1', "}\n`", "``"], None, '{"a":1}', {"a": 1}, [REPAIRED_ARGUMENTS]),
        (['{"a":1},'], None, '{"a":1}', {"a": 1}, [REPAIRED_ARGUMENTS]),
        (['{"a":1,}', "}"], None, '{"a":1}', {"a": 1}, [REPAIRED_ARGUMENTS]),
        (["```json\n{", '"a":1}```'], None, '{"a":1}', {"a": 1}, [REPAIRED_ARGUMENTS]),
        ([], '{"a":1}</tool_call>', '{"a":1}', {"a": 1}, [REPAIRED_ARGUMENTS]),
        (['{"a"'], '{"a":1}</tool_call>', '{"a":1}', {"a": 1}, [REPAIRED_ARGUMENTS]),
        (['{"a":1}</t'], '{"a":1}</tool_call>', '{"a":1}', {"a": 1}, [REPAIRED_ARGUMENTS]),
        (['{"a":1}', '{"b":'], None, '{"a":1}{"b":', '{"a":1}{"b":', [BROKEN_ARGUMENTS]),
    ],
)
def test_arguments_are_emitted_as_an_object_if_safe(pieces, whole, sent, value, notes):
    assert arguments(*pieces, whole=whole) == (sent, value, notes)


def test_one_note_is_enough_for_many_broken_calls():
    composer, events = started()
    for number in range(2):
        events += composer.start_tool_call(number, id=f"call_{number}", name="f")
        events += composer.add_arguments(number, "{oops}")
        events += composer.close_block(number)

    assert composer.notes == [BROKEN_ARGUMENTS]


def test_nulls_of_optional_properties_are_removed():
    optional = {"f": frozenset({"b"})}

    assert arguments('{"a":null,"b"', ":null}", optional_properties=optional) == (
        '{"a":null}',
        {"a": None},
        [],
    )
    assert arguments('{"b":null}', optional_properties=optional)[0] == "{}"
    assert arguments("{oops", optional_properties=optional)[:2] == ("{oops", "{oops")


@for_each("context", [{"finished_blocks": True}, {"optional_properties": {"f": {"b"}}}])
def test_an_unpaired_surrogate_escape_is_emitted_as_valid_text(context):
    composer, events = started(**context)
    events += composer.start_tool_call("c", id="call_1", name="f")
    events += composer.add_arguments("c", r'{"a":"\ud83d","c":"\u00e9"}')
    events += composer.close_block("c")

    json.dumps(events, ensure_ascii=False).encode()
    lost = "\N{REPLACEMENT CHARACTER}"
    assert {"a": lost, "c": "é"} in (
        events[-1].get("content_block", {}).get("input"),
        json.loads(events[-2]["delta"]["partial_json"]),
    )


def test_broken_arguments_fail_the_response_if_the_profile_requires_it():
    composer, events = started(target=STRICT)
    events += composer.start_tool_call("c", id="call_1", name="f")
    events += composer.add_arguments("c", "{oops}")
    with pytest.raises(BadUpstream, match="invalid tool arguments"):
        composer.finish(stop_reason="tool_use", usage=USAGE)

    composer.fail(error_type="api_error", message="x")
    events = composer.writer.events  # all events: they were never cleared
    assert faults_of_events(events, raw_tool_input=True) == []


def test_truncated_arguments_are_not_a_fault():
    composer, events = started(target=STRICT)
    events += composer.start_tool_call("c", id="call_1", name="f")
    events += composer.add_arguments("c", '{"a":')

    assert ended(composer, events, "max_tokens")[-1] == {"type": "message_stop"}


def test_a_server_tool_call_and_its_result_are_emitted_whole():
    composer, events = started(finished_blocks=True)
    use = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}
    result = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    events += composer.add_server_tool_use("s", use)
    events += composer.add_complete_block("r", result)

    assert content(ended(composer, events)) == [use, result]


def test_a_response_has_a_limit_of_calls():
    composer, events = started()
    for number in range(MAX_CALLS):
        events += composer.start_tool_call(number, id=f"call_{number}", name="f")
        events += composer.close_block(number)

    with pytest.raises(BadUpstream, match="too many tool calls"):
        composer.start_tool_call("c", id="call_c", name="f")

    composer.fail(error_type="api_error", message="x")
    assert faults_of_events(composer.writer.events) == []
