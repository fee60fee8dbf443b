"""Several calls whose arguments came as those of one call."""

import json
from typing import Any

from tests.for_each import for_each
from translator.message_stream.message_composer import EXCESS_CALL
from translator.message_stream.open_block import BROKEN_ARGUMENTS, GLUED_CALLS, REPAIRED_ARGUMENTS
from translator.stream.tool_arguments import MAX_FURTHER

from .composing import content, ended, started


def called(text: str, step: int, **context: Any):
    """Return the calls of the message, and the composer."""
    composer, events = started(finished_blocks=True, **context)
    events += composer.start_tool_call("c", id="call_1", name="look")
    for start in range(0, len(text), step):
        events += composer.add_arguments("c", text[start : start + step])
    events += composer.start_tool_call("d", id="call_2", name="other")
    events += composer.close_block("c")
    calls = content(ended(composer, events, "tool_use"))
    finished = [e["content_block"] for e in events if e["type"] == "content_block_stop"]
    assert finished == calls[: len(finished)]
    return calls[:-1], composer


@for_each(
    ("text", "inputs", "note"),
    [
        ('{"a":1}{"a":2}', [1, 2], GLUED_CALLS),
        ('{"a":1}\n{"a":2}\n', [1, 2], GLUED_CALLS),
        ('{"a":1}, {"a":2},{"a":3}', [1, 2, 3], GLUED_CALLS),
        ('{"a":1}{"a":2}{"a":1}{}{"a": 2}', [1, 2], GLUED_CALLS),
        ('{"a":1}{"a":2}</tool_call>', [1, 2], GLUED_CALLS),
        ('{"a":1}{"a":"}{"}', [1, "}{"], GLUED_CALLS),
        ('{"a":1}{"a":"1"}{"a":true}', [1, "1", True], GLUED_CALLS),
        ('{"a":1}{"a":1}{"a":1}', [1], REPAIRED_ARGUMENTS),
        ('{"a":1} {"a": 1}', [1], REPAIRED_ARGUMENTS),
    ],
)
@for_each("step", [1, 9, 999])
def test_each_object_that_differs_is_a_call(text, inputs, note, step):
    calls, composer = called(text, step)

    assert [json.dumps(call["input"]) for call in calls] == [
        json.dumps({"a": value}) for value in inputs
    ]
    assert {call["name"] for call in calls} == {"look"}
    assert len({call["id"] for call in calls}) == len(inputs)
    assert calls[0]["id"] == "call_1"
    assert composer.notes == [note]
    assert composer.tool_calls == len(inputs) + 1


@for_each(
    "text",
    [
        '{"a":1}{"a":',
        '{"a":1}{"a":2}{',
        '{"a":1}{a:2}',
        '{"a":1}</tool_call><tool_call>{"name":"look","arguments":{}}',
        '{"a":"echo "}{" done"}',
        '{"a":1}' + "".join(f'{{"a":{n}}}' for n in range(2, MAX_FURTHER + 3)),
    ],
)
def test_what_is_no_row_of_whole_objects_stays_as_it_came(text):
    calls, composer = called(text, 5)

    assert [call["input"] for call in calls] == [text]
    assert composer.notes == [BROKEN_ARGUMENTS]


def test_a_client_that_allows_one_call_gets_the_first():
    composer, events = started(single_tool_call=True)
    events += composer.start_tool_call("c", id="call_1", name="look")
    events += composer.add_arguments("c", '{"a":1}{"a":2}')

    assert [call["input"] for call in content(ended(composer, events, "tool_use"))] == [{"a": 1}]
    assert composer.notes == [GLUED_CALLS, EXCESS_CALL]


def test_the_nulls_that_strict_mode_made_are_removed_from_each():
    calls, _ = called(
        '{"a":1,"b":null}{"a":2,"b":null}', 4, optional_properties={"look": frozenset({"b"})}
    )

    assert [call["input"] for call in calls] == [{"a": 1}, {"a": 2}]
