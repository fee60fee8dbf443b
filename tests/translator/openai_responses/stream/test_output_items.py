"""Match events to items when upstreams number, name and repeat items differently."""

from tests.for_each import for_each
from translator.openai_responses.output_items import OutputItems

MESSAGE = {"type": "message", "id": "msg_1"}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1"}


def test_an_item_is_found_by_its_index():
    items = OutputItems()
    message, call = items.add_item(at(0), MESSAGE), items.add_item(at(1), CALL)

    assert items.item_for_event(0, None, "message") is message
    assert items.item_for_event(1, None, "function_call") is call
    assert items.finish_item(0, MESSAGE) is message


def test_an_item_is_matched_by_index_if_its_id_changes():
    items = OutputItems()
    message = items.add_item(at(0), MESSAGE)

    assert items.item_for_event(0, "msg_other", "message") is message


def test_one_id_for_everything_leaves_the_index_in_charge():
    items = OutputItems()
    first = items.add_item(at(0), MESSAGE | {"id": "same"})
    second = items.add_item(at(1), CALL | {"id": "same"})

    assert items.item_for_event(0, "same", "message") is first
    assert items.item_for_event(1, "same", "function_call") is second


def test_one_index_for_everything_leaves_the_id_in_charge():
    items = OutputItems()
    first = items.add_item(at(0), MESSAGE)
    second = items.add_item(at(0), CALL)

    assert first is not second
    assert items.item_for_event(0, "msg_1", "message") is first
    assert items.item_for_event(0, "fc_1", "function_call") is second


def test_without_an_index_the_id_decides_then_the_latest_open_item_of_the_type():
    items = OutputItems()
    call = items.add_item({}, CALL)
    message = items.add_item({}, {"type": "message"})

    assert items.item_for_event(None, "fc_1", "function_call") is call
    assert items.item_for_event(None, None, "message") is message
    assert items.item_for_event(None, None, "function_call") is call
    call.is_done = True
    assert items.item_for_event(None, None, "function_call") is not call


def test_an_item_at_an_unknown_index_is_found_by_its_id():
    items = OutputItems()
    call = items.add_item({}, CALL)

    assert items.item_for_event(5, "fc_1", "function_call") is call


def test_a_delta_before_its_item_waits_for_it():
    items = OutputItems()
    early = items.item_for_event(2, None, "function_call")

    assert items.add_item(at(2), CALL) is early
    assert early.call_id == "call_1"


def test_an_item_that_is_added_twice_stays_one_item():
    items = OutputItems()
    first = items.add_item(at(0), CALL)
    first.is_done = True

    assert items.add_item(at(0), CALL) is first


def test_a_finished_index_is_used_for_a_new_item():
    items = OutputItems()
    first = items.add_item(at(0), {"type": "message"})
    first.is_done = True

    assert items.add_item(at(0), {"type": "message"}) is not first


def test_a_second_call_at_a_finished_index_is_a_new_item():
    items = OutputItems()
    first = items.add_item(at(0), CALL)
    first.is_done = True

    second = items.finish_item(0, {"type": "function_call", "call_id": "call_2"})

    assert second is not first
    assert (first.call_id, second.call_id) == ("call_1", "call_2")


def test_a_finished_item_fills_only_missing_fields():
    items = OutputItems()
    call = items.add_item(at(0), CALL | {"name": ""})

    items.finish_item(0, CALL | {"name": "bash", "call_id": "call_other", "id": 7})

    assert (call.name, call.call_id, call.id) == ("bash", "call_1", "fc_1")


def test_final_output_is_recognised_by_id_whatever_its_place():
    items = OutputItems()
    message, call = items.add_item(at(0), MESSAGE), items.add_item(at(1), CALL)

    assert items.match_output([CALL, MESSAGE]) == [call, message]


def test_final_output_is_recognised_by_call_id_and_by_place():
    items = OutputItems()
    first = items.add_item(at(0), {"type": "message"})
    second = items.add_item(at(1), {"type": "message"})
    call = items.add_item(at(2), CALL)

    assert items.match_output([{"type": "message"}, {"type": "message"}, CALL | {"id": "x"}]) == [
        first,
        second,
        call,
    ]


def test_unmatched_final_output_is_the_next_item_of_its_type():
    items = OutputItems()
    message = items.add_item(at(4), {"type": "message"})

    found, new = items.match_output(
        [{"type": "message", "id": "a"}, {"type": "message", "id": "b"}]
    )

    assert found is message
    assert new is not message


def test_an_unknown_final_item_is_new():
    items = OutputItems()
    known = items.add_item(at(0), MESSAGE)

    new, found = items.match_output([{"type": "message", "id": "msg_0"}, MESSAGE])

    assert found is known
    assert new is not known


@for_each(
    ("output", "are"),
    [
        ([MESSAGE, CALL], True),
        ([MESSAGE | {"id": "another"}, CALL], True),  # no other item matches
        ([CALL, MESSAGE], False),
        ([MESSAGE], False),
        ([MESSAGE, "x"], False),
        ([MESSAGE, MESSAGE], False),
        (None, False),
    ],
)
def test_finished_items_match_an_output_with_the_same_types(output, are):
    items = OutputItems()
    for number, body in enumerate((MESSAGE, CALL)):
        items.add_item(at(number), body)
        assert not items.matches_output([MESSAGE, CALL])
        items.finish_item(number, body).is_done = True

    assert items.matches_output(output) is are


def test_parts_preserve_their_streamed_indices():
    item = OutputItems().add_item(at(0), MESSAGE)

    assert item.part_numbers("text", 2) == [0, 1]
    item.get_part("text", 0)
    assert item.part_numbers("text", 2) == [0, 1]


def test_parts_counted_from_one_are_the_listed_ones_in_order():
    item = OutputItems().add_item(at(0), MESSAGE)
    item.get_part("text", 1)
    item.get_part("content", 9)

    assert item.part_numbers("text", 1) == [1]
    item.get_part("text", 3)
    assert item.part_numbers("text", 3) == [1, 3, 4]


def at(index):
    return {"output_index": index}
