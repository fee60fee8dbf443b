"""Text in an added item or part is emitted once, even if later events repeat it."""

from tests.for_each import for_each
from tests.translator.openai_responses.responses import (
    added,
    arguments,
    arguments_done,
    blocks,
    call,
    completed,
    done,
    notes,
    output_message,
    reasoning,
    stream_events,
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
ITEM = added(0, **output_message(HI))
WHOLE = (
    text_done(ALL),
    {"type": "response.content_part.done", **PLACE, "part": output_message(ALL)["content"][0]},
    done(0, **output_message(ALL)),
)


@for_each("opening", [PART, ITEM])
@for_each("deltas", [["Ada."], ["H", "i ", "Ada."], [HI, "Ada."], [ALL], []])
@for_each("wholes", [WHOLE[:1], WHOLE[1:2], WHOLE[2:], WHOLE])
def test_initial_text_is_emitted_once_even_if_deltas_repeat_it(opening, deltas, wholes):
    events = [added(0, **output_message()), opening, *map(text, deltas), *wholes, completed()]

    assert [block["text"] for block in blocks(*events)] == [ALL]
    assert notes(*events) == []


@for_each("opening", [PART, ITEM])
@for_each("end", [[], [done(0, **output_message())], [done(0, type="message")]])
def test_initial_text_is_emitted_at_the_end_if_not_repeated(opening, end):
    assert [block["text"] for block in blocks(opening, *end, completed())] == [HI]


def test_a_part_of_an_unknown_message_starts_the_answer():
    first_events = stream_events(PART, completed())

    assert first_events[0]["type"] == "message_start"


def test_initial_text_is_emitted_before_a_truncation_error():
    *_, delta, _, error = stream_events(PART)

    assert (delta["delta"]["text"], error["type"]) == (HI, "error")


def test_initial_text_is_matched_when_part_numbers_differ():
    assert [block["text"] for block in blocks(ITEM, text(ALL, part=1), completed())] == [ALL]


@for_each(
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
def test_reasoning_may_have_initial_text(opening, piece):
    end = done(0, type="reasoning")
    words = ALL if piece else HI

    for events in ([opening, *filter(None, [piece])], [opening, *filter(None, [piece]), end]):
        found = blocks(*events, completed())
        assert [block["thinking"] for block in found] == [words]


@for_each(
    "unusual",
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
def test_initial_content_that_is_not_text_is_ignored(unusual):
    assert [block["text"] for block in blocks(unusual, text(ALL), completed())] == [ALL]


@for_each("before", [[text(ALL)], [done(0, **output_message(ALL))]])
def test_initial_text_after_other_text_is_ignored(before):
    assert [block["text"] for block in blocks(*before, PART, completed())] == [ALL]


OSLO = '{"city":"Oslo"}'


@for_each("opening", [OSLO, '{"city"', "{}", ""])
@for_each("deltas", [[OSLO], ['{"city"', ':"Oslo"}'], ["{", '"city":"Oslo"}'], [':"Oslo"}'], []])
@for_each("end", [[], [arguments_done(OSLO)], [done(0, **call(OSLO))]])
def test_initial_arguments_are_emitted_once(opening, deltas, end):
    joins = "".join(deltas) == OSLO or opening + "".join(deltas) == OSLO
    if not joins and (deltas or not end):
        return  # the arguments are not a complete object

    events = [added(0, **call(opening)), *map(arguments, deltas), *end]

    assert [block["input"] for block in blocks(*events, completed())] == [{"city": "Oslo"}]
    assert notes(*events) == []


def test_initial_arguments_without_repetition_are_emitted_at_the_end():
    (block,) = blocks(added(0, **call("{}")), completed())
    *_, delta, _, error = stream_events(added(0, **call('{"city":')))

    assert block["input"] == {}
    assert (delta["delta"]["partial_json"], error["type"]) == ('{"city":', "error")


def test_initial_arguments_after_deltas_are_ignored():
    (block,) = blocks(added(0, **call("")), arguments(OSLO), added(0, **call(OSLO)), completed())

    assert block["input"] == {"city": "Oslo"}
