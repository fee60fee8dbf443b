"""Each item becomes blocks without duplicates, losses or additions."""

from tests.fakes.anthropic_requests import KEYS
from tests.for_each import for_each
from tests.translator.openai_responses.responses import (
    added,
    arguments,
    arguments_done,
    blocks,
    call,
    completed,
    done,
    incomplete,
    kinds,
    message,
    notes,
    output_message,
    part_done,
    reasoning,
    stream,
    stream_events,
    summary,
    target,
    text,
)
from translator.capabilities import PROFILES
from translator.message_stream.events_to_message import fold
from translator.openai_responses import DIALECT

OPENAI = PROFILES["openai"]
SIGNING = target(OPENAI, signing_keys=KEYS)


def texts(*events, **fields):
    return [block["text"] for block in blocks(*events, **fields)]


# Text


@for_each("piece", ["", None, 3, ["x"]])
def test_an_empty_delta_opens_no_block(piece):
    assert kinds(stream_events(text(piece), completed())) == [
        "message_start",
        "message_delta",
        "message_stop",
    ]


@for_each(
    ("content", "expected"),
    [
        (["Hi", " Ada"], ["Hi", " Ada"]),
        ([{"text": "Hi"}], ["Hi"]),
        ({"type": "output_text", "text": "Hi"}, ["Hi"]),
        ("Hi", ["Hi"]),
        ([None, 7], []),
        (7, []),
    ],
)
def test_message_text_may_have_other_forms(content, expected):
    assert texts(done(0, type="message", content=content), completed()) == expected


def test_text_after_the_finished_item_is_ignored():
    assert texts(done(0, **output_message("Hi")), text(" again"), completed()) == ["Hi"]


def text_done(whole):
    kind = "response.output_text.done"
    return {"type": kind, "output_index": 0, "content_index": 0, "text": whole}


def test_repeated_text_is_emitted_once():
    final = output_message("Hi")
    events = [text("H"), text("i"), text_done("Hi"), part_done(final["content"][0])]

    assert texts(*events, done(0, **final), completed(final)) == ["Hi"]


def test_text_after_its_finished_part_is_emitted():
    final = output_message("Hi there")
    events = [
        text("Hi"),
        part_done(output_message("Hi")["content"][0]),
        text(" there"),
        done(0, **final),
    ]

    assert texts(*events, text(" again"), completed(final)) == ["Hi", " there"]
    assert notes(*events) == []


def test_an_invalid_part_is_ignored():
    assert texts(text("Hi"), part_done(None), part_done({"type": "hologram"}), completed()) == [
        "Hi"
    ]
    assert "a content part of type 'hologram' has no block" in notes(
        part_done({"type": "hologram"})
    )


def test_a_finished_text_that_differs_from_its_deltas_is_noted():
    events = [text("Hello there."), done(0, **output_message("Hello, dear.")), completed()]

    assert texts(*events) == ["Hello there."]
    assert notes(*events) == ["the finished text differs from the streamed text"]


def test_a_message_may_have_its_text_in_place_of_its_parts():
    assert texts(done(0, **output_message("") | {"content": "Hi"}), completed()) == ["Hi"]


def test_a_part_may_be_called_text():
    assert texts(part_done({"type": "text", "text": "Hi"}), completed()) == ["Hi"]


def test_reasoning_may_come_in_content_parts():
    event = part_done({"type": "reasoning_text", "text": "Hm."})

    assert blocks(event, completed())[0]["thinking"] == "Hm."


# Reasoning


def test_a_summary_in_parts_is_one_text():
    events = [summary("One."), summary(" More.", part=0), summary("Two.", part=1), completed()]

    assert blocks(*events)[0]["thinking"] == "One. More.\n\nTwo."


def test_the_missing_rest_of_a_summary_is_emitted_at_the_end():
    events = [summary("On"), done(0, **reasoning("One.", "Two.")), completed()]

    assert blocks(*events)[0]["thinking"] == "One.\n\nTwo."


