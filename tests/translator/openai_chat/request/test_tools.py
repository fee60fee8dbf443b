"""Tools and tool choice as functions."""

import pytest

from tests.fakes.anthropic_requests import WEATHER, make_request, system, text, user
from tests.for_each import for_each
from tests.translator.openai_chat.requests import body, build, fates
from translator.errors import BadRequest
from translator.request.tool_support import SERVER_TOOLS

LONG = "mcp__" + "server_" * 12 + "get_weather"
SEARCH = {"type": "web_search_20250305", "name": "web_search"}


def with_verdict(verdict):
    return [prefix for prefix, tool in SERVER_TOOLS.items() if tool.fate == verdict]


def functions(*tools, profile="generic", **fields):
    return [
        tool["function"]
        for tool in body(make_request(tools=list(tools), **fields), profile)["tools"]
    ]


def test_a_tool_is_a_function():
    assert functions(WEATHER) == [
        {
            "name": "get_weather",
            "description": "The weather in a city.",
            "parameters": WEATHER["input_schema"],
        }
    ]


def test_a_tool_without_a_description_has_none():
    (function,) = functions({"name": "now", "input_schema": {"type": "object"}})

    assert set(function) == {"name", "parameters"}
    assert function["parameters"]["properties"] == {}


@for_each(
    ("kind", "name"),
    [
        ("bash_20250124", "bash"),
        ("text_editor_20250728", "str_replace_based_edit_tool"),
        ("memory_20250818", "memory"),
    ],
)
def test_anthropics_client_tools_become_functions_with_built_in_schemas(kind, name):
    (function,) = functions({"type": kind, "name": name})

    assert function["name"] == name
    assert function["parameters"]["properties"]


def test_strict_is_always_sent_to_servers_that_support_it():
    optional = {
        **WEATHER,
        "strict": True,
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    }

    (loose,) = functions(WEATHER, profile="openai")
    built = build(make_request(tools=[optional]), "openai")

    assert loose["strict"] is False
    assert built.body["tools"][0]["function"]["strict"] is True
    assert built.response_context.optional_properties == {"get_weather": frozenset({"city"})}


def test_a_strict_tool_whose_properties_are_all_required_gets_no_nulls_back():
    built = build(make_request(tools=[{**WEATHER, "strict": True}]), "openai")

    assert built.response_context.optional_properties == {}


def test_a_schema_that_cannot_be_strict_is_sent_non_strict_with_a_note():
    free = {
        "name": "f",
        "strict": True,
        "input_schema": {"type": "object", "additionalProperties": {"type": "string"}},
    }

    assert functions(free, profile="openai")[0]["strict"] is False
    assert fates(make_request(tools=[free]), "openai") == {"tools.0.strict": "dropped"}


def test_a_long_name_is_shortened_everywhere_and_restored():
    built = build(
        make_request(tools=[{**WEATHER, "name": LONG}], tool_choice={"type": "tool", "name": LONG})
    )

    short = built.body["tools"][0]["function"]["name"]
    assert len(short) == 64
    assert built.body["tool_choice"]["function"]["name"] == short
    assert built.response_context.tool_names == {short: LONG}


@for_each(
    ("choice", "profile", "chosen"),
    [
        ({"type": "auto"}, "generic", "auto"),
        ({"type": "none"}, "generic", "none"),
        ({"type": "any"}, "openai", "required"),
        ({"type": "any"}, "generic", "auto"),
        (
            {"type": "tool", "name": "get_weather"},
            "generic",
            {"type": "function", "function": {"name": "get_weather"}},
        ),
    ],
)
def test_tool_choice(choice, profile, chosen):
    assert body(make_request(tools=[WEATHER], tool_choice=choice), profile)["tool_choice"] == chosen


def test_any_that_becomes_auto_is_noted():
    assert fates(make_request(tools=[WEATHER], tool_choice={"type": "any"})) == {
        "tool_choice": "clamped"
    }


def test_parallel_calls_are_forbidden_where_the_server_knows_how():
    request = make_request(
        tools=[WEATHER], tool_choice={"type": "auto", "disable_parallel_tool_use": True}
    )

    assert body(request, "openai")["parallel_tool_calls"] is False
    assert "parallel_tool_calls" not in body(request)
    assert "parallel_tool_calls" not in body(make_request(tools=[WEATHER]), "openai")


def test_tool_choice_is_omitted_without_tools():
    request = make_request(
        tool_choice={"type": "auto", "disable_parallel_tool_use": True}, tools=[]
    )

    assert {"tools", "tool_choice", "parallel_tool_calls"}.isdisjoint(body(request, "openai"))


@for_each("prefix", with_verdict("dropped"))
def test_optional_server_tools_are_dropped_with_a_note(prefix):
    request = make_request(tools=[{"type": f"{prefix}_20250305", "name": "x"}, WEATHER])

    assert [tool["function"]["name"] for tool in body(request)["tools"]] == ["get_weather"]
    assert fates(request) == {"tools.0": "dropped"}


@for_each("choice", [{"type": "any"}, {"type": "tool", "name": "web_search"}])
def test_a_demanded_server_tool_is_refused(choice):
    with pytest.raises(BadRequest, match=r"^tool_choice: "):
        build(make_request(tools=[SEARCH], tool_choice=choice))


def test_a_dropped_tool_cannot_be_chosen_beside_others():
    with pytest.raises(BadRequest, match=r"^tool_choice\.name: 'web_search'"):
        build(
            make_request(
                tools=[SEARCH, WEATHER], tool_choice={"type": "tool", "name": "web_search"}
            )
        )


@for_each("prefix", with_verdict("refused"))
def test_tools_that_would_change_the_answer_are_refused(prefix):
    with pytest.raises(BadRequest, match=r"^tools\.0\.type: "):
        build(make_request(tools=[{"type": f"{prefix}_20250305", "name": "x"}]))


def test_an_unknown_tool_type_is_refused():
    with pytest.raises(BadRequest, match=r"^tools\.0\.type: 'hologram_1'"):
        build(make_request(tools=[{"type": "hologram_1", "name": "x"}]))


def test_a_tool_that_only_programs_may_call_is_refused():
    with pytest.raises(BadRequest, match=r"^tools\.0\.allowed_callers"):
        build(make_request(tools=[{**WEATHER, "allowed_callers": ["code_execution_20260120"]}]))
    assert functions({**WEATHER, "allowed_callers": ["direct", "code_execution_20260120"]})


def test_more_tools_than_the_server_takes_are_refused():
    tools = [{**WEATHER, "name": f"tool_{number}"} for number in range(3)]

    with pytest.raises(BadRequest, match=r"^tools: 3 tools; this upstream takes 2"):
        build(make_request(tools=tools), max_tools=2)


def test_tools_taken_away_in_mid_conversation_are_gone_until_they_return():
    def change(kind):
        return system({"type": kind, "tool": {"type": "tool_reference", "name": "get_time"}})

    time = {**WEATHER, "name": "get_time"}
    history = [user("Hi."), change("tool_removal"), system(text("Hm.")), user("So?")]

    removed = body(make_request(*history, tools=[WEATHER, time]))
    returned = body(make_request(*history, change("tool_addition"), tools=[WEATHER, time]))

    assert [tool["function"]["name"] for tool in removed["tools"]] == ["get_weather"]
    assert len(returned["tools"]) == 2
