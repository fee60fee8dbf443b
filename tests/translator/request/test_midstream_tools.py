"""Tools that system messages add and remove, in both dialects."""

import pytest

from translator.capabilities import PROFILES
from translator.dialect import TranslationTarget
from translator.errors import BadRequest
from translator.translate import map_anthropic_to_openai_chat, map_anthropic_to_openai_response

TARGET = TranslationTarget(model="gpt", profile=PROFILES["openai"])
USER = {"role": "user", "content": "Hello."}
DECLARED = {"name": "declared", "input_schema": {"type": "object", "properties": {}}}
INLINE = {"name": "inline", "input_schema": {"type": "object", "properties": {}}}
SERVER = {"type": "url", "name": "wiki", "url": "https://wiki.test"}
LEFT = "the upstream receives the tools that remain at the end"


def change(kind, **tool):
    return {"role": "system", "content": [{"type": f"tool_{kind}", "tool": tool}]}


def named(name):
    return {"type": "tool_reference", "name": name}


def defined(definition=INLINE):
    return {"type": "tool_definition", "definition": definition}


@pytest.fixture(params=[map_anthropic_to_openai_chat, map_anthropic_to_openai_response])
def translate(request):
    def built(*changes, **fields):
        request_body = {"model": "m", "max_tokens": 99, "messages": [USER, *changes], **fields}
        return request.param(request_body, target=TARGET)

    return built


def names(built):
    return [tool.get("function", tool)["name"] for tool in built.body.get("tools", [])]


def notes(built):
    return [(note.path, note.fate, note.reason) for note in built.notes]


def test_a_tool_that_is_defined_in_mid_conversation_is_offered(translate):
    choice = {"type": "tool", "name": "inline"}

    built = translate(change("addition", **defined()), tools=[DECLARED], tool_choice=choice)

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
def test_the_last_change_of_a_tool_applies(translate, changes, left):
    built = translate(*(change(kind, **tool) for kind, tool in changes), tools=[DECLARED])

    assert names(built) == left


def test_a_tool_of_a_server_is_not_the_client_s_of_the_same_name(translate):
    of_server = {"type": "mcp_tool_reference", "server_name": "wiki", "name": "declared"}

    built = translate(change("removal", **of_server), tools=[DECLARED])

    assert names(built) == ["declared"]
    assert notes(built) == [
        ("messages.1.content.0", "dropped", "tools of an MCP server cannot be changed")
    ]


def test_an_invalid_inline_tool_is_rejected_with_its_path(translate):
    advisor = {"type": "advisor_20260301", "name": "advisor"}

    with pytest.raises(BadRequest) as caught:
        translate(change("addition", **defined(advisor)))

    assert caught.value.path == "messages.1.content.0.tool.definition.type"


def test_an_inline_toolset_connects_its_server():
    toolset = {
        "type": "mcp_toolset",
        "mcp_server_name": "wiki",
        "default_config": {"enabled": False},
    }
    request_body = {
        "model": "m",
        "max_tokens": 99,
        "messages": [USER, change("addition", **defined(toolset))],
        "mcp_servers": [SERVER],
    }

    built = map_anthropic_to_openai_response(request_body, target=TARGET)

    assert [(tool["type"], tool["allowed_tools"]) for tool in built.body["tools"]] == [("mcp", [])]
