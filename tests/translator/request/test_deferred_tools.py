"""Deferred tools are sent only after the history has loaded them."""

from tests.fakes.anthropic_requests import assistant, call, make_request, result, system, text, user
from tests.for_each import for_each
from translator import openai_chat, openai_responses
from translator.capabilities import PROFILES
from translator.dialect import TranslationTarget

DIALECTS = for_each("dialect", [openai_chat.DIALECT, openai_responses.DIALECT])
SEARCH = {"name": "ToolSearch", "input_schema": {"type": "object"}}
DEFERRED = [
    {"name": f"mcp__srv__{n}", "input_schema": {"type": "object"}, "defer_loading": True}
    for n in range(5)
]
PLACEHOLDER = {"name": "DeferredToolPlaceholder", "input_schema": {}, "defer_loading": True}
FOUND = {"type": "tool_reference", "tool_name": "mcp__srv__3"}
ASK = call("t1", "ToolSearch", query="x")


def sent(*history, dialect=openai_chat.DIALECT, tools=(SEARCH, *DEFERRED), **fields):
    """Return the names of the tools in the body, without a common prefix."""
    request = make_request(*history, tools=list(tools), **fields)
    made = dialect.build_request(request, TranslationTarget(profile=PROFILES["openai"]))
    functions = [tool.get("function", tool) for tool in made.body.get("tools", ())]
    return [tool["name"].removeprefix("mcp__srv__") for tool in functions]


@DIALECTS
@for_each(
    ("history", "loaded"),
    [
        ([user("a")], []),
        ([user("a"), assistant(ASK), user(result(FOUND, call_id="t1"))], ["3"]),
        ([user("a"), assistant(ASK), user(result(text("None."), FOUND, call_id="t1"))], ["3"]),
        ([user("a"), assistant(call("t1", "mcp__srv__2")), user(result("ok", call_id="t1"))], ["2"]),
        ([user("a"), assistant(call("t1", "tool_search")),
          user(result("Found: `mcp__srv__1`, mcp__srv__4.", call_id="t1"))], ["1", "4"]),
        ([user("a"), assistant(ASK), user(result(text('["mcp__srv__0"]'), call_id="t1"))], ["0"]),
        # The result of another tool, and a user who names a tool, load nothing.
        ([user("mcp__srv__1"), assistant(call("t1", "Read")),
          user(result("mcp__srv__1", call_id="t1"))], []),
        ([user("a"), assistant({
            "type": "tool_search_tool_result", "tool_use_id": "s1",
            "content": {"type": "tool_search_tool_search_result", "tool_references": [FOUND]},
        }), user("b")], ["3"]),
        ([user("a"), system({"type": "tool_addition", "tool": {
            "type": "tool_reference", "name": "mcp__srv__4"}}), user("b")], ["4"]),
    ],
)  # fmt: skip
def test_only_loaded_tools_are_sent(history, loaded, dialect):
    assert sent(*history, dialect=dialect) == ["ToolSearch", *loaded]


@DIALECTS
def test_a_required_tool_is_sent(dialect):
    choice = {"type": "tool", "name": "mcp__srv__1"}

    assert sent(user("a"), dialect=dialect, tool_choice=choice) == ["ToolSearch", "1"]


@DIALECTS
def test_without_a_search_that_can_run_all_tools_are_sent(dialect):
    server = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}

    tools = (server, PLACEHOLDER, *DEFERRED)
    assert sent(user("a"), dialect=dialect, tools=tools) == ["0", "1", "2", "3", "4"]


@DIALECTS
@for_each("placeholder", [PLACEHOLDER, {**PLACEHOLDER, "defer_loading": False}])
def test_the_placeholder_of_claude_code_is_never_sent(placeholder, dialect):
    tools = (SEARCH, placeholder)
    called = assistant(call("t1", "DeferredToolPlaceholder"))

    assert sent(user("a"), dialect=dialect, tools=tools) == ["ToolSearch"]
    history = [user("a"), called, user(result("no", call_id="t1"))]
    assert sent(*history, dialect=dialect, tools=tools) == ["ToolSearch"]


@DIALECTS
def test_the_number_of_tools_that_wait_is_noted(dialect):
    request = make_request(tools=[SEARCH, *DEFERRED])

    made = dialect.build_request(request, TranslationTarget(profile=PROFILES["openai"]))

    assert [(note.path, note.fate, note.reason) for note in made.notes] == [
        ("tools", "emulated", "5 deferred tools are not loaded yet")
    ]
