"""Which item an event means, when upstreams count, name and repeat in their own ways."""

import pytest

from translator.openai_responses.items import Items

MESSAGE = {"type": "message", "id": "msg_1"}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1"}


def test_an_item_is_found_by_its_index():
    items = Items()
    message, call = items.added(at(0), MESSAGE), items.added(at(1), CALL)

    assert items.of(0, None, "message") is message
    assert items.of(1, None, "function_call") is call
    assert items.finished(0, MESSAGE) is message


def test_an_index_holds_although_the_id_changes():
    items = Items()
    message = items.added(at(0), MESSAGE)

    assert items.of(0, "msg_other", "message") is message


def test_one_id_for_everything_leaves_the_index_in_charge():
    items = Items()
    first = items.added(at(0), MESSAGE | {"id": "same"})
    second = items.added(at(1), CALL | {"id": "same"})

    assert items.of(0, "same", "message") is first
    assert items.of(1, "same", "function_call") is second


def test_one_index_for_everything_leaves_the_id_in_charge():
    items = Items()
    first = items.added(at(0), MESSAGE)
    second = items.added(at(0), CALL)

    assert first is not second
    assert items.of(0, "msg_1", "message") is first
    assert items.of(0, "fc_1", "function_call") is second


def test_without_an_index_the_id_decides_then_the_latest_open_item_of_the_type():
    items = Items()
    call = items.added({}, CALL)
    message = items.added({}, {"type": "message"})

    assert items.of(None, "fc_1", "function_call") is call
    assert items.of(None, None, "message") is message
    assert items.of(None, None, "function_call") is call
    call.done = True
    assert items.of(None, None, "function_call") is not call


def test_an_id_is_enough_for_an_item_at_an_unknown_index():
    items = Items()
    call = items.added({}, CALL)

    assert items.of(5, "fc_1", "function_call") is call


def test_a_delta_before_its_item_waits_for_it():
    items = Items()
    early = items.of(2, None, "function_call")

    assert items.added(at(2), CALL) is early
    assert early.call_id == "call_1"


def test_the_same_item_added_twice_is_one():
    items = Items()
    first = items.added(at(0), CALL)
    first.done = True

    assert items.added(at(0), CALL) is first


def test_a_finished_index_is_used_for_a_new_item():
    items = Items()
    first = items.added(at(0), {"type": "message"})
    first.done = True

    assert items.added(at(0), {"type": "message"}) is not first


def test_an_item_learns_only_what_it_did_not_know():
    items = Items()
    call = items.added(at(0), CALL | {"name": ""})

    items.finished(0, CALL | {"name": "bash", "call_id": "call_other", "id": 7})

    assert (call.name, call.call_id, call.id) == ("bash", "call_1", "fc_1")


def test_final_output_is_recognised_by_id_whatever_its_place():
    items = Items()
    message, call = items.added(at(0), MESSAGE), items.added(at(1), CALL)

    assert items.settled([CALL, MESSAGE]) == [call, message]


def test_final_output_is_recognised_by_call_id_and_by_place():
    items = Items()
    first = items.added(at(0), {"type": "message"})
    second = items.added(at(1), {"type": "message"})
    call = items.added(at(2), CALL)

    assert items.settled([{"type": "message"}, {"type": "message"}, CALL | {"id": "x"}]) == [
        first,
        second,
        call,
    ]


def test_final_output_that_matches_nothing_else_is_the_next_of_its_type():
    items = Items()
    message = items.added(at(4), {"type": "message"})

    found, new = items.settled([{"type": "message", "id": "a"}, {"type": "message", "id": "b"}])

    assert found is message
    assert new is not message


def test_an_item_never_heard_of_is_new_and_steals_nobodys_place():
    items = Items()
    known = items.added(at(0), MESSAGE)

    new, found = items.settled([{"type": "message", "id": "msg_0"}, MESSAGE])

    assert found is known
    assert new is not known


@pytest.mark.parametrize(
    ("output", "are"),
    [
        ([MESSAGE, CALL], True),
        ([MESSAGE | {"id": "another"}, CALL], True),  # there is no third whose it could be
        ([CALL, MESSAGE], False),
        ([MESSAGE], False),
        ([MESSAGE, "x"], False),
        ([MESSAGE, MESSAGE], False),
        (None, False),
    ],
)
def test_items_that_ended_are_all_of_an_output_that_has_as_many_of_their_types(output, are):
    items = Items()
    for number, body in enumerate((MESSAGE, CALL)):
        items.added(at(number), body)
        assert not items.are_all_of([MESSAGE, CALL])
        items.finished(number, body).done = True

    assert items.are_all_of(output) is are


def test_parts_keep_the_numbers_under_which_they_were_heard():
    item = Items().added(at(0), MESSAGE)

    assert item.numbers("text", 2) == [0, 1]
    item.part("text", 0)
    assert item.numbers("text", 2) == [0, 1]


def test_parts_counted_from_one_are_the_listed_ones_in_order():
    item = Items().added(at(0), MESSAGE)
    item.part("text", 1)
    item.part("content", 9)

    assert item.numbers("text", 1) == [1]
    item.part("text", 3)
    assert item.numbers("text", 3) == [1, 3, 4]


def at(index):
    return {"output_index": index}
