from tests.for_each import for_each
from translator.capabilities import PROFILES, profile_with
from translator.request.tool_support import (
    SERVER_TOOLS,
    FunctionTool,
    client_tool_function,
    find_server_tool,
)

COMPUTER = profile_with("generic", {"computer": True})


def test_a_custom_tool_becomes_a_function_tool():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}

    assert client_tool_function(
        {"name": "f", "description": "does", "input_schema": schema}, COMPUTER
    ) == FunctionTool(name="f", description="does", parameters=schema)
    assert client_tool_function({"name": "f", "type": "custom"}, COMPUTER) == FunctionTool(
        name="f", description="", parameters={"type": "object", "properties": {}}
    )


def test_examples_join_the_description():
    examples = [{"a": 1}, {"a": "é"}]

    made = client_tool_function(
        {"name": "f", "description": "does", "input_examples": examples}, COMPUTER
    )
    bare = client_tool_function({"name": "f", "input_examples": examples}, COMPUTER)

    assert made.description == 'does\n\nExample inputs:\n{"a":1}\n{"a":"é"}'
    assert bare.description.startswith("Example inputs:")


@for_each(
    ("kind", "name", "property_"),
    [
        ("bash_20250124", "bash", "command"),
        ("text_editor_20250728", "str_replace_based_edit_tool", "old_str"),
        ("memory_20250818", "memory", "old_path"),
        ("computer_20250124", "computer", "action"),
    ],
)
def test_anthropic_s_client_tools_come_with_their_schema(kind, name, property_):
    made = client_tool_function({"type": kind}, COMPUTER)

    assert (made.name, made.parameters["type"]) == (name, "object")
    assert property_ in made.parameters["properties"]
    assert made.description


def test_the_clients_tool_name_is_preserved():
    tool = {"type": "text_editor_20250124", "name": "str_replace_editor"}

    assert client_tool_function(tool, COMPUTER).name == "str_replace_editor"


@for_each(("kind", "undo"), [("text_editor_20250124", True), ("text_editor_20250429", False)])
def test_only_older_editors_can_undo(kind, undo):
    commands = client_tool_function({"type": kind}, COMPUTER).parameters["properties"]["command"][
        "enum"
    ]

    assert ("undo_edit" in commands) is undo


@for_each("prefix", sorted(SERVER_TOOLS))
def test_a_server_tool_is_no_function_but_has_a_verdict(prefix):
    kind = f"{prefix}_20300101" if prefix != "computer" else "computer_toolset_20260801"

    assert client_tool_function({"type": kind, "name": "x"}, COMPUTER) is None
    assert find_server_tool(kind) is SERVER_TOOLS[prefix]


def test_a_client_tool_has_no_verdict():
    assert find_server_tool("bash_20250124") is None


@for_each("profile", PROFILES.values(), ids=PROFILES)
def test_a_computer_tool_needs_a_capability(profile):
    assert client_tool_function({"type": "computer_20250124", "name": "computer"}, profile) is None


def test_a_computer_tool_description_has_the_screen_size():
    tool = {"type": "computer_20250124", "display_width_px": 800, "display_height_px": 600}

    assert "800 x 600" in client_tool_function(tool, COMPUTER).description
