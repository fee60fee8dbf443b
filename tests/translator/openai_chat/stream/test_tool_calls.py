"""Assignment of tool call pieces to calls, beyond the cases."""

from tests.for_each import for_each
from tests.translator.openai_chat.responses import (
    calls,
    chunk,
    feed_all,
    message,
    piece,
    stream,
    tool_uses,
)
from translator.message_stream.events_to_message import fold

OSLO = '{"city":"Oslo"}'


def calls_in(*pieces, **fields):
    return tool_uses(message(*[calls(each) for each in pieces], chunk("stop"), **fields))


def test_the_same_id_under_two_indices_is_two_calls_with_two_ids():
    made = calls_in(
        piece(index=0, id="0", name="f", arguments=OSLO),
        piece(index=1, id="0", name="g", arguments=OSLO),
    )

    assert [(name, input_) for _, name, input_ in made] == [
        ("f", {"city": "Oslo"}),
        ("g", {"city": "Oslo"}),
    ]
    assert made[0][0] == "0"
    assert made[1][0] != "0"


@for_each("pieces", [[OSLO], ['{"city":', '"Oslo"}']])
@for_each("index", [0, None])
def test_a_repeated_call_with_id_and_arguments_is_one_call(pieces, index):
    first, *more = pieces
    decoder = stream()
    events = feed_all(
        decoder,
        calls(piece(index=0, id="c", name="f", arguments=first)),
        *[calls(piece(index=0, arguments=each)) for each in more],
        calls(piece(index=index, id="c", name="f", arguments=OSLO), finish="tool_calls"),
    )

    assert tool_uses(fold(events)) == [("c", "f", {"city": "Oslo"})]
    assert "a repeated call" in decoder.notes[0].reason


def test_a_call_may_leave_its_wrapper_out_and_name_its_arguments_otherwise():
    bare = {"index": 0, "id": "c", "name": "f", "arguments": OSLO}
    named = [
        {"index": 0, "id": "c", "function": {"name": "f", word: {"city": "Oslo"}}}
        for word in ("parameters", "input")
    ]

    for each in (bare, *named):
        assert calls_in(each) == [("c", "f", {"city": "Oslo"})]


def test_function_call_beside_tool_calls_is_one_call():
    function = {"name": "f", "arguments": OSLO}
    both = chunk(tool_calls=[{"index": 0, "id": "c", "function": function}], function_call=function)

    assert tool_uses(message(both, chunk("tool_calls"))) == [("c", "f", {"city": "Oslo"})]


def test_an_id_of_the_history_is_not_reused():
    ((call_id, *_),) = calls_in(
        piece(index=0, id="0", name="f", arguments="{}"), call_ids=frozenset({"0"})
    )

    assert call_id not in {"", "0"}


def test_an_id_may_come_after_the_call_began():
    made = calls_in(piece(index=0, name="f"), piece(index=0, id="c", arguments="{}"))

    assert made == [("c", "f", {})]


def test_without_index_and_id_a_repeated_name_before_arguments_is_the_same_call():
    assert len(calls_in(piece(name="f"), piece(name="f", arguments=OSLO))) == 1
    assert len(calls_in(piece(name="f"), piece(name="g", arguments=OSLO))) == 2


def test_a_new_name_after_arguments_is_a_new_call_even_under_the_same_index():
    made = calls_in(
        piece(index=0, name="f", arguments=OSLO), piece(index=0, name="g", arguments="{}")
    )

    assert [name for _, name, _ in made] == ["f", "g"]


def test_nameless_arguments_join_the_name_that_comes_with_the_next_object():
    made = calls_in(
        piece(index=0, id="c", arguments='{"city":'), piece(index=0, name="f", arguments='"Oslo"}')
    )

    assert made == [("c", "f", {"city": "Oslo"})]


def test_cumulative_arguments_may_repeat_with_a_name():
    made = calls_in(
        piece(index=0, name="f", arguments=OSLO),
        piece(index=0, name="f", arguments=OSLO),
        capabilities={"cumulative_arguments": True},
    )

    assert [(name, input_) for _, name, input_ in made] == [("f", {"city": "Oslo"})]


def test_an_incomplete_call_ends_as_soon_as_its_arguments_are_whole():
    decoder = stream()
    decoder.feed(calls(piece(index=0, id="c", name="f", arguments='{"city":')))
    waiting = decoder.feed(chunk(content="One moment."))

    released = decoder.feed(calls(piece(index=0, arguments='"Oslo"}')))

    assert waiting == []
    assert [event["type"] for event in released][-3:] == [
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
    ]


@for_each(
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
def test_an_empty_object_before_the_arguments_is_ignored(pieces):
    assert calls_in(*pieces) == [("c", "f", {"city": "Oslo"})]


def test_an_empty_object_is_accepted_as_the_arguments():
    first = piece(index=0, name="f", arguments="{}")

    assert [input_ for _, _, input_ in calls_in(first)] == [{}]
    assert [input_ for _, _, input_ in calls_in(first, first)] == [{}, {}]


def test_text_between_the_pieces_of_a_call_stays_one_block():
    reply = message(
        calls(piece(index=0, id="c", name="f", arguments='{"city"')),
        chunk(content="One "),
        calls(piece(index=0, arguments=":")),
        chunk(content="moment."),
        calls(piece(index=0, arguments='"Oslo"}'), finish="tool_calls"),
    )

    assert [block["type"] for block in reply["content"]] == ["tool_use", "text"]
    assert reply["content"][1]["text"] == "One moment."


def test_a_piece_without_a_function_is_ignored():
    assert calls_in({"index": 0, "id": "c"}, {"index": 0, "function": None}) == []


def test_arguments_of_another_type_are_wrapped_in_an_object():
    assert calls_in(piece(index=0, id="c", name="f", arguments=[1])) == [("c", "f", {"value": [1]})]


def test_a_second_call_is_dropped_if_only_one_is_allowed():
    decoder = stream(single_tool_call=True)
    both = [piece(index=n, id=f"c{n}", name="f", arguments=OSLO) for n in (0, 1)]

    reply = fold(
        feed_all(decoder, calls(*both), calls(piece(index=1, arguments="x")), chunk("stop"))
    )

    assert [call_id for call_id, *_ in tool_uses(reply)] == ["c0"]
    assert "dropped" in [note.fate for note in decoder.notes]


def test_a_server_that_renames_each_piece_may_call_twice():
    made = calls_in(
        piece(index=0, id="a", name="f", arguments='{"city":'),
        piece(index=0, id="b", name="f", arguments='"Oslo"}'),
        piece(index=0, id="c", name="f", arguments=""),
        piece(index=0, id="d", name="f", arguments="{}"),
        piece(index=0, id="e", name="f", arguments=OSLO),
    )

    assert made == [("a", "f", {"city": "Oslo"}), ("d", "f", {}), ("e", "f", {"city": "Oslo"})]


def test_a_call_without_arguments_ends_where_another_begins():
    made = calls_in(
        piece(index=0, id="a", name="f"), piece(index=0, id="b", name="f", arguments=OSLO)
    )

    assert made == [("a", "f", {}), ("b", "f", {"city": "Oslo"})]