def test_reasoning_text_is_ignored_after_a_summary():
    both = reasoning("Short.", content=[{"type": "reasoning_text", "text": "Long."}])

    assert blocks(summary("Short."), done(0, **both), completed())[0]["thinking"] == "Short."
    assert blocks(done(0, **both), completed())[0]["thinking"] == "Long."


def test_reasoning_after_the_finished_item_is_ignored():
    events = [done(0, **reasoning("One.")), summary(" More."), completed()]

    assert blocks(*events)[0]["thinking"] == "One."


def test_reasoning_with_nothing_to_show_or_carry_makes_no_block():
    secret = reasoning(encrypted_content="enc")

    assert blocks(done(0, **reasoning()), completed(), target=SIGNING) == []
    assert blocks(done(0, **secret), completed()) == []  # there are no signing keys
    assert len(blocks(done(0, **secret), completed(), target=SIGNING)) == 1


def test_invalid_summary_parts_are_ignored():
    unusual = reasoning() | {"summary": [None, {"text": 3}, {"text": "Hm."}], "content": "unusual"}

    assert blocks(done(0, **unusual), completed())[0]["thinking"] == "Hm."


# Calls


def test_arguments_wait_for_the_name():
    events = [arguments('{"a"'), arguments(":1}"), done(0, **call('{"a":1}')), completed()]

    assert blocks(*events)[0]["input"] == {"a": 1}


def test_whole_arguments_wait_for_the_name_too():
    events = [arguments('{"a"'), arguments_done('{"a":1}'), done(0, **call("")), completed()]

    assert blocks(*events)[0]["input"] == {"a": 1}


def test_missing_final_arguments_preserve_the_deltas():
    events = [arguments('{"a":1}'), arguments_done(""), done(0, **call("")), completed()]

    assert blocks(*events)[0]["input"] == {"a": 1}


@for_each("piece", [None, 3, ""])
def test_argument_deltas_without_text_are_ignored(piece):
    events = [added(0, **call("")), arguments(piece), done(0, **call("{}")), completed()]

    assert blocks(*events)[0]["input"] == {}


def test_arguments_after_the_finished_call_are_ignored():
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


def test_a_custom_tools_object_input_becomes_text():
    item = {"type": "custom_tool_call", "id": "c", "call_id": "call_1", "name": "sql"}

    content = blocks(completed({**item, "input": {"query": 1}}))

    assert content[0]["input"] == {"input": '{"query":1}'}


def test_reasoning_may_have_plain_texts_and_other_event_names():
    reasoning_delta = {"type": "response.reasoning.delta", "output_index": 0, "delta": "H"}
    end = {"type": "response.reasoning.done", "output_index": 0, "text": "Hm."}
    text_delta = {"type": "response.content_part.delta", "output_index": 1, "delta": "Yes."}
    item = {"type": "reasoning", "id": "rs_1", "summary": []}
    last = {"type": "response.done", "response": completed()["response"]}

    content = blocks(added(0, **item), reasoning_delta, end, done(0, **item), text_delta, last)

    assert [list(block.values())[:2] for block in content] == [
        ["thinking", "Hm."],
        ["text", "Yes."],
    ]
    (bare,) = blocks(completed({**item, "summary": ["Hm."]}))
    assert bare["thinking"] == "Hm."


def test_the_deltas_of_a_custom_tool_are_its_input_without_a_final_text():
    item = {"type": "custom_tool_call", "id": "c", "call_id": "call_1", "name": "sql"}
    pieces = [input_delta(piece) for piece in ("SELECT", None, "", " 1")]

    ended = blocks(added(0, **item), *pieces, done(0, **item), input_delta("x"), completed())
    never_ended = blocks(added(0, **item), *pieces, completed())

    assert ended[0]["input"] == {"input": "SELECT 1"}
    assert never_ended == ended


