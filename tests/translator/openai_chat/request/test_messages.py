"""The order of a Chat conversation, and what each turn becomes."""

import pytest

from tests.fakes.anthropic_requests import (
    PIXEL,
    assistant,
    call,
    make_request,
    result,
    system,
    text,
    user,
)
from tests.for_each import for_each
from tests.translator.openai_chat.requests import body, build, fates, sent
from translator.errors import BadRequest

IMAGE = {"type": "image", "source": PIXEL}
IMAGE_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
TWO_CALLS = assistant(
    text("Looking."), call("toolu_1", city="Oslo"), call("toolu_2", city="Bergen")
)


def roles(messages):
    return [message["role"] for message in messages]


def test_text_is_a_plain_string():
    assert sent(user(text("One."), text("  "), text("Two."))) == [
        {"role": "user", "content": "One.\n\nTwo."}
    ]
    assert sent(user(""), user("One."), user(" \n")) == [{"role": "user", "content": "One."}]


def test_a_system_prompt_comes_first_under_the_role_the_server_knows():
    request = make_request(system=[text("Be brief."), text("Be kind.")])

    assert body(request)["messages"][0] == {"role": "system", "content": "Be brief.\n\nBe kind."}
    assert body(request, "openai")["messages"][0]["role"] == "developer"


def test_the_billing_header_is_dropped_with_a_note():
    header = text("x-anthropic-billing-header: cch=1")
    request = make_request(system=[header, text("Be brief.")])

    assert body(request)["messages"][0]["content"] == "Be brief."
    assert fates(request) == {"system.0": "ignored"}


def test_a_repeated_note_appears_once():
    two = make_request(user("Hi."), assistant(call("a"), call("b")), user("So?"))

    assert len(build(two).notes) == 1


def test_results_follow_their_calls_before_other_messages():
    messages = sent(
        user("Hi."),
        TWO_CALLS,
        user(
            text("And now?"), result("Rain.", call_id="toolu_2"), result("Sun.", call_id="toolu_1")
        ),
    )

    assert messages[1:] == [
        {
            "role": "assistant",
            "content": "Looking.",
            "tool_calls": [
                {
                    "id": "toolu_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'},
                },
                {
                    "id": "toolu_2",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city":"Bergen"}'},
                },
            ],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "Sun."},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "Rain."},
        {"role": "user", "content": "And now?"},
    ]


def test_results_in_two_user_turns_are_gathered():
    messages = sent(
        user("Hi."),
        TWO_CALLS,
        user(result("Sun.", call_id="toolu_1")),
        user(result("Rain.", call_id="toolu_2")),
    )

    assert roles(messages) == ["user", "assistant", "tool", "tool"]


def test_images_of_results_come_first_in_one_user_message():
    messages = sent(
        user("Hi."),
        TWO_CALLS,
        user(
            result(text("Shot 1."), IMAGE, call_id="toolu_1"),
            result(IMAGE, call_id="toolu_2"),
            text("Compare."),
        ),
    )

    assert [m["content"] for m in messages if m["role"] == "tool"] == [
        "Shot 1.\n[image or file: in the next user message]",
        "[image or file: in the next user message]",
    ]
    assert messages[-1]["content"] == [IMAGE_PART, IMAGE_PART, {"type": "text", "text": "Compare."}]


def test_images_of_results_get_a_new_user_message_if_none_follows():
    messages = sent(user("Hi."), assistant(call()), user(result(IMAGE)))

    assert messages[-1] == {"role": "user", "content": [IMAGE_PART]}


@for_each("content", [(), ("",), (" \n",), ([],), ([text(" "), text("")],)])
def test_an_empty_result_is_an_empty_string(content):
    block = {"type": "tool_result", "tool_use_id": "toolu_1"}
    block |= {"content": content[0]} if content else {}

    assert sent(user("Hi."), assistant(call()), user(block))[-1]["content"] == ""


def test_an_error_result_is_marked_as_error():
    rendered = sent(user("Hi."), assistant(call()), user(result("no such city", is_error=True)))[-1]

    assert rendered["content"].startswith("Error")
    assert "no such city" in rendered["content"]


def test_a_missing_result_is_added_and_an_orphan_becomes_text():
    request = make_request(
        user("Hi."),
        assistant(call("toolu_1")),
        user(result("Sun.", call_id="toolu_9"), text("Go on.")),
    )

    messages = body(request)["messages"]

    assert messages[2:] == [
        {"role": "tool", "tool_call_id": "toolu_1", "content": "[no result recorded]"},
        {"role": "user", "content": "[tool result] Sun.\n\nGo on."},
    ]
    assert set(fates(request).values()) == {"repaired"}


def test_long_ids_are_clamped_alike_on_both_sides():
    long = "call_" + "x" * 1300

    messages = sent(user("Hi."), assistant(call(long)), user(result("Sun.", call_id=long)))

    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"]
    assert len(messages[2]["tool_call_id"]) <= 64


