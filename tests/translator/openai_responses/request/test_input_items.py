"""The conversation: order, pairs, roles, and each kind of block."""

import json

import pytest

from tests.fakes.anthropic_requests import (
    BROKEN_INPUTS,
    PDF,
    assistant,
    call,
    image,
    make_request,
    result,
    system,
    text,
    user,
)
from tests.for_each import for_each
from tests.translator.openai_responses.requests import body, build, fates, input_message, sent
from translator.errors import BadRequest

from .items import CALL, INPUT_IMAGE, document, output, result_output, user_part

# Order and pairs


def test_turns_preserve_their_order():
    assert sent(user("A"), assistant("B"), user("C")) == [
        input_message("user", "A"),
        {"type": "message", "role": "assistant", "content": "B", "phase": "final_answer"},
        input_message("user", "C"),
    ]


def test_empty_turns_and_blank_texts_are_dropped():
    assert sent(user("A"), assistant(text(" ")), user(text(""), text("C")), user(" ")) == [
        input_message("user", "A"),
        input_message("user", "C"),
    ]


def test_text_before_a_call_precedes_it():
    items = sent(user("Go."), assistant(text("A"), call(), text("B")), user(result("x")))

    assert [(i["type"], i.get("content"), i.get("phase")) for i in items[1:4]] == [
        ("message", "A", "commentary"),
        ("function_call", None, None),
        ("message", "B", "final_answer"),
    ]


def test_phases_are_sent_only_to_servers_that_support_them():
    items = sent(user("A"), assistant("B"), user("C"), profile="azure")

    assert "phase" not in items[1]


def test_results_precede_the_text_of_the_same_user_message():
    items = sent(user("Go."), assistant(call()), user(text("Here:"), result("x")))

    assert items[1:] == [CALL, output("x"), input_message("user", "Here:")]


def test_a_system_message_between_call_and_result_moves_behind_the_result():
    items = sent(user("Go."), assistant(call()), system("Be brief."), user(result("x")))

    assert items[1:] == [CALL, output("x"), input_message("developer", "Be brief.")]


def test_results_follow_the_order_of_their_calls():
    both = [result("two", call_id="toolu_2"), result("one")]

    items = sent(user("Go."), assistant(call(), call("toolu_2")), user(*both))

    assert items[3:] == [output("one"), output("two", "toolu_2")]


def test_a_call_without_result_gets_one_and_a_note():
    history = [user("Go."), assistant(call()), user("Never mind.")]

    assert sent(*history)[1:] == [
        CALL,
        output("[no result recorded]"),
        input_message("user", "Never mind."),
    ]
    assert fates(make_request(*history)) == {"messages": "repaired"}


def test_a_result_without_call_becomes_user_text():
    history = [user(result("lost")), assistant("Hm."), user(result(image()), text("So?"))]

    items = sent(*history)

    assert items[0] == input_message("user", "[tool result]", "lost")
    assert items[2]["content"] == [
        *input_message("user", "[tool result]")["content"],
        INPUT_IMAGE,
        *input_message("user", "So?")["content"],
    ]
    assert fates(make_request(*history)) == {"messages.1": "repaired", "messages": "repaired"}


def test_an_orphan_result_beside_a_developer_message_remains():
    items = sent(system("A"), user(result("lost")))

    assert items == [
        input_message("user", "[tool result]", "lost"),
        input_message("developer", "A"),
    ]


def test_long_ids_are_clamped_alike_on_both_sides():
    long = "x" * 100

    items = sent(user("Go."), assistant(call(long)), user(result("y", call_id=long)))

    assert items[1]["call_id"] == items[2]["call_id"]
    assert len(items[1]["call_id"]) == 64


def test_a_prefilled_answer_gets_a_continue_instruction():
    request = make_request(user("JSON!"), assistant("{"))

    items = body(request)["input"]

    assert items[1]["content"] == "{"
    assert items[2]["role"] == "developer"
    assert fates(request) == {"messages.1": "emulated"}


# Tool calls


def test_arguments_of_a_call_are_compact_json_without_escapes():
    (item,) = [
        i for i in sent(user("Go."), assistant(call(city="Tromsø"))) if i["type"] == "function_call"
    ]

    assert item["arguments"] == '{"city":"Tromsø"}'


@for_each(("broken", "whole"), BROKEN_INPUTS)
def test_arguments_that_are_no_object_are_sent_as_one(broken, whole):
    history = (user("Go."), assistant(call() | {"input": broken}), user(result("x")))

    assert json.loads(sent(*history)[1]["arguments"]) == whole
    assert fates(make_request(*history)) == {"messages.1.content.0.input": "repaired"}


# Tool results


@for_each(
    ("content", "expected"),
    [
        ((), ""),
        (("Cold.",), "Cold."),
        ((text("A"), text("B")), "A\nB"),
        (({"type": "tool_reference", "tool_name": "find"},), "[tool loaded: find]"),
        ((text("A"), image()), [{"type": "input_text", "text": "A"}, INPUT_IMAGE]),
    ],
)
def test_a_tool_result_becomes_the_output_of_its_call(content, expected):
    assert result_output(*content) == expected


