"""What assistants and operators said before, as input items."""

import pytest

from tests.translator.openai_responses.requests import body, build, fates, said, sent
from tests.translator.requests import PIXEL, WEATHER, ask, assistant, call, result, system, user
from translator.errors import BadRequest

from .items import document
from .strict_types import assert_valid

# Assistant blocks


def reply(*content):
    """The items of an assistant turn."""
    return sent(user("A"), assistant(*content), user("B"))[1:-1]


@pytest.mark.parametrize(
    ("block", "told_as"),
    [
        (
            {
                "type": "web_search_tool_result",
                "content": [{"title": "T", "url": "https://a.example"}],
            },
            "[search result] T https://a.example",
        ),
        (
            {"type": "bash_code_execution_tool_result", "content": {"stdout": "42"}},
            "42",
        ),
        (document({"type": "text", "data": "Milk."}), "Milk."),
    ],
)
def test_results_of_other_servers_are_told_as_text(block, told_as):
    (item,) = reply(block)

    assert item["content"] == told_as
    assert fates(ask(user("A"), assistant(block), user("B"))) == {
        "messages.1.content.0": "emulated"
    }


def test_a_result_with_nothing_to_tell_is_left_out():
    failed = {"type": "code_execution_tool_result", "content": {"error_code": "unavailable"}}

    assert reply(failed) == []
    assert fates(ask(user("A"), assistant(failed), user("B"))) == {
        "messages.1.content.0": "ignored"
    }


@pytest.mark.parametrize("kind", ["server_tool_use", "mcp_tool_listing", "fallback"])
def test_what_only_its_server_understands_is_left_out(kind):
    assert reply({"type": kind}) == []
    assert fates(ask(user("A"), assistant({"type": kind}), user("B"))) == {
        "messages.1.content.0": "ignored"
    }


def test_a_compaction_is_told_as_its_summary():
    assert reply({"type": "compaction", "content": "We met."}) == [said("developer", "We met.")]
    assert reply({"type": "compaction", "content": None}) == []


def test_an_unknown_assistant_block_is_refused_by_its_path():
    with pytest.raises(BadRequest) as refused:
        reply({"type": "image", "source": PIXEL})

    assert refused.value.path == "messages.1.content.0.type"


def test_the_same_fact_is_noted_once():
    orphans = [result("one", call_id="a"), result("two", call_id="b")]

    assert [note.path for note in build(ask(user(*orphans))).notes] == ["messages"]


# System messages in mid conversation


def test_a_system_message_stands_in_its_place():
    assert sent(user("A"), system("B"), user("C")) == [
        said("user", "A"),
        said("developer", "B"),
        said("user", "C"),
    ]


def test_a_message_that_clears_is_gone_when_a_user_spoke_again():
    passing = system("Only now.", clear_at="next_user_message")

    assert sent(user("A"), passing, user("B")) == [said("user", "A"), said("user", "B")]
    assert sent(user("A"), passing) == [said("user", "A"), said("developer", "Only now.")]


HIGH = {"effort": "high"}


def test_an_effort_in_mid_conversation_is_an_update_where_there_are_such():
    change = system("Think.", output_config=HIGH)
    history = [user("A"), change, user("B")]

    updated = sent(*history, configuration_update=True)

    assert updated[1] == {"type": "configuration_update", "reasoning": {"effort": "high"}}
    assert_valid(body(ask(*history), configuration_update=True))
    assert sent(*history)[1] == said("developer", "Think.")
    assert body(ask(*history))["reasoning"] == {"effort": "high"}
    assert fates(ask(*history)) == {}


def test_an_effort_waits_for_the_user_to_speak():
    calling = [user("A"), assistant(call()), user(result("x"))]
    request = ask(*calling, system(output_config={"effort": "low"}), output_config=HIGH)

    assert body(request)["reasoning"] == {"effort": "high"}
    assert fates(request) == {}


def test_tool_changes_say_nothing_but_are_noted():
    change = system({"type": "tool_removal", "tool": {"name": "get_weather"}})
    request = ask(user("A"), change, user("B"), tools=[WEATHER])

    assert body(request)["input"] == [said("user", "A"), said("user", "B")]
    assert fates(request) == {"messages.1.content.0": "emulated"}
