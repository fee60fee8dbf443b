"""What items say: nothing twice, nothing lost, nothing that the upstream did not say."""

import pytest

from tests.translator.requests import KEYS
from translator.profiles import PROFILES

from .answers import (
    added,
    arguments,
    arguments_done,
    blocks,
    call,
    completed,
    done,
    heard,
    incomplete,
    kinds,
    message,
    notes,
    part_done,
    reasoning,
    said,
    stream,
    summary,
    target,
    text,
)

OPENAI = PROFILES["openai"]
SIGNING = target(OPENAI, carrier_keys=KEYS)


def texts(*events, **fields):
    return [block["text"] for block in blocks(*events, **fields)]


# Text


@pytest.mark.parametrize("piece", ["", None, 3, ["x"]])
def test_a_delta_that_says_nothing_opens_nothing(piece):
    assert kinds(heard(text(piece), completed())) == [
        "message_start",
        "message_delta",
        "message_stop",
    ]


@pytest.mark.parametrize(
    ("content", "said_of_it"),
    [
        (["Hi", " Ada"], ["Hi", " Ada"]),
        ([{"text": "Hi"}], ["Hi"]),
        ({"type": "output_text", "text": "Hi"}, ["Hi"]),
        ("Hi", ["Hi"]),
        ([None, 7], []),
        (7, []),
    ],
)
def test_a_message_may_hold_its_text_in_other_ways(content, said_of_it):
    assert texts(done(0, type="message", content=content), completed()) == said_of_it


def test_text_after_the_item_is_finished_is_not_said():
    assert texts(done(0, **said("Hi")), text(" again"), completed()) == ["Hi"]


def text_done(whole):
    kind = "response.output_text.done"
    return {"type": kind, "output_index": 0, "content_index": 0, "text": whole}


def test_a_text_is_told_four_times_and_said_once():
    final = said("Hi")
    events = [text("H"), text("i"), text_done("Hi"), part_done(final["content"][0])]

    assert texts(*events, done(0, **final), completed(final)) == ["Hi"]


def test_a_text_that_goes_on_after_its_part_was_finished_is_told_anew():
    final = said("Hi there")
    events = [text("Hi"), part_done(said("Hi")["content"][0]), text(" there"), done(0, **final)]

    assert texts(*events, text(" again"), completed(final)) == ["Hi", " there"]
    assert notes(*events) == []


def test_a_part_that_is_none_says_nothing():
    assert texts(text("Hi"), part_done(None), part_done({"type": "hologram"}), completed()) == [
        "Hi"
    ]
    assert "a content part of type 'hologram' has no block" in notes(
        part_done({"type": "hologram"})
    )


def test_a_finished_text_that_differs_from_its_deltas_is_noted():
    events = [text("Hello there."), done(0, **said("Hello, dear.")), completed()]

    assert texts(*events) == ["Hello there."]
    assert notes(*events) == ["the finished text differs from what was streamed of it"]


def test_a_message_may_have_its_text_in_place_of_its_parts():
    assert texts(done(0, **said("") | {"content": "Hi"}), completed()) == ["Hi"]


def test_a_part_may_be_called_text():
    assert texts(part_done({"type": "text", "text": "Hi"}), completed()) == ["Hi"]


def test_reasoning_may_come_in_content_parts():
    event = part_done({"type": "reasoning_text", "text": "Hm."})

    assert blocks(event, completed())[0]["thinking"] == "Hm."


# Reasoning


def test_a_summary_in_parts_is_one_text():
    events = [summary("One."), summary(" More.", part=0), summary("Two.", part=1), completed()]

    assert blocks(*events)[0]["thinking"] == "One. More.\n\nTwo."


def test_the_missing_rest_of_a_summary_is_said_in_the_end():
    events = [summary("On"), done(0, **reasoning("One.", "Two.")), completed()]

    assert blocks(*events)[0]["thinking"] == "One.\n\nTwo."


def test_a_summary_that_was_shown_keeps_the_text_itself_away():
    both = reasoning("Short.", content=[{"type": "reasoning_text", "text": "Long."}])

    assert blocks(summary("Short."), done(0, **both), completed())[0]["thinking"] == "Short."
    assert blocks(done(0, **both), completed())[0]["thinking"] == "Long."


