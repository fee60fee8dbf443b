"""Tools that system messages add and take away, the same in both dialects."""

import pytest

from translator.dialect import Target
from translator.errors import BadRequest
from translator.profiles import PROFILES
from translator.translate import map_anthropic_to_openai_chat, map_anthropic_to_openai_response

TARGET = Target(model="gpt", profile=PROFILES["openai"])
USER = {"role": "user", "content": "Hello."}
DECLARED = {"name": "declared", "input_schema": {"type": "object", "properties": {}}}
INLINE = {"name": "inline", "input_schema": {"type": "object", "properties": {}}}
SERVER = {"type": "url", "name": "wiki", "url": "https://wiki.test"}
LEFT = "the tools are those that are left at the end"


def change(kind, **tool):
    return {"role": "system", "content": [{"type": f"tool_{kind}", "tool": tool}]}


def named(name):
    return {"type": "tool_reference", "name": name}


def defined(definition=INLINE):
    return {"type": "tool_definition", "definition": definition}


@pytest.fixture(params=[map_anthropic_to_openai_chat, map_anthropic_to_openai_response])
def ask(request):
    def built(*changes, **fields):
        asked = {"model": "m", "max_tokens": 99, "messages": [USER, *changes], **fields}
        return request.param(asked, target=TARGET)

    return built


def names(built):
    return [tool.get("function", tool)["name"] for tool in built.body.get("tools", [])]


def notes(built):
    return [(note.path, note.fate, note.reason) for note in built.notes]


def test_a_tool_that_is_defined_in_mid_conversation_is_offered(ask):
    choice = {"type": "tool", "name": "inline"}

    built = ask(change("addition", **defined()), tools=[DECLARED], tool_choice=choice)

    assert names(built) == ["declared", "inline"]
    assert notes(built) == [("messages.1.content.0", "emulated", LEFT)]


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ([("removal", named("declared"))], []),
        ([("removal", {"name": "declared"})], []),
        ([("removal", named("declared")), ("addition", named("declared"))], ["declared"]),
        ([("addition", defined()), ("removal", named("inline"))], ["declared"]),
        (
            [
                ("addition", defined()),
                ("removal", named("inline")),
                ("addition", named("inline")),
            ],
            ["declared", "inline"],
        ),
        ([("removal", named("unheard_of"))], ["declared"]),
    ],
)
def test_the_last_change_counts(ask, changes, left):
    built = ask(*(change(kind, **tool) for kind, tool in changes), tools=[DECLARED])

    assert names(built) == left


def test_a_tool_of_a_server_is_not_the_client_s_of_the_same_name(ask):
    of_server = {"type": "mcp_tool_reference", "server_name": "wiki", "name": "declared"}

    built = ask(change("removal", **of_server), tools=[DECLARED])

    assert names(built) == ["declared"]
    assert notes(built) == [
        ("messages.1.content.0", "dropped", "the tools of an MCP server stay as they are")
    ]


def test_what_is_wrong_with_an_inline_tool_is_told_with_its_path(ask):
    advisor = {"type": "advisor_20260301", "name": "advisor"}

    with pytest.raises(BadRequest) as caught:
        ask(change("addition", **defined(advisor)))

    assert caught.value.path == "messages.1.content.0.tool.definition.type"


def test_an_inline_toolset_connects_its_server():
    toolset = {
        "type": "mcp_toolset",
        "mcp_server_name": "wiki",
        "default_config": {"enabled": False},
    }
    asked = {
        "model": "m",
        "max_tokens": 99,
        "messages": [USER, change("addition", **defined(toolset))],
        "mcp_servers": [SERVER],
    }

    built = map_anthropic_to_openai_response(asked, target=TARGET)

    assert [(tool["type"], tool["allowed_tools"]) for tool in built.body["tools"]] == [("mcp", [])]
