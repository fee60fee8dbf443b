"""A surrogate pair that is split over two events becomes one character again."""

import asyncio
import json

from tests.for_each import for_each
from translator import translate_openai_chat_events
from translator.stream.surrogates import SurrogateJoiner, replace_surrogates

SMILE = "\N{GRINNING FACE}"
FIRST, SECOND = "\ud83d", "\ude00"
LOST = "\N{REPLACEMENT CHARACTER}"


def chunk(finish=None, /, **delta):
    return {"id": "c1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def call(arguments, **fields):
    return {**fields, "function": {"arguments": arguments}}


def delta(text, **place):
    return {"type": "response.output_text.delta", "output_index": 0, **place, "delta": text}


def joined(*events):
    joiner = SurrogateJoiner()
    return [*(each for event in events for each in joiner.join(event)), *joiner.flush()]


@for_each(
    "fields",
    [
        lambda piece: {"content": piece},
        lambda piece: {"content": [{"type": "text", "text": piece}]},
        lambda piece: {"reasoning": piece, "reasoning_content": piece},
        lambda piece: {
            "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": piece}]
        },
        lambda piece: {"tool_calls": [call(piece, index=0)]},
    ],
)
def test_surrogates_in_two_chunks_become_one_character(fields):
    events_out = joined(chunk(**fields("a" + FIRST)), chunk(**fields(SECOND + "b")))

    assert events_out == [chunk(**fields("a")), chunk(**fields(SMILE + "b"))]


def test_surrogates_of_parallel_calls_are_paired_by_call():
    first = chunk(tool_calls=[call("{" + FIRST, index=0), call("[" + FIRST, index=1)])
    second = chunk(tool_calls=[call(SECOND, index=0), call("\ude01", index=1)])

    assert joined(first, second)[1] == chunk(
        tool_calls=[call(SMILE, index=0), call("\N{GRINNING FACE WITH SMILING EYES}", index=1)]
    )


def test_surrogates_are_paired_when_ids_change():
    events_out = joined(delta("a" + FIRST, item_id="m1"), delta(SECOND, item_id="m2"))

    assert events_out == [delta("a", item_id="m1"), delta(SMILE, item_id="m2")]


def test_an_unpaired_surrogate_becomes_one_replacement_character():
    unpaired = {"tool_calls": [call(FIRST, index=1, id="b")]}

    assert joined(chunk(content="a" + FIRST), chunk(content="b")) == [
        chunk(content="a"),
        {"id": "c1", "choices": [{"index": 0, "delta": {"content": LOST}}]},
        chunk(content="b"),
    ]
    assert joined(chunk(tool_calls=[call("{}", index=0), *unpaired["tool_calls"]]), chunk())[1] == {
        "id": "c1",
        "choices": [{"index": 0, "delta": {"tool_calls": [call(LOST, index=1, id="b")]}}],
    }


@for_each(
    ("events", "texts"),
    [
        ([delta("a" + FIRST)], ["a", LOST]),
        ([delta(SECOND + "a")], [LOST + "a"]),
        ([delta(FIRST + "a" + SECOND)], [LOST + "a" + LOST]),
        ([delta("a" + FIRST), delta(SECOND + FIRST), delta(SECOND)], ["a", SMILE, SMILE]),
        ([delta("a" + FIRST), delta(SECOND, output_index=1)], ["a", LOST, LOST]),
        ([delta("a" + FIRST), delta("")], ["a", LOST, ""]),
    ],
)
def test_each_surrogate_is_paired_or_replaced(events, texts):
    assert [event["delta"] for event in joined(*events)] == texts


@for_each("event", [{"choices": []}, {"choices": None}, {"choices": [{"index": 0}]}, {"usage": {}}])
def test_waiting_surrogates_precede_other_events(event):
    events_out = joined(chunk(content="a" + FIRST, tool_calls=[call(FIRST, index=0)]), event)

    assert events_out[1]["choices"][0]["delta"] == {
        "content": LOST, "tool_calls": [call(LOST, index=0)],
    }  # fmt: skip
    assert events_out[2] == event


def test_a_paired_surrogate_does_not_wait_for_an_unpaired_one():
    first = chunk(content="a" + FIRST, tool_calls=[call(FIRST, index=0), call(FIRST, index=1)])
    second = chunk(tool_calls=[call(SECOND, index=0)])

    events_out = joined(first, second)

    assert events_out[1]["choices"][0]["delta"] == {
        "content": LOST,
        "tool_calls": [call(LOST, index=1)],
    }
    assert events_out[2] == chunk(tool_calls=[call(SMILE, index=0)])


def test_no_surrogate_waits_after_the_end():
    assert joined(chunk("stop", content="a" + FIRST)) == [chunk("stop", content="a" + LOST)]


def test_surrogates_outside_of_deltas_are_replaced_at_once():
    event = {"type": "response.output_text.done", "text": "a" + FIRST, "n": [1, None, {FIRST: 2}]}

    assert joined(event) == [{**event, "text": "a" + LOST, "n": [1, None, {LOST: 2}]}]
    assert joined(chunk(tool_calls=[call("", id="x" + FIRST)])) == [
        chunk(tool_calls=[call("", id="x" + LOST)])
    ]
    assert replace_surrogates(["a" + FIRST]) == ["a" + LOST]


def test_an_event_without_surrogates_passes_unchanged():
    event = chunk(content=SMILE)

    assert joined(event)[0] is event


def test_the_library_joins_surrogates():
    async def events():
        for event in (chunk(content="a" + FIRST), chunk(content=SECOND), chunk("stop")):
            yield event

    async def streamed_lines():
        return [each async for each in translate_openai_chat_events(events())]

    events_out = [json.loads(each.partition("data: ")[2]) for each in asyncio.run(streamed_lines())]

    deltas = [each["delta"]["text"] for each in events_out if each["type"] == "content_block_delta"]
    assert deltas == ["a", SMILE]
