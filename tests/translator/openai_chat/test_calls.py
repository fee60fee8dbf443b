"""Which call a piece belongs to, where the cases leave room for doubt."""

import pytest

from tests.translator.openai_chat.answers import (
    calls,
    chunk,
    hear,
    message,
    piece,
    stream,
    tool_uses,
)
from translator.anthropic.fold import fold

OSLO = '{"city":"Oslo"}'


def told(*pieces, **fields):
    return tool_uses(message(*[calls(each) for each in pieces], chunk("stop"), **fields))


def test_the_same_id_under_two_indices_is_two_calls_with_two_ids():
    made = told(
        piece(index=0, id="0", name="f", arguments=OSLO),
        piece(index=1, id="0", name="g", arguments=OSLO),
    )

    assert [(name, input_) for _, name, input_ in made] == [
        ("f", {"city": "Oslo"}),
        ("g", {"city": "Oslo"}),
    ]
    assert made[0][0] == "0"
    assert made[1][0] != "0"


@pytest.mark.parametrize("pieces", [[OSLO], ['{"city":', '"Oslo"}']])
@pytest.mark.parametrize("index", [0, None])
def test_a_call_told_once_more_with_its_id_and_arguments_is_one(pieces, index):
    first, *more = pieces
    heard = stream()
    events = hear(
        heard,
        calls(piece(index=0, id="c", name="f", arguments=first)),
        *[calls(piece(index=0, arguments=each)) for each in more],
        calls(piece(index=index, id="c", name="f", arguments=OSLO), finish="tool_calls"),
    )

    assert tool_uses(fold(events)) == [("c", "f", {"city": "Oslo"})]
    assert "told once more" in heard.notes[0].reason


def test_a_call_may_leave_its_wrapper_out_and_name_its_arguments_otherwise():
    bare = {"index": 0, "id": "c", "name": "f", "arguments": OSLO}
    named = [
        {"index": 0, "id": "c", "function": {"name": "f", word: {"city": "Oslo"}}}
        for word in ("parameters", "input")
    ]

    for each in (bare, *named):
        assert told(each) == [("c", "f", {"city": "Oslo"})]


def test_a_call_told_in_the_older_way_beside_the_newer_is_one():
    function = {"name": "f", "arguments": OSLO}
    both = chunk(tool_calls=[{"index": 0, "id": "c", "function": function}], function_call=function)

    assert tool_uses(message(both, chunk("tool_calls"))) == [("c", "f", {"city": "Oslo"})]


def test_an_id_of_the_history_is_not_given_out_again():
    ((call_id, *_),) = told(
        piece(index=0, id="0", name="f", arguments="{}"), call_ids=frozenset({"0"})
    )

    assert call_id not in {"", "0"}


def test_an_id_may_come_after_the_call_began():
    made = told(piece(index=0, name="f"), piece(index=0, id="c", arguments="{}"))

    assert made == [("c", "f", {})]


def test_without_index_and_id_a_repeated_name_before_arguments_is_the_same_call():
    assert len(told(piece(name="f"), piece(name="f", arguments=OSLO))) == 1
    assert len(told(piece(name="f"), piece(name="g", arguments=OSLO))) == 2


def test_a_new_name_after_arguments_is_a_new_call_even_under_the_same_index():
    made = told(piece(index=0, name="f", arguments=OSLO), piece(index=0, name="g", arguments="{}"))

    assert [name for _, name, _ in made] == ["f", "g"]


def test_nameless_arguments_join_the_name_that_comes_with_the_next_object():
    made = told(
        piece(index=0, id="c", arguments='{"city":'), piece(index=0, name="f", arguments='"Oslo"}')
    )

    assert made == [("c", "f", {"city": "Oslo"})]


def test_cumulative_arguments_may_be_repeated_whole_under_a_name():
    made = told(
        piece(index=0, name="f", arguments=OSLO),
        piece(index=0, name="f", arguments=OSLO),
        capabilities={"cumulative_arguments": True},
    )

    assert [(name, input_) for _, name, input_ in made] == [("f", {"city": "Oslo"})]


def test_an_incomplete_call_ends_as_soon_as_its_arguments_are_whole():
    heard = stream()
    heard.feed(calls(piece(index=0, id="c", name="f", arguments='{"city":')))
    waiting = heard.feed(chunk(content="One moment."))

    released = heard.feed(calls(piece(index=0, arguments='"Oslo"}')))

    assert waiting == []
    assert [event["type"] for event in released][-3:] == [
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
    ]


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(index=0, id="c", name="f", arguments="{}"), piece(index=0, arguments=OSLO)],
        [piece(index=0, id="c", arguments="{}"), piece(index=0, name="f", arguments=OSLO)],
        [
            piece(index=0, id="c", name="f", arguments="{}"),
            *(piece(index=0, arguments=OSLO[at : at + 3]) for at in range(0, len(OSLO), 3)),
        ],
    ],
)
def test_an_empty_object_before_the_arguments_is_none_of_them(pieces):
    assert told(*pieces) == [("c", "f", {"city": "Oslo"})]


def test_an_empty_object_that_nothing_follows_is_all_there_is():
    first = piece(index=0, name="f", arguments="{}")

    assert [input_ for _, _, input_ in told(first)] == [{}]
    assert [input_ for _, _, input_ in told(first, first)] == [{}, {}]


def test_text_between_the_pieces_of_a_call_stays_one_block():
    told = message(
        calls(piece(index=0, id="c", name="f", arguments='{"city"')),
        chunk(content="One "),
        calls(piece(index=0, arguments=":")),
        chunk(content="moment."),
        calls(piece(index=0, arguments='"Oslo"}'), finish="tool_calls"),
    )

    assert [block["type"] for block in told["content"]] == ["tool_use", "text"]
    assert told["content"][1]["text"] == "One moment."


def test_a_piece_without_a_function_is_nothing_yet():
    assert told({"index": 0, "id": "c"}, {"index": 0, "function": None}) == []


def test_arguments_that_are_neither_text_nor_object_are_kept_visible():
    assert told(piece(index=0, id="c", name="f", arguments=[1])) == [("c", "f", {"value": [1]})]


def test_the_second_call_leaves_nothing_behind_where_one_is_allowed():
    heard = stream(single_tool_call=True)
    both = [piece(index=n, id=f"c{n}", name="f", arguments=OSLO) for n in (0, 1)]

    message_told = fold(
        hear(heard, calls(*both), calls(piece(index=1, arguments="x")), chunk("stop"))
    )

    assert [call_id for call_id, *_ in tool_uses(message_told)] == ["c0"]
    assert "dropped" in [note.fate for note in heard.notes]


def test_a_server_that_renames_each_piece_may_call_twice():
    made = told(
        piece(index=0, id="a", name="f", arguments='{"city":'),
        piece(index=0, id="b", name="f", arguments='"Oslo"}'),
        piece(index=0, id="c", name="f", arguments=""),
        piece(index=0, id="d", name="f", arguments="{}"),
        piece(index=0, id="e", name="f", arguments=OSLO),
    )

    assert made == [("a", "f", {"city": "Oslo"}), ("d", "f", {}), ("e", "f", {"city": "Oslo"})]


def test_a_call_without_arguments_ends_where_another_begins():
    made = told(piece(index=0, id="a", name="f"), piece(index=0, id="b", name="f", arguments=OSLO))

    assert made == [("a", "f", {}), ("b", "f", {"city": "Oslo"})]
