import pytest

from tests.for_each import for_each
from translator.anthropic.request_validation import TOOL_CHOICE, check_tool, check_tool_names
from translator.anthropic.validators import ValidationFault


@for_each(
    "definition",
    [
        {"name": "f"},
        {"name": "f", "type": None, "description": None, "input_schema": {"type": "object"}},
        {"name": "f", "type": "custom", "strict": True, "input_examples": [{"a": 1}]},
        {"name": "bash", "type": "bash_20250124"},
        {"name": "memory", "type": "memory_20990101"},
        {"name": "web_search", "type": "web_search_20250305", "allowed_domains": ["x.org"]},
        {"type": "mcp_toolset", "mcp_server_name": "s"},
        {"type": "computer_toolset_20260801"},
    ],
)
def test_every_known_tool_type_is_accepted(definition):
    check_tool(definition)


@for_each(
    ("definition", "path"),
    [
        ("f", []),
        ({}, ["name"]),
        ({"name": ""}, ["name"]),
        ({"name": "f", "input_schema": "x"}, ["input_schema"]),
        ({"name": "f", "type": 5}, ["type"]),
        ({"name": "f", "type": "teleport_20300101"}, ["type"]),
        ({"type": "bash_20250124"}, ["name"]),
        ({"type": "mcp_toolset"}, ["mcp_server_name"]),
        (
            {
                "name": "w",
                "type": "web_search_20250305",
                "allowed_domains": ["a"],
                "blocked_domains": ["b"],
            },
            [],
        ),
    ],
)
def test_a_bad_tool_is_rejected_with_its_path(definition, path):
    with pytest.raises(ValidationFault) as caught:
        check_tool(definition)

    assert caught.value.path == path


@for_each(
    ("choice", "good"),
    [
        ({"type": "auto", "disable_parallel_tool_use": True}, True),
        ({"type": "any"}, True),
        ({"type": "none"}, True),
        ({"type": "tool", "name": "f"}, True),
        ({"type": "tool"}, False),
        ({"type": "required"}, False),
        ("auto", False),
    ],
)
def test_tool_choice_is_validated(choice, good):
    if good:
        TOOL_CHOICE(choice)
    else:
        with pytest.raises(ValidationFault):
            TOOL_CHOICE(choice)


USER = {"role": "user", "content": "x"}
ADDITION = {
    "role": "system",
    "content": [{"type": "text", "text": "x"}, {"type": "tool_addition", "tool": {"name": "g"}}],
}
CHOICE = {"type": "tool", "name": "g"}


@for_each(
    "request_",
    [
        {"messages": [USER]},
        {"messages": [USER], "tools": None, "tool_choice": None},
        {"messages": [USER], "tools": [{"name": "f"}, {"name": "g"}], "tool_choice": CHOICE},
        {"messages": [{"role": "system", "content": "x"}, ADDITION], "tool_choice": CHOICE},
        {
            "messages": [USER],
            "tools": [{"type": "mcp_toolset"}, {"type": "mcp_toolset"}],
            "tool_choice": CHOICE,
        },
        {"messages": [USER], "tool_choice": {"type": "any"}},
    ],
)
def test_consistent_tool_names_are_accepted(request_):
    check_tool_names(request_)


@for_each(
    ("request_", "path"),
    [
        ({"messages": [USER], "tools": [{"name": "f"}, {"name": "f"}]}, ["tools", "1", "name"]),
        (
            {
                "messages": [USER, ADDITION],
                "tools": [],
                "tool_choice": {"type": "tool", "name": "h"},
            },
            ["tool_choice", "name"],
        ),
    ],
)
def test_inconsistent_tool_names_are_rejected(request_, path):
    with pytest.raises(ValidationFault) as caught:
        check_tool_names(request_)

    assert caught.value.path == path
