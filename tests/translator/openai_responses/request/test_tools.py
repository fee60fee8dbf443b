"""Tools: functions, the upstream's own tools, rejected tools, tool choice."""

import pytest

from tests.fakes.anthropic_requests import WEATHER, make_request, system, user
from tests.for_each import for_each
from tests.translator.openai_responses.requests import body, build, fates
from translator.errors import BadRequest

from .strict_types import assert_valid

SEARCH = {"type": "web_search_20250305", "name": "web_search"}
CODE = {"type": "code_execution_20250825", "name": "code_execution"}
BASH = {"type": "bash_20250124", "name": "bash"}
WIKI = {"type": "url", "name": "wiki", "url": "https://wiki.example/mcp"}


def tools(*given, profile="openai", **fields):
    overrides = fields.pop("overrides", {})
    sent = body(make_request(tools=list(given), **fields), profile, **overrides)
    assert_valid(sent)
    return sent.get("tools")


def test_a_tool_becomes_a_function_with_explicit_strict():
    assert tools(WEATHER) == [
        {
            "type": "function",
            "name": "get_weather",
            "description": "The weather in a city.",
            "parameters": WEATHER["input_schema"],
            "strict": False,
        }
    ]


def test_a_minimal_tool_is_accepted():
    (tool,) = tools({"name": "now"})

    assert tool["parameters"] == {"type": "object", "properties": {}}
    assert "description" not in tool


def test_no_tools_no_choice_no_parallel_flag():
    sent = body(make_request(tools=[], tool_choice={"type": "auto"}))

    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(sent)


def test_a_name_beyond_64_characters_is_shortened():
    long = WEATHER | {"name": "n" * 80}
    built = build(make_request(tools=[long], tool_choice={"type": "tool", "name": "n" * 80}))

    (name,) = built.response_context.tool_names
    assert built.body["tools"][0]["name"] == built.body["tool_choice"]["name"] == name
    assert built.response_context.tool_names[name] == "n" * 80


@for_each(
    ("kind", "name"),
    [
        ("bash_20250124", "bash"),
        ("text_editor_20250728", "str_replace_based_edit_tool"),
        ("memory_20250818", "memory"),
        ("computer_20250124", "computer"),
    ],
)
def test_client_tools_of_anthropic_are_functions_with_their_schema(kind, name):
    request = make_request(tools=[{"type": kind, "name": name}])
    (tool,) = tools(*request["tools"], overrides={"computer": True})

    assert tool["name"] == name
    assert tool["parameters"]["properties"]
    assert fates(request, computer=True) == {"tools.0.type": "emulated"}


# Strict


def test_a_strict_tool_is_made_strict_and_remembers_what_was_optional():
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
    built = build(
        make_request(
            tools=[{"name": "t", "strict": True, "input_schema": schema | {"required": ["a"]}}]
        )
    )

    assert built.body["tools"][0]["strict"] is True
    assert built.response_context.optional_properties == {"t": frozenset({"b"})}


def test_a_strict_tool_without_optional_properties_needs_no_reversal():
    built = build(make_request(tools=[WEATHER | {"strict": True}]))

    assert built.body["tools"][0]["strict"] is True
    assert built.response_context.optional_properties == {}


@for_each("profile", ["openai", "generic"])
def test_a_schema_that_cannot_be_strict_is_noted(profile):
    free = {
        "name": "t",
        "strict": True,
        "input_schema": {"type": "object", "additionalProperties": True},
    }

    assert body(make_request(tools=[free]), profile)["tools"][0]["strict"] is False
    assert fates(make_request(tools=[free]), profile) == {"tools.0.strict": "dropped"}


# The upstream's own tools


def test_a_search_is_the_upstreams_own():
    full = SEARCH | {
        "allowed_domains": ["a.example"],
        "user_location": {"type": "approximate", "city": "Oslo", "region": None},
        "max_uses": 3,
        "response_inclusion": "x",
    }
    sent = body(make_request(tools=[full]))

    assert sent["tools"] == [
        {
            "type": "web_search",
            "filters": {"allowed_domains": ["a.example"]},
            "user_location": {"type": "approximate", "city": "Oslo"},
        }
    ]
    assert sent["max_tool_calls"] == 3
    assert "web_search_call.action.sources" in sent["include"]
    assert_valid(sent)
    assert fates(make_request(tools=[full])) == {"tools.0.response_inclusion": "ignored"}


@for_each("field", ["many", 2])
def test_a_field_of_another_tool_is_no_limit_of_searches(field):
    """Another tool may have such a field; its value must not count as a limit."""
    sent = body(make_request(tools=[WEATHER | {"max_uses": field}, SEARCH | {"max_uses": None}]))

    assert "max_tool_calls" not in sent


def test_a_search_without_options_has_only_its_type():
    assert tools(SEARCH) == [{"type": "web_search"}]


def test_a_search_that_must_leave_out_sites_is_refused():
    with pytest.raises(BadRequest, match=r"tools\.0\.blocked_domains"):
        build(make_request(tools=[SEARCH | {"blocked_domains": ["a.example"]}]))


def test_a_search_tool_is_dropped_if_unsupported():
    assert tools(SEARCH, WEATHER, profile="generic")[0]["name"] == "get_weather"
    assert fates(make_request(tools=[SEARCH | {"max_uses": 2}, WEATHER]), "generic") == {
        "tools.0": "dropped"
    }


def test_code_execution_becomes_the_code_interpreter():
    sent = body(make_request(tools=[CODE]))

    assert sent["tools"] == [{"type": "code_interpreter", "container": {"type": "auto"}}]
    assert "code_interpreter_call.outputs" in sent["include"]
    assert_valid(sent)