def test_reasoning_after_the_item_is_finished_is_not_said():
    events = [done(0, **reasoning("One.")), summary(" More."), completed()]

    assert blocks(*events)[0]["thinking"] == "One."


def test_reasoning_with_nothing_to_show_or_carry_makes_no_block():
    secret = reasoning(encrypted_content="enc")

    assert blocks(done(0, **reasoning()), completed(), target=SIGNING) == []
    assert blocks(done(0, **secret), completed()) == []  # nobody here can sign
    assert len(blocks(done(0, **secret), completed(), target=SIGNING)) == 1


def test_summary_parts_that_are_none_say_nothing():
    odd = reasoning() | {"summary": [None, {"text": 3}, {"text": "Hm."}], "content": "odd"}

    assert blocks(done(0, **odd), completed())[0]["thinking"] == "Hm."


# Calls


def test_arguments_wait_for_the_name():
    events = [arguments('{"a"'), arguments(":1}"), done(0, **call('{"a":1}')), completed()]

    assert blocks(*events)[0]["input"] == {"a": 1}


def test_whole_arguments_wait_for_the_name_too():
    events = [arguments('{"a"'), arguments_done('{"a":1}'), done(0, **call("")), completed()]

    assert blocks(*events)[0]["input"] == {"a": 1}


def test_no_whole_arguments_keep_what_was_heard():
    events = [arguments('{"a":1}'), arguments_done(""), done(0, **call("")), completed()]

    assert blocks(*events)[0]["input"] == {"a": 1}


@pytest.mark.parametrize("piece", [None, 3, ""])
def test_arguments_that_are_no_text_are_none(piece):
    events = [added(0, **call("")), arguments(piece), done(0, **call("{}")), completed()]

    assert blocks(*events)[0]["input"] == {}


def test_arguments_after_the_call_is_finished_are_not_heard():
    events = [done(0, **call("{}")), arguments("x"), completed()]

    assert blocks(*events)[0]["input"] == {}


def test_arguments_given_as_an_object_are_taken():
    assert blocks(done(0, **call({"a": 1})), completed())[0]["input"] == {"a": 1}


def test_a_call_without_an_id_of_its_own_gets_one():
    by_item, invented = blocks(
        done(0, **call("{}", call_id="")), done(1, **call("{}", call_id="", id="")), completed()
    )

    assert (by_item["id"], invented["id"]) == ("fc_1", "call")


def test_an_id_that_the_history_has_taken_is_given_another_form():
    (block,) = blocks(done(0, **call("{}")), completed(), call_ids=frozenset({"call_1"}))

    assert block["id"] == "call_1_2"


def test_two_calls_never_share_an_id():
    first, second = blocks(done(0, **call()), done(1, **call(id="fc_2")), completed())

    assert first["id"] != second["id"]


def test_a_call_without_a_name_does_not_make_the_client_wait_for_results():
    events = [done(0, **call("{}", name="")), completed()]

    assert message(*events)["stop_reason"] == "end_turn"
    assert notes(*events) == ["a tool call without a name"]


def test_a_custom_tools_text_is_its_input():
    item = {"type": "custom_tool_call", "id": "c", "call_id": "call_1", "name": "sql"}
    whole = {"type": "response.custom_tool_call_input.done", "output_index": 0, "input": "SELECT 1"}

    streamed = blocks(added(0, **item), whole, done(0, **item, input="SELECT 1"), completed())
    at_once = blocks(done(0, **item, input="SELECT 1"), completed())
    nothing = blocks(done(0, **item), completed())

    assert streamed == at_once
    assert at_once[0]["input"] == {"input": "SELECT 1"}
    assert nothing[0]["input"] == {"input": ""}


def input_delta(piece):
    return {"type": "response.custom_tool_call_input.delta", "output_index": 0, "delta": piece}


def test_a_custom_tools_input_that_is_an_object_is_kept_as_text():
    item = {"type": "custom_tool_call", "id": "c", "call_id": "call_1", "name": "sql"}

    told = blocks(completed({**item, "input": {"query": 1}}))

    assert told[0]["input"] == {"input": '{"query":1}'}


