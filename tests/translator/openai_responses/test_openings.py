"""Text that an item or a part is added with: said once, whoever tells it again."""

import pytest

from .answers import (
    added,
    arguments,
    arguments_done,
    blocks,
    call,
    completed,
    done,
    heard,
    notes,
    reasoning,
    said,
    summary,
    text,
)

HI, ALL = "Hi ", "Hi Ada."
PLACE = {"output_index": 0, "content_index": 0}


def part_added(words, kind="output_text", name="content_part", **place):
    event = {"type": f"response.{name}.added", **PLACE, **place}
    return {**event, "part": {"type": kind, "text": words}}


def text_done(words):
    return {"type": "response.output_text.done", **PLACE, "text": words}


PART = part_added(HI)
ITEM = added(0, **said(HI))
WHOLE = (
    text_done(ALL),
    {"type": "response.content_part.done", **PLACE, "part": said(ALL)["content"][0]},
    done(0, **said(ALL)),
)


@pytest.mark.parametrize("opening", [PART, ITEM])
@pytest.mark.parametrize("deltas", [["Ada."], ["H", "i ", "Ada."], [HI, "Ada."], [ALL], []])
@pytest.mark.parametrize("wholes", [WHOLE[:1], WHOLE[1:2], WHOLE[2:], WHOLE])
def test_it_is_said_once_whether_or_not_the_deltas_repeat_it(opening, deltas, wholes):
    events = [added(0, **said()), opening, *map(text, deltas), *wholes, completed()]

    assert [block["text"] for block in blocks(*events)] == [ALL]
    assert notes(*events) == []


@pytest.mark.parametrize("opening", [PART, ITEM])
@pytest.mark.parametrize("end", [[], [done(0, **said())], [done(0, type="message")]])
def test_it_is_said_at_the_end_where_nothing_tells_it_again(opening, end):
    assert [block["text"] for block in blocks(opening, *end, completed())] == [HI]


def test_a_part_of_a_message_never_told_of_begins_the_answer():
    said_first = heard(PART, completed())

    assert said_first[0]["type"] == "message_start"


def test_it_is_said_before_a_cut():
    *_, delta, _, error = heard(PART)

    assert (delta["delta"]["text"], error["type"]) == (HI, "error")


def test_who_counts_parts_otherwise_tells_it_under_another_number():
    assert [block["text"] for block in blocks(ITEM, text(ALL, part=1), completed())] == [ALL]


@pytest.mark.parametrize(
    ("opening", "piece"),
    [
        (added(0, **reasoning(HI)), summary("Ada.")),
        (
            part_added(HI, "summary_text", "reasoning_summary_part", summary_index=0),
            summary("Ada."),
        ),
        (part_added(HI, "reasoning_text"), None),
        (part_added(HI, "reasoning_text", "reasoning_part", output_index=None), None),
    ],
)
def test_reasoning_begins_with_it_too(opening, piece):
    end = done(0, type="reasoning")
    words = ALL if piece else HI

    for events in ([opening, *filter(None, [piece])], [opening, *filter(None, [piece]), end]):
        told = blocks(*events, completed())
        assert [block["thinking"] for block in told] == [words]


@pytest.mark.parametrize(
    "odd",
    [
        part_added(""),
        part_added(None),
        part_added(3),
        part_added(HI, "input_text"),
        part_added(HI, None),
        {**PART, "part": None},
        {**PART, "part": {"type": "output_text"}},
        {"type": "response.content_part.added"},
        added(0, type="message", content="?"),
        added(0, type="message", content=[None, HI]),
    ],
)
def test_what_is_no_text_is_passed_over(odd):
    assert [block["text"] for block in blocks(odd, text(ALL), completed())] == [ALL]


@pytest.mark.parametrize("before", [[text(ALL)], [done(0, **said(ALL))]])
def test_it_is_too_late_behind_the_text(before):
    assert [block["text"] for block in blocks(*before, PART, completed())] == [ALL]


OSLO = '{"city":"Oslo"}'


@pytest.mark.parametrize("opening", [OSLO, '{"city"', "{}", ""])
@pytest.mark.parametrize(
    "deltas", [[OSLO], ['{"city"', ':"Oslo"}'], ["{", '"city":"Oslo"}'], [':"Oslo"}'], []]
)
@pytest.mark.parametrize("end", [[], [arguments_done(OSLO)], [done(0, **call(OSLO))]])
def test_arguments_that_a_call_is_added_with_are_told_once(opening, deltas, end):
    joins = "".join(deltas) == OSLO or opening + "".join(deltas) == OSLO
    if not joins and (deltas or not end):
        return  # they make no object whoever reads them

    events = [added(0, **call(opening)), *map(arguments, deltas), *end]

    assert [block["input"] for block in blocks(*events, completed())] == [{"city": "Oslo"}]
    assert notes(*events) == []


def test_arguments_that_nothing_tells_again_are_told_at_the_end_and_before_a_cut():
    (told,) = blocks(added(0, **call("{}")), completed())
    *_, delta, _, error = heard(added(0, **call('{"city":')))

    assert told["input"] == {}
    assert (delta["delta"]["partial_json"], error["type"]) == ('{"city":', "error")


def test_arguments_are_no_longer_news_behind_the_first():
    (told,) = blocks(added(0, **call("")), arguments(OSLO), added(0, **call(OSLO)), completed())

    assert told["input"] == {"city": "Oslo"}