@for_each(
    "kind",
    [
        "code_execution_20250825",
        "advisor_20260301",
        "computer_20250124",
        "computer_toolset_20260801",
        "browser_toolset_20260801",
        "mcp_toolset",
        "hologram_1",
    ],
)
def test_what_would_change_the_answer_is_refused_by_its_path(kind):
    with pytest.raises(BadRequest) as refused:
        build(make_request(tools=[WEATHER, {"type": kind, "name": "x"}]), "generic")

    assert refused.value.path == "tools.1.type"


def test_deferred_tools_are_sent_at_once_and_their_search_is_not_needed():
    search = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
    request = make_request(tools=[search, WEATHER | {"defer_loading": True}])

    assert [tool["name"] for tool in body(request)["tools"]] == ["get_weather"]
    assert fates(request) == {"tools.0": "dropped", "tools": "emulated"}


def test_programmatic_calls_are_refused():
    with pytest.raises(BadRequest, match="allowed_callers"):
        build(make_request(tools=[WEATHER | {"allowed_callers": ["code_execution_20250825"]}]))

    assert tools(WEATHER | {"allowed_callers": ["direct", "x"]})


def test_more_tools_than_the_server_takes_are_refused():
    many = [WEATHER | {"name": f"t{n}"} for n in range(3)]

    with pytest.raises(BadRequest, match="3 tools; this upstream takes 2"):
        build(make_request(tools=many), max_tools=2)


def test_a_tool_that_was_removed_is_gone_until_it_is_added_again():
    def changed(*kinds):
        weather = {"tool": {"name": "get_weather"}}
        changes = [system({"type": kind, **weather}) for kind in kinds]
        history = [user("A"), *changes, system("Be brief.")]
        return body(make_request(*history, tools=[WEATHER, BASH]))["tools"]

    assert [tool["name"] for tool in changed("tool_removal")] == ["bash"]
    assert len(changed("tool_removal", "tool_addition")) == 2


# MCP


def test_an_mcp_server_is_the_upstreams_to_call():
    assert tools(mcp_servers=[WIKI | {"authorization_token": "t"}]) == [
        {
            "type": "mcp",
            "server_label": "wiki",
            "server_url": "https://wiki.example/mcp",
            "require_approval": "never",
            "authorization": "t",
        }
    ]


@for_each(
    ("server", "toolset", "allowed"),
    [
        ({"tool_configuration": {"allowed_tools": ["a"]}}, None, ["a"]),
        ({"tool_configuration": {"enabled": True}}, {}, None),
        (
            {},
            {"default_config": {"enabled": False}, "configs": {"a": {"enabled": True}, "b": {}}},
            ["a"],
        ),
        ({}, {"default_config": {"enabled": True}}, None),
    ],
)
def test_only_the_tools_that_are_enabled_may_be_called(server, toolset, allowed):
    given = (
        [] if toolset is None else [{"type": "mcp_toolset", "mcp_server_name": "wiki", **toolset}]
    )

    (tool,) = tools(*given, mcp_servers=[WIKI | server])

    assert tool.get("allowed_tools") == allowed


def test_a_server_that_is_switched_off_is_not_named():
    off = WIKI | {"tool_configuration": {"enabled": False}}

    assert tools(mcp_servers=[off]) is None


def test_mcp_is_rejected_without_upstream_support():
    with pytest.raises(BadRequest) as refused:
        build(make_request(mcp_servers=[WIKI]), "generic")

    assert refused.value.path == "mcp_servers"


def test_a_toolset_needs_its_server():
    with pytest.raises(BadRequest, match="mcp_server_name"):
        build(make_request(tools=[{"type": "mcp_toolset", "mcp_server_name": "wiki"}]))


# Choice


@for_each(
    ("choice", "sent"),
    [
        (None, None),
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "get_weather"}, {"type": "function", "name": "get_weather"}),
        (
            {"type": "tool", "name": "web_search"},
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]},
        ),
    ],
)
def test_choices(choice, sent):
    made = body(make_request(tools=[WEATHER, SEARCH], tool_choice=choice))

    assert made.get("tool_choice") == sent
    assert_valid(made)


def test_any_becomes_auto_where_required_is_unknown():
    request = make_request(tools=[WEATHER], tool_choice={"type": "any"})

    assert body(request, "generic")["tool_choice"] == "auto"
    assert fates(request, "generic") == {"tool_choice": "clamped"}


@for_each(
    ("given", "choice", "path"),
    [
        ([SEARCH], {"type": "tool", "name": "web_search"}, "tool_choice"),
        ([SEARCH], {"type": "any"}, "tool_choice"),
        ([SEARCH, WEATHER], {"type": "tool", "name": "web_search"}, "tool_choice.name"),
    ],
)
def test_a_choice_of_what_is_not_there_is_refused(given, choice, path):
    with pytest.raises(BadRequest) as refused:
        build(make_request(tools=given, tool_choice=choice), "generic")

    assert refused.value.path == path


def test_parallel_calls_are_allowed_unless_forbidden():
    forbidden = {"type": "auto", "disable_parallel_tool_use": True}

    assert body(make_request(tools=[WEATHER]))["parallel_tool_calls"] is True
    assert (
        body(make_request(tools=[WEATHER], tool_choice=forbidden))["parallel_tool_calls"] is False
    )
    assert "parallel_tool_calls" not in body(make_request(tools=[WEATHER]), "generic")
    assert build(
        make_request(tools=[WEATHER], tool_choice=forbidden)
    ).response_context.single_tool_call