def test_a_system_message_stands_in_place_behind_the_results():
    history = (
        user("Hi."),
        assistant(call()),
        system("The date changed."),
        user(result("Sun."), text("So?")),
    )

    assert roles(sent(*history, profile="openai")) == [
        "user",
        "assistant",
        "tool",
        "developer",
        "user",
    ]


def test_a_system_message_joins_the_first_one_where_templates_forbid_it():
    request = make_request(
        user("Hi."), system("The date changed."), user("So?"), system="Be brief."
    )

    messages = body(request)["messages"]

    assert messages[0]["content"] == "Be brief.\n\nThe date changed."
    assert roles(messages) == ["system", "user", "user"]
    assert fates(request) == {"messages.1": "emulated"}


def test_a_system_message_to_be_cleared_lasts_until_the_next_user_message():
    cleared = system("Only now.", clear_at="next_user_message")

    assert "Only now." in str(sent(user("Hi."), cleared, profile="openai"))
    assert "Only now." not in str(sent(user("Hi."), cleared, user("So?"), profile="openai"))


LOW, HIGH = ({"effort": effort} for effort in ("low", "high"))


@for_each(
    ("fields", "effort"),
    [({}, "high"), ({"output_config": LOW}, "high"), ({"thinking": {"type": "disabled"}}, "none")],
)
def test_an_effort_in_mid_conversation_is_that_of_the_request(fields, effort):
    request = make_request(user("Hi."), system(output_config=HIGH), user("So?"), **fields)

    assert body(request, "openai")["reasoning_effort"] == effort
    assert fates(request, "openai") == {}


def test_an_unsupported_effort_in_mid_conversation_is_noted():
    request = make_request(user("Hi."), system("Think.", output_config=HIGH), user("So?"))

    assert fates(request, "generic") == {
        "messages.1": "emulated", "messages.1.output_config.effort": "dropped"
    }  # fmt: skip


def test_a_system_message_that_only_changes_tools_is_dropped():
    addition = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "get_weather"}}

    assert sent(user("Hi."), system(addition), user("So?")) == sent(user("Hi."), user("So?"))


def test_adjacent_user_messages_are_merged_only_if_the_template_needs_it():
    history = (user("One."), user(text("Two."), IMAGE), user("Three."))

    assert len(sent(*history)) == 3
    merged = sent(*history, assistant("Ok."), user("Go."), merge_users=True)
    assert roles(merged) == ["user", "assistant", "user"]
    assert merged[0]["content"] == [
        {"type": "text", "text": "One."},
        {"type": "text", "text": "Two."},
        IMAGE_PART,
        {"type": "text", "text": "Three."},
    ]


def test_an_empty_turn_disappears():
    messages = sent(user("Hi."), assistant(text(" ")), user(text("")), user("Still there?"))

    assert roles(messages) == ["user", "user"]


@for_each(("profile", "nothing"), [("generic", None), ("ollama", "")])
def test_a_message_with_only_calls_has_the_content_that_the_server_requires(profile, nothing):
    messages = sent(user("Hi."), assistant(call()), user(result("Sun.")), profile=profile)

    assert messages[1]["content"] is nothing or messages[1]["content"] == nothing == ""


def test_cache_breakpoints_stand_on_parts_where_the_server_knows_them():
    cached = text("Long.", cache_control={"type": "ephemeral"})
    request = make_request(
        user(cached, text("Short.")), system=[cached], cache_control={"type": "ephemeral"}
    )

    first, second = body(request, cache_breakpoints=True)["messages"]

    marked = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    assert first["content"] == [{"type": "text", "text": "Long."} | marked]
    assert [set(part) & set(marked) for part in second["content"]] == [set(marked), set(marked)]
    assert "prompt_cache_breakpoint" not in str(body(request))


def test_an_automatic_breakpoint_without_a_user_marks_nothing():
    request = make_request(assistant("Hi"), cache_control={"type": "ephemeral"})

    assert "breakpoint" not in str(body(request, "vllm", cache_breakpoints=True))


def test_breakpoints_inside_tool_results_have_no_place():
    cached = text("Sun.", cache_control={"type": "ephemeral"})

    messages = sent(user("Hi."), assistant(call()), user(result(cached)), cache_breakpoints=True)

    assert messages[-1] == {"role": "tool", "tool_call_id": "toolu_1", "content": "Sun."}


@for_each("message", [user({"type": "hologram"}), assistant({"type": "hologram"})])
def test_a_block_without_a_chat_form_is_refused_by_its_path(message):
    with pytest.raises(BadRequest, match=r"^messages\.1\.content\.0\.type: 'hologram'"):
        build(make_request(user("Hi."), message))


def test_a_conversation_without_text_is_rejected():
    with pytest.raises(BadRequest, match=r"^messages: text content blocks must be non-empty"):
        build(make_request(user(text(" "))))