def test_an_empty_list_is_empty_text():
    block = result() | {"content": []}

    assert sent(user("Go."), assistant(call()), user(block))[2]["output"] == ""


@for_each(
    ("content", "expected"),
    [
        (("no city",), "Error: no city"),
        ((), "Error"),
        ((image(),), [{"type": "input_text", "text": "Error"}, INPUT_IMAGE]),
    ],
)
def test_a_failed_result_is_marked_as_error(content, expected):
    assert result_output(*content, is_error=True) == expected


def test_media_goes_to_the_user_where_outputs_are_only_text():
    history = [user("Go."), assistant(call()), user(text("See:"), result(text("A"), image()))]

    items = sent(*history, media_in_tool_output=False)

    assert items[2] == output("A\n[image or file: in the next user message]")
    assert items[3]["content"] == [INPUT_IMAGE, {"type": "input_text", "text": "See:"}]
    assert "emulated" in fates(make_request(*history), media_in_tool_output=False).values()


def test_results_carry_no_breakpoints():
    marked = text("A", cache_control={"type": "ephemeral"})
    history = [user("Go."), assistant(call()), user(result(marked, image()))]

    items = sent(*history, cache_breakpoints=True)

    assert items[2]["output"][0] == {"type": "input_text", "text": "A"}


# User blocks


def test_an_image_may_be_bytes_or_a_url():
    assert user_part(image()) == INPUT_IMAGE
    url = image(type="url", url="https://a.example/x.png")
    assert user_part(url)["image_url"] == "https://a.example/x.png"


def test_a_model_without_vision_receives_a_placeholder():
    assert user_part(image(), images=False)["text"].startswith("[image omitted")
    assert fates(make_request(user(image())), images=False) == {"messages.0.content.0": "dropped"}


def test_image_transformations_are_dropped_with_a_note():
    block = image() | {"transformations": {"oversized_image": "error"}}

    assert fates(make_request(user(block))) == {"messages.0.content.0.transformations": "dropped"}


@for_each(
    ("block", "part"),
    [
        (
            document(PDF),
            {
                "type": "input_file",
                "filename": "document.pdf",
                "file_data": "data:application/pdf;base64,JVBERi0=",
            },
        ),
        (
            document({"type": "url", "url": "https://a.example/x.pdf"}),
            {"type": "input_file", "file_url": "https://a.example/x.pdf"},
        ),
        (
            document({"type": "text", "media_type": "text/plain", "data": "Milk."}, title="List"),
            {"type": "input_text", "text": "List\nMilk."},
        ),
        (
            document({"type": "content", "content": "Milk."}, title="List"),
            {"type": "input_text", "text": "List\nMilk."},
        ),
        (
            {
                "type": "search_result",
                "title": "T",
                "source": "https://s.example",
                "content": [text("Body")],
            },
            {"type": "input_text", "text": "T\nhttps://s.example\nBody"},
        ),
    ],
)
def test_documents_and_search_results(block, part):
    assert user_part(block) == part


def test_a_document_of_blocks_preserves_their_order():
    inner = {"type": "content", "content": [text("A"), image()]}

    (titled,) = sent(user(document(inner, title="T")))
    (bare,) = sent(user(document(inner)))

    assert [part["type"] for part in titled["content"]] == ["input_text"] * 2 + ["input_image"]
    assert len(bare["content"]) == 2


@for_each(
    "block",
    [
        document({"type": "text", "data": "x"}, citations={"enabled": True}),
        {
            "type": "search_result",
            "source": "s",
            "title": "t",
            "content": [],
            "citations": {"enabled": True},
        },
    ],
)
def test_citations_that_cannot_be_made_are_noted(block):
    assert fates(make_request(user(block))) == {
        "messages.0.content.0.citations": "dropped",
        "messages.0.content.0": "emulated",
    }


@for_each(
    ("block", "path", "overrides"),
    [
        (image(type="file", file_id="f"), "messages.0.content.0.image.source.type", {}),
        (
            document({"type": "file", "file_id": "f"}),
            "messages.0.content.0.document.source.type",
            {},
        ),
        (
            result(image(type="file", file_id="f")),
            "messages.0.content.0.tool_result.content.0.image.source.type",
            {},
        ),
        ({"type": "container_upload", "file_id": "f"}, "messages.0.content.0.type", {}),
        ({"type": "hologram"}, "messages.0.content.0.type", {}),
        (result({"type": "browser_state"}), "messages.0.content.0.content.0.type", {}),
    ],
)
def test_what_has_no_form_here_is_refused_by_its_path(block, path, overrides):
    with pytest.raises(BadRequest) as refused:
        build(make_request(user(block)), **overrides)

    assert refused.value.path == path


IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
IMAGE_PART = {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "auto"}


@for_each(
    ("second", "sent"),
    [
        ("B", "A\nB"),
        ("A", "A"),
        (IMAGE, [{"type": "input_text", "text": "A"}, IMAGE_PART]),
    ],
    ids=["different", "equal", "with an image"],
)
def test_several_results_of_a_call_are_sent_as_one_with_a_note(second, sent):
    request = make_request(user("Hi."), assistant(call()), user(result("A"), result(second)))

    assert body(request)["input"][2]["output"] == sent
    assert fates(request) == {"messages.2.content.1": "repaired"}
