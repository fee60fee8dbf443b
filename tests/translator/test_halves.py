"""A character that an upstream cut in two, half in each event, is one again, at its place."""

import asyncio
import json

import pytest

from translator import translate_openai_chat_events
from translator.halves import Halves, sound

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
    halves = Halves()
    return [*(each for event in events for each in halves.joined(event)), *halves.rest()]


@pytest.mark.parametrize(
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
def test_halves_in_two_chunks_are_one_character_in_the_second(fields):
    told = joined(chunk(**fields("a" + FIRST)), chunk(**fields(SECOND + "b")))

    assert told == [chunk(**fields("a")), chunk(**fields(SMILE + "b"))]


def test_halves_of_calls_side_by_side_meet_their_own():
    first = chunk(tool_calls=[call("{" + FIRST, index=0), call("[" + FIRST, index=1)])
    second = chunk(tool_calls=[call(SECOND, index=0), call("\ude01", index=1)])

    assert joined(first, second)[1] == chunk(
        tool_calls=[call(SMILE, index=0), call("\N{GRINNING FACE WITH SMILING EYES}", index=1)]
    )


def test_ids_that_are_new_in_each_event_do_not_part_them():
    told = joined(delta("a" + FIRST, item_id="m1"), delta(SECOND, item_id="m2"))

    assert told == [delta("a", item_id="m1"), delta(SMILE, item_id="m2")]


def test_a_half_without_its_partner_is_told_once_and_where_it_stood():
    lone = {"tool_calls": [call(FIRST, index=1, id="b")]}

    assert joined(chunk(content="a" + FIRST), chunk(content="b")) == [
        chunk(content="a"),
        {"id": "c1", "choices": [{"index": 0, "delta": {"content": LOST}}]},
        chunk(content="b"),
    ]
    assert joined(chunk(tool_calls=[call("{}", index=0), *lone["tool_calls"]]), chunk())[1] == {
        "id": "c1",
        "choices": [{"index": 0, "delta": {"tool_calls": [call(LOST, index=1, id="b")]}}],
    }


@pytest.mark.parametrize(
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
def test_each_half_becomes_one_character_or_part_of_one(events, texts):
    assert [event["delta"] for event in joined(*events)] == texts


@pytest.mark.parametrize(
    "event", [{"choices": []}, {"choices": None}, {"choices": [{"index": 0}]}, {"usage": {}}]
)
def test_an_event_of_another_shape_follows_what_waits(event):
    told = joined(chunk(content="a" + FIRST, tool_calls=[call(FIRST, index=0)]), event)

    assert told[1]["choices"][0]["delta"] == {
        "content": LOST, "tool_calls": [call(LOST, index=0)],
    }  # fmt: skip
    assert told[2] == event


def test_one_that_meets_its_partner_does_not_wait_for_another_that_does_not():
    first = chunk(content="a" + FIRST, tool_calls=[call(FIRST, index=0), call(FIRST, index=1)])
    second = chunk(tool_calls=[call(SECOND, index=0)])

    told = joined(first, second)

    assert told[1]["choices"][0]["delta"] == {"content": LOST, "tool_calls": [call(LOST, index=1)]}
    assert told[2] == chunk(tool_calls=[call(SMILE, index=0)])


def test_nothing_waits_behind_the_end_of_an_answer():
    assert joined(chunk("stop", content="a" + FIRST)) == [chunk("stop", content="a" + LOST)]


def test_what_is_no_piece_of_a_text_is_made_sound_at_once():
    event = {"type": "response.output_text.done", "text": "a" + FIRST, "n": [1, None, {FIRST: 2}]}

    assert joined(event) == [{**event, "text": "a" + LOST, "n": [1, None, {LOST: 2}]}]
    assert joined(chunk(tool_calls=[call("", id="x" + FIRST)])) == [
        chunk(tool_calls=[call("", id="x" + LOST)])
    ]
    assert sound(["a" + FIRST]) == ["a" + LOST]


def test_an_event_without_halves_passes_as_it_is():
    event = chunk(content=SMILE)

    assert joined(event)[0] is event


def test_the_library_joins_them_too():
    async def events():
        for event in (chunk(content="a" + FIRST), chunk(content=SECOND), chunk("stop")):
            yield event

    async def said():
        return [each async for each in translate_openai_chat_events(events())]

    told = [json.loads(each.partition("data: ")[2]) for each in asyncio.run(said())]

    deltas = [each["delta"]["text"] for each in told if each["type"] == "content_block_delta"]
    assert deltas == ["a", SMILE]
