"""Tools that the client runs itself, as functions; and what becomes of those a server would run.

Anthropic defines the schemas of a few client tools (bash, text editor, memory) on its own side, so
an upstream of another make must be told them. Source: Anthropic documentation, "Tool use".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from .arguments import compact_json
from .draft import Draft
from .errors import BadRequest
from .profiles import Profile

RARE: Final = frozenset({"allowed_callers", "defer_loading", "type"})
"""Fields of a tool that call for a second look; most tools have none of them."""


class FunctionTool(NamedTuple):
    """A tool as every OpenAI dialect knows one; names and schema are the client's, unclamped."""

    name: str
    description: str
    parameters: dict[str, Any]


_function: Final = tuple.__new__  # a named tuple without its Python constructor


@dataclass(frozen=True, slots=True)
class ServerTool:
    """What becomes of a server tool that the upstream does not have."""

    verdict: Literal["dropped", "refused"]
    reason: str


def custom_function(tool: dict[str, Any]) -> FunctionTool:
    """The function that a custom tool is."""
    description = tool.get("description") or ""
    if "input_examples" in tool:
        description = _described(description, tool)
    schema = tool.get("input_schema") or {"type": "object", "properties": {}}
    return _function(FunctionTool, (tool["name"], description, schema))


def function_of(tool: dict[str, Any], profile: Profile) -> FunctionTool | None:
    """The function that stands for a client tool; None when it is not told to this upstream."""
    kind = tool.get("type") or "custom"
    if kind == "custom":
        return custom_function(tool)
    for prefix, known in CLIENT_TOOLS.items():
        if kind.startswith(prefix):
            if prefix in CAPABILITY and not getattr(profile, CAPABILITY[prefix]):
                return None
            return FunctionTool(
                name=tool.get("name") or known.name,
                description=_described(known.description + _display(tool), tool),
                parameters=_parameters(kind, known),
            )
    return None


def server_tool_of(kind: str) -> ServerTool | None:
    """The verdict on a server tool's type; None when it is none that we know."""
    return next((tool for prefix, tool in SERVER_TOOLS.items() if kind.startswith(prefix)), None)


def go_without(kind: str, path: str, draft: Draft) -> None:
    """Note that a tool is not told to this upstream. Raises BadRequest where it must not be missed.

    ``path``: the tool's in the request.
    """
    tool = server_tool_of(kind)
    if tool is not None and tool.verdict == "dropped":
        draft.note(path, "dropped", tool.reason)
        return
    reason = tool.reason if tool is not None else "not supported by this upstream"
    raise BadRequest(f"{path}.type", f"{kind!r}: {reason}")


def _described(description: str, tool: dict[str, Any]) -> str:
    examples = tool.get("input_examples")
    if not examples:
        return description
    lines = "\n".join(compact_json(example) for example in examples)
    return f"{description}\n\nExample inputs:\n{lines}".lstrip()


def _display(tool: dict[str, Any]) -> str:
    """The size of the screen that a computer tool's coordinates count in."""
    width, height = tool.get("display_width_px"), tool.get("display_height_px")
    return f" The screen is {width} x {height} pixels." if width and height else ""


def _parameters(kind: str, known: FunctionTool) -> dict[str, Any]:
    if kind not in WITH_UNDO:
        return known.parameters
    properties = known.parameters["properties"]
    command = properties["command"]
    command = command | {"enum": [*command["enum"], "undo_edit"]}
    return known.parameters | {"properties": properties | {"command": command}}