def test_reasoning_may_be_told_in_bare_texts_and_under_other_names():
    said = {"type": "response.reasoning.delta", "output_index": 0, "delta": "H"}
    end = {"type": "response.reasoning.done", "output_index": 0, "text": "Hm."}
    spoken = {"type": "response.content_part.delta", "output_index": 1, "delta": "Yes."}
    item = {"type": "reasoning", "id": "rs_1", "summary": []}
    last = {"type": "response.done", "response": completed()["response"]}

    told = blocks(added(0, **item), said, end, done(0, **item), spoken, last)

    assert [list(block.values())[:2] for block in told] == [["thinking", "Hm."], ["text", "Yes."]]
    (bare,) = blocks(completed({**item, "summary": ["Hm."]}))
    assert bare["thinking"] == "Hm."


def test_what_was_heard_of_a_custom_tools_text_is_its_input_where_its_end_tells_none():
    item = {"type": "custom_tool_call", "id": "c", "call_id": "call_1", "name": "sql"}
    pieces = [input_delta(piece) for piece in ("SELECT", None, "", " 1")]

    ended = blocks(added(0, **item), *pieces, done(0, **item), input_delta("x"), completed())
    never_ended = blocks(added(0, **item), *pieces, completed())

    assert ended[0]["input"] == {"input": "SELECT 1"}
    assert never_ended == ended


@pytest.mark.parametrize(
    "end",
    [
        incomplete("max_output_tokens"),
        {"type": "response.failed", "response": {"error": {"code": "server_error"}}},
        {"type": "response.failed", "response": {"error": {"code": "content_filter"}}},
    ],
)
def test_a_custom_tools_text_that_was_cut_is_no_input(end):
    item = {"type": "custom_tool_call", "id": "c", "call_id": "call_1", "name": "sql"}

    [call] = blocks(added(0, **item), input_delta('DELETE "a'), end)

    assert call["input"] == '{"input":"DELETE \\"a'


# Whole items


def test_an_item_that_is_done_twice_is_said_once():
    assert texts(done(0, **said("Hi")), done(0, **said("Hi")), completed(said("Hi"))) == ["Hi"]


def test_what_nobody_asked_for_is_dropped_with_a_note():
    assert notes(done(0, type="image_generation_call")) == [
        "an output item of type 'image_generation_call' has no block"
    ]
    assert notes(done(0, type="mcp_call")) == ["nobody asked for a mcp_call"]
    assert notes(done(0, type="tool_search_call")) == [
        "an output item of type 'tool_search_call' has no block"
    ]
    assert notes(done(0, type="mcp_list_tools")) == []
    assert notes(done(0, type="mcp_list_tools", error="away")) == [
        "an output item of type 'mcp_list_tools' has no block"
    ]


def test_an_approval_that_nobody_can_give_is_an_error():
    asked = {"type": "mcp_approval_request", "id": "a"}

    for events in ([done(0, **asked), completed()], [completed(asked)]):
        last = heard(*events, target=target(OPENAI))[-1]
        assert last["error"]["type"] == "api_error"
        assert "waits for an approval" in last["error"]["message"]


def test_an_answer_that_waits_for_an_approval_is_counted_all_the_same():
    machine = stream()
    used = {"input_tokens": 422, "output_tokens": 48}

    machine.feed(completed({"type": "mcp_approval_request", "id": "a"}, usage=used))

    assert (machine.usage.source, machine.usage.output) == ("reported", 48)
    assert machine.error is not None
    assert machine.error.should_retry is False


def test_a_generated_image_is_told_in_words():
    image = {"type": "image_generation_call", "id": "ig", "result": "AAAA"}

    for events in ([done(0, **image), completed(image)], [completed(image)]):
        assert texts(*events) == ["[an image was generated that cannot be shown here]"]
        assert notes(*events) == ["a generated image is told as text"]


def test_searches_are_counted_where_the_upstream_does_not():
    search = {"type": "web_search_call", "id": "ws_1", "action": {"query": "x"}}

    usage = message(completed(search, search | {"id": "ws_2"}))["usage"]

    assert usage["server_tool_use"]["web_search_requests"] == 2
