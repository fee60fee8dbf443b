import pytest

from translator.client_tools import SERVER_TOOLS, FunctionTool, function_of, server_tool_of
from translator.profiles import PROFILES, profile_with

COMPUTER = profile_with("generic", {"computer": True})


def test_a_custom_tool_is_the_function_that_it_describes():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}

    assert function_of(
        {"name": "f", "description": "does", "input_schema": schema}, COMPUTER
    ) == FunctionTool(name="f", description="does", parameters=schema)
    assert function_of({"name": "f", "type": "custom"}, COMPUTER) == FunctionTool(
        name="f", description="", parameters={"type": "object", "properties": {}}
    )


def test_examples_join_the_description():
    examples = [{"a": 1}, {"a": "é"}]

    made = function_of({"name": "f", "description": "does", "input_examples": examples}, COMPUTER)
    bare = function_of({"name": "f", "input_examples": examples}, COMPUTER)

    assert made.description == 'does\n\nExample inputs:\n{"a":1}\n{"a":"é"}'
    assert bare.description.startswith("Example inputs:")


@pytest.mark.parametrize(
    ("kind", "name", "property_"),
    [
        ("bash_20250124", "bash", "command"),
        ("text_editor_20250728", "str_replace_based_edit_tool", "old_str"),
        ("memory_20250818", "memory", "old_path"),
        ("computer_20250124", "computer", "action"),
    ],
)
def test_anthropic_s_client_tools_come_with_their_schema(kind, name, property_):
    made = function_of({"type": kind}, COMPUTER)

    assert (made.name, made.parameters["type"]) == (name, "object")
    assert property_ in made.parameters["properties"]
    assert made.description


def test_the_name_that_the_client_gave_is_kept():
    tool = {"type": "text_editor_20250124", "name": "str_replace_editor"}

    assert function_of(tool, COMPUTER).name == "str_replace_editor"


@pytest.mark.parametrize(
    ("kind", "undo"), [("text_editor_20250124", True), ("text_editor_20250429", False)]
)
def test_only_older_editors_can_undo(kind, undo):
    commands = function_of({"type": kind}, COMPUTER).parameters["properties"]["command"]["enum"]

    assert ("undo_edit" in commands) is undo


@pytest.mark.parametrize("prefix", sorted(SERVER_TOOLS))
def test_a_server_tool_is_no_function_but_has_a_verdict(prefix):
    kind = f"{prefix}_20300101" if prefix != "computer" else "computer_toolset_20260801"

    assert function_of({"type": kind, "name": "x"}, COMPUTER) is None
    assert server_tool_of(kind) is SERVER_TOOLS[prefix]


def test_a_client_tool_has_no_verdict():
    assert server_tool_of("bash_20250124") is None


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_a_computer_is_told_to_no_upstream_that_nobody_said_it_of(profile):
    assert function_of({"type": "computer_20250124", "name": "computer"}, profile) is None


def test_a_computer_tells_the_size_of_its_screen():
    tool = {"type": "computer_20250124", "display_width_px": 800, "display_height_px": 600}

    assert "800 x 600" in function_of(tool, COMPUTER).description