def _string(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


_VIEW_RANGE: Final = {
    "type": "array",
    "items": {"type": "integer"},
    "description": "With view: first and last line, counted from 1; -1 is the end of the file",
}

WITH_UNDO: Final = frozenset({"text_editor_20241022", "text_editor_20250124"})
"""Versions of the editor that can take the last edit back."""

_POINT: Final = {"type": "array", "items": {"type": "integer"}}

_ACTIONS: Final = [
    "key",
    "type",
    "mouse_move",
    "left_click",
    "left_click_drag",
    "right_click",
    "middle_click",
    "double_click",
    "triple_click",
    "screenshot",
    "cursor_position",
    "left_mouse_down",
    "left_mouse_up",
    "scroll",
    "hold_key",
    "wait",
    "zoom",
]

CLIENT_TOOLS: Final[Mapping[str, FunctionTool]] = {
    "computer_20": FunctionTool(  # a dated version; the toolsets are another thing
        name="computer",
        description="Use a computer: look at its screen, move its mouse, press its keys.",
        parameters={
            "type": "object",
            "properties": {
                "action": {"type": "string", "enum": _ACTIONS},
                "coordinate": _POINT | {"description": "x and y in pixels from the top left"},
                "start_coordinate": _POINT | {"description": "With left_click_drag: its start"},
                "text": _string("With type: the text; with key, hold_key: the keys, as ctrl+s"),
                "duration": {"type": "number", "description": "With wait, hold_key: seconds"},
                "scroll_direction": {"type": "string", "enum": ["up", "down", "left", "right"]},
                "scroll_amount": {"type": "integer", "description": "With scroll: clicks"},
                "region": _POINT | {"description": "With zoom: x0, y0, x1, y1"},
            },
            "required": ["action"],
        },
    ),
    "bash_": FunctionTool(
        name="bash",
        description="Run a command in a bash shell that keeps its state between calls.",
        parameters={
            "type": "object",
            "properties": {
                "command": _string("The command to run; needed unless restart is true"),
                "restart": {"type": "boolean", "description": "Restart the shell"},
            },
        },
    ),
    "text_editor_": FunctionTool(
        name="str_replace_based_edit_tool",
        description="View, create and edit text files.",
        parameters={
            "type": "object",
            "properties": {
                "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert"]},
                "path": _string("Path of the file or directory"),
                "view_range": _VIEW_RANGE,
                "file_text": _string("With create: the whole text of the file"),
                "old_str": _string("With str_replace: the text to replace, found exactly once"),
                "new_str": _string("With str_replace: what replaces it"),
                "insert_line": {
                    "type": "integer",
                    "description": "With insert: the line after which the text goes; 0 is the top",
                },
                "insert_text": _string("With insert: the text"),
            },
            "required": ["command", "path"],
        },
    ),
    "memory_": FunctionTool(
        name="memory",
        description="Keep notes between conversations, as files below /memories.",
        parameters={
            "type": "object",
            "properties": {
                "command": {
                    "type": "string",
                    "enum": ["view", "create", "str_replace", "insert", "delete", "rename"],
                },
                "path": _string("Path below /memories; with every command but rename"),
                "view_range": _VIEW_RANGE,
                "file_text": _string("With create: the whole text of the file"),
                "old_str": _string("With str_replace: the text to replace"),
                "new_str": _string("With str_replace: what replaces it"),
                "insert_line": {"type": "integer", "description": "With insert: after which line"},
                "insert_text": _string("With insert: the text"),
                "old_path": _string("With rename: where the file is"),
                "new_path": _string("With rename: where it goes"),
            },
            "required": ["command"],
        },
    ),
}
"""By the start of the tool's type, which ends in a date."""

CAPABILITY: Final[Mapping[str, str]] = {"computer_20": "computer"}
"""The capability without which a client tool is refused."""

_SCREEN: Final = "screen coordinates do not carry over between providers"

SERVER_TOOLS: Final[Mapping[str, ServerTool]] = {
    "advisor": ServerTool("refused", "the upstream has no advisor"),
    "browser_toolset": ServerTool("refused", _SCREEN),
    "code_execution": ServerTool("refused", "the upstream has no code execution"),
    "computer": ServerTool("refused", _SCREEN),
    "mcp_toolset": ServerTool("refused", "the upstream connects to no MCP servers"),
    "tool_search_tool": ServerTool("dropped", "all tools are sent at once"),
    "web_fetch": ServerTool("dropped", "the upstream fetches no pages"),
    "web_search": ServerTool("dropped", "the upstream has no web search"),
}
"""Dropped: the model can answer without it. Refused: without it the client gets something else."""
