"""Assistant and system messages of the history as input items."""

import pytest

from tests.fakes.anthropic_requests import (
    PIXEL,
    WEATHER,
    assistant,
    call,
    make_request,
    result,
    system,
    user,
)
from tests.for_each import for_each
from tests.translator.openai_responses.requests import body, build, fates, input_message, sent
from translator.errors import BadRequest

from .items import document
from .strict_types import assert_valid

# Assistant blocks


def reply(*content):
    """Return the items of an assistant turn."""
    return sent(user("A"), assistant(*content), user("B"))[1:-1]


@for_each(
    ("block", "expected"),
    [
        (
            {
                "type": "web_search_tool_result",
                "content": [{"title": "T", "url": "https://a.example"}],
            },
            "T https://a.example",
        ),
        (
            {"type": "bash_code_execution_tool_result", "content": {"stdout": "42"}},
            "42",
        ),
        (document({"type": "text", "data": "Milk."}), "Milk."),
    ],
)
def test_results_of_other_servers_become_text(block, expected):
    (item,) = reply(block)

    assert item["content"] == expected
    assert fates(make_request(user("A"), assistant(block), user("B"))) == {
        "messages.1.content.0": "emulated"
    }


def test_an_empty_result_is_dropped():
    failed = {"type": "code_execution_tool_result", "content": {"error_code": "unavailable"}}

    assert reply(failed) == []
    assert fates(make_request(user("A"), assistant(failed), user("B"))) == {
        "messages.1.content.0": "ignored"
    }


@for_each("kind", ["server_tool_use", "mcp_tool_listing", "fallback"])
def test_what_only_its_server_understands_is_left_out(kind):
    assert reply({"type": kind}) == []
    assert fates(make_request(user("A"), assistant({"type": kind}), user("B"))) == {
        "messages.1.content.0": "ignored"
    }


WIKI = {"type": "url", "name": "wiki", "url": "https://wiki.example/mcp"}
ASKED = {
    "type": "mcp_tool_use", "id": "mcptoolu_1", "name": "find", "server_name": "wiki",
    "input": {"q": "x"},
}  # fmt: skip
FOUND = {
    "type": "mcp_tool_result", "tool_use_id": "mcptoolu_1",
    "content": [{"type": "text", "text": "A page."}],
}  # fmt: skip


@for_each(("result_fields", "output"), [({}, "A page."), ({"is_error": True}, "Error: A page.")])
def test_an_mcp_call_goes_back_as_its_item_to_the_same_server(result_fields, output):
    history = [
        user("A"),
        assistant("Let me look.", ASKED, FOUND | result_fields, "Here."),
        user("B"),
    ]
    history[1]["content"] = [
        {"type": "text", "text": part} if isinstance(part, str) else part
        for part in history[1]["content"]
    ]

    made = build(make_request(*history, mcp_servers=[WIKI]))

    assert made.body["input"][1:-1] == [
        {"type": "message", "role": "assistant", "content": "Let me look.", "phase": "commentary"},
        {
            "type": "mcp_call", "id": "mcp_1", "server_label": "wiki", "name": "find",
            "arguments": '{"q":"x"}', "output": output,
        },
        {"type": "message", "role": "assistant", "content": "Here.", "phase": "final_answer"},
    ]  # fmt: skip
    assert [note for note in made.notes if note.path.startswith("messages")] == []
    assert_valid({"model": "m", **made.body})


@for_each(
    ("servers", "profile"),
    [([], "openai"), ([{**WIKI, "name": "other"}], "openai"), ([], "vllm")],
)
def test_an_mcp_call_of_another_server_leaves_only_its_result(servers, profile):
    fields = {"mcp_servers": servers} if servers else {}
    request = make_request(user("A"), assistant(ASKED, FOUND), user("B"), **fields)

    items = build(request, profile).body["input"][1:-1]

    assert [(item["type"], item["content"]) for item in items] == [("message", "A page.")]
    assert "called" not in str(items)


def test_a_compaction_becomes_its_summary():
    assert reply({"type": "compaction", "content": "We met."}) == [
        input_message("developer", "We met.")
    ]
    assert reply({"type": "compaction", "content": None}) == []


def test_an_unknown_assistant_block_is_refused_by_its_path():
    with pytest.raises(BadRequest) as refused:
        reply({"type": "image", "source": PIXEL})

    assert refused.value.path == "messages.1.content.0.type"


def test_the_same_fact_is_noted_once():
    orphans = [result("one", call_id="a"), result("two", call_id="b")]

    assert [note.path for note in build(make_request(user(*orphans))).notes] == ["messages"]


# System messages in mid conversation


def test_a_system_message_stands_in_its_place():
    assert sent(user("A"), system("B"), user("C")) == [
        input_message("user", "A"),
        input_message("developer", "B"),
        input_message("user", "C"),
    ]


def test_a_clearing_message_is_dropped_after_the_next_user_message():
    passing = system("Only now.", clear_at="next_user_message")

    assert sent(user("A"), passing, user("B")) == [
        input_message("user", "A"),
        input_message("user", "B"),
    ]
    assert sent(user("A"), passing) == [
        input_message("user", "A"),
        input_message("developer", "Only now."),
    ]


HIGH = {"effort": "high"}


def test_an_effort_in_mid_conversation_is_an_update_where_there_are_such():
    change = system("Think.", output_config=HIGH)
    history = [user("A"), change, user("B")]

    updated = sent(*history, configuration_update=True)

    assert updated[1] == {"type": "configuration_update", "reasoning": {"effort": "high"}}
    assert_valid(body(make_request(*history), configuration_update=True))
    assert sent(*history)[1] == input_message("developer", "Think.")
    assert body(make_request(*history))["reasoning"] == {"effort": "high"}
    assert fates(make_request(*history)) == {}


def test_an_effort_update_precedes_the_next_user_message():
    calling = [user("A"), assistant(call()), user(result("x"))]
    request = make_request(*calling, system(output_config={"effort": "low"}), output_config=HIGH)

    assert body(request)["reasoning"] == {"effort": "high"}
    assert fates(request) == {}


def test_tool_changes_add_no_item_but_a_note():
    change = system({"type": "tool_removal", "tool": {"name": "get_weather"}})
    request = make_request(user("A"), change, user("B"), tools=[WEATHER])

    assert body(request)["input"] == [input_message("user", "A"), input_message("user", "B")]
    assert fates(request) == {"messages.1.content.0": "emulated"}