@for_each(
    "end",
    [
        incomplete("max_output_tokens"),
        {"type": "response.failed", "response": {"error": {"code": "server_error"}}},
        {"type": "response.failed", "response": {"error": {"code": "content_filter"}}},
    ],
)
def test_the_cut_input_of_a_custom_tool_is_incomplete_json(end):
    item = {"type": "custom_tool_call", "id": "c", "call_id": "call_1", "name": "sql"}

    [call] = blocks(added(0, **item), input_delta('DELETE "a'), end)

    assert call["input"] == '{"input":"DELETE \\"a'


# Whole items


def test_an_item_finished_twice_is_emitted_once():
    assert texts(
        done(0, **output_message("Hi")),
        done(0, **output_message("Hi")),
        completed(output_message("Hi")),
    ) == ["Hi"]


@for_each("kind", ["mcp_call", "code_interpreter_call"])
def test_a_hosted_call_that_the_client_did_not_request_is_dropped(kind):
    """An operator may have added the tool for all requests, or the server runs it by itself."""
    request = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    machine = DIALECT.stream(DIALECT.build_request(request, target(OPENAI)).response_context)

    emitted = machine.feed(done(0, type=kind, name="n"), completed(output_message("Hi")))

    assert [block["type"] for block in fold(emitted)["content"]] == ["text"]
    assert f"a {kind} was not requested" in {note.reason for note in machine.notes}


@for_each("output", [{}, {"output": []}, {"output": None}])
def test_a_response_with_output_text_alone_is_text(output):
    response = {
        "id": "r",
        "object": "response",
        "status": "completed",
        "output_text": "Hi",
        **output,
    }
    final = {"type": "response.completed", "response": response}

    assert texts(final) == ["Hi"]
    assert texts(text("Hi"), done(0, **output_message("Hi")), final) == ["Hi"]
    assert fold(stream().feed_body(response))["content"] == [
        {"type": "text", "text": "Hi", "citations": None}
    ]


def test_an_unrequested_item_is_dropped_with_a_note():
    assert notes(done(0, type="image_generation_call")) == [
        "an output item of type 'image_generation_call' has no block"
    ]
    assert notes(done(0, type="mcp_call")) == ["a mcp_call was not requested"]
    assert notes(done(0, type="tool_search_call")) == [
        "an output item of type 'tool_search_call' has no block"
    ]
    assert notes(done(0, type="mcp_list_tools")) == []
    assert notes(done(0, type="mcp_list_tools", error="away")) == [
        "an output item of type 'mcp_list_tools' has no block"
    ]


def test_an_approval_request_is_an_error():
    approval = {"type": "mcp_approval_request", "id": "a"}

    for events in ([done(0, **approval), completed()], [completed(approval)]):
        last = stream_events(*events, target=target(OPENAI))[-1]
        assert last["error"]["type"] == "api_error"
        assert "waits for an approval" in last["error"]["message"]


def test_a_response_that_waits_for_an_approval_has_usage():
    machine = stream()
    used = {"input_tokens": 422, "output_tokens": 48}

    machine.feed(completed({"type": "mcp_approval_request", "id": "a"}, usage=used))

    assert (machine.usage.source, machine.usage.output) == ("reported", 48)
    assert machine.error is not None
    assert machine.error.should_retry is False


def test_a_generated_image_becomes_text():
    image = {"type": "image_generation_call", "id": "ig", "result": "AAAA"}

    for events in ([done(0, **image), completed(image)], [completed(image)]):
        assert texts(*events) == ["[an image was generated that cannot be shown here]"]
        assert notes(*events) == ["a generated image is replaced by text"]


def test_searches_are_counted_where_the_upstream_does_not():
    search = {"type": "web_search_call", "id": "ws_1", "action": {"query": "x"}}

    usage = message(completed(search, search | {"id": "ws_2"}))["usage"]

    assert usage["server_tool_use"]["web_search_requests"] == 2
