"""The calls inside OpenAI's own wrapper are given to the client."""

import json
from typing import Any

from tests.for_each import for_each
from translator.message_stream.message_composer import EXCESS_CALL, MAX_INNER, UNWRAPPED

from .composing import content, ended, started

TWO = [
    {"recipient_name": "functions.look", "parameters": {"city": "Oslo"}},
    {"recipient_name": "look", "parameters": '{"city": "Rome", "unit": null}'},
]


def called(uses: Any, name: str = "parallel", step: int = 999, **context: Any):
    """Return the calls of the message, and the composer."""
    settings = {"declared_tools": frozenset({"look"}), "finished_blocks": True} | context
    composer, events = started(**settings)
    events += composer.add_text("t", "Both.")
    events += composer.start_tool_call("c", id="call_1", name=name)
    arguments = json.dumps({"tool_uses": uses})
    for start in range(0, len(arguments), step):
        events += composer.add_arguments("c", arguments[start : start + step])
    events += composer.start_tool_call("d", id="call_2", name="look")
    events += composer.close_block("c")
    calls = content(ended(composer, events, "tool_use"))[1:]
    finished = [e["content_block"] for e in events if e["type"] == "content_block_stop"]
    assert finished[1:] == calls[: len(finished) - 1]
    return calls, composer


@for_each("name", ["parallel", "multi_tool_use.parallel", "functions.multi_tool_use.parallel"])
@for_each("step", [1, 999])
def test_the_calls_inside_have_ids_of_their_own(name, step):
    calls, composer = called(TWO, name, step)

    assert [(call["name"], call["input"]) for call in calls] == [
        ("look", {"city": "Oslo"}),
        ("look", {"city": "Rome", "unit": None}),
        ("look", {}),
    ]
    assert calls[0]["id"] == "call_1"
    assert len({call["id"] for call in calls}) == 3
    assert composer.notes == [UNWRAPPED]
    assert composer.tool_calls == 3


@for_each(
    ("uses", "context"),
    [
        (TWO, {"declared_tools": frozenset({"look", "parallel"})}),
        (TWO, {"declared_tools": frozenset()}),
        (TWO, {"declared_tools": frozenset({"other"})}),
        ([*TWO, {"recipient_name": "functions.other", "parameters": {}}], {}),
        (TWO * (MAX_INNER // 2 + 1), {}),
        ([{"recipient_name": "functions.look", "parameters": "x"}], {}),
        ([{"parameters": {}}], {}),
        (["look"], {}),
        ([], {}),
        ({}, {}),
    ],
)
def test_any_other_call_of_that_name_stays_as_it_is(uses, context):
    calls, composer = called(uses, **context)

    assert (calls[0]["name"], calls[0]["input"]) == ("parallel", {"tool_uses": uses})
    assert UNWRAPPED not in composer.notes


def test_a_client_without_parallel_calls_gets_the_first_one():
    calls, composer = called(TWO, single_tool_call=True)

    assert [call["input"] for call in calls] == [{"city": "Oslo"}]
    assert EXCESS_CALL in composer.notes


def test_names_and_optional_properties_are_those_of_the_client():
    uses = [{"recipient_name": "functions.l", "parameters": {"unit": None}}]
    calls, _ = called(
        uses,
        declared_tools=frozenset({"look at it"}),
        tool_names={"l": "look at it"},
        optional_properties={"look at it": frozenset({"unit"})},
    )

    assert (calls[0]["name"], calls[0]["input"]) == ("look at it", {})
