"""Offer Anthropic's client tools as functions, and handle unsupported server tools.

Anthropic itself defines the schemas of some client tools (bash, text editor, memory), so requests
to other upstreams must contain these schemas. Source: Anthropic documentation, "Tool use".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from translator.capabilities import Profile
from translator.errors import BadRequest
from translator.stream.tool_arguments import compact_json

from .builder import RequestBuilder
from .json_schema import normalize

SPECIAL_FIELDS: Final = frozenset({"allowed_callers", "defer_loading", "type"})
"""Tool fields that require special handling; most tools have none of these fields."""


class FunctionTool(NamedTuple):
    """A function tool for either OpenAI API; name and schema are the client's, unchanged."""

    name: str
    description: str
    parameters: dict[str, Any]


_function: Final = tuple.__new__  # creates a named tuple without its slower Python constructor


@dataclass(frozen=True, slots=True)
class ServerTool:
    """How to handle a server tool that the upstream does not support, and why."""

    fate: Literal["dropped", "refused"]
    reason: str


def custom_function(tool: dict[str, Any]) -> FunctionTool:
    """Return the function for a custom tool, one that the client defines itself."""
    description = tool.get("description") or ""
    if "input_examples" in tool:
        description = _with_examples(description, tool)
    schema = tool.get("input_schema") or {"type": "object", "properties": {}}
    return _function(FunctionTool, (tool["name"], description, schema))


def client_tool_function(tool: dict[str, Any], profile: Profile) -> FunctionTool | None:
    """Return the function for one of Anthropic's client tools; None if it is not supported."""
    kind = tool.get("type") or "custom"
    if kind == "custom":
        return custom_function(tool)
    for prefix, client_tool in CLIENT_TOOLS.items():
        if kind.startswith(prefix):
            if prefix in REQUIRED_CAPABILITY and not getattr(profile, REQUIRED_CAPABILITY[prefix]):
                return None
            return FunctionTool(
                name=tool.get("name") or client_tool.name,
                description=_with_examples(client_tool.description + _screen_size(tool), tool),
                parameters=_parameters(kind, client_tool),
            )
    return None


def find_server_tool(kind: str) -> ServerTool | None:
    """Return the entry for a server tool's type; None if the type is unknown."""
    return next((tool for prefix, tool in SERVER_TOOLS.items() if kind.startswith(prefix)), None)


def drop_tool(kind: str, path: str, builder: RequestBuilder) -> None:
    """Drop a tool with a note, or raise BadRequest if the request depends on the tool.

    ``path`` locates the tool in the request.
    """
    tool = find_server_tool(kind)
    if tool is not None and tool.fate == "dropped":
        builder.add_note(path, "dropped", tool.reason)
        return
    reason = tool.reason if tool is not None else "not supported by this upstream"
    raise BadRequest(f"{path}.type", f"{kind!r}: {reason}")


def accepted_parameters(
    function: FunctionTool, path: str, builder: RequestBuilder
) -> dict[str, Any]:
    """Return a function's schema in a form that OpenAI accepts; ``path`` is that of the tool."""
    repairs: dict[str, None] = {}
    schema = normalize(function.parameters, repairs)
    if repairs:
        reason = f"changed for the upstream: {', '.join(repairs)}"
        builder.add_note(f"{path}.input_schema", "repaired", reason)
    return schema


def check_tool_count(count: int, builder: RequestBuilder) -> None:
    """Raise BadRequest for more tools than the upstream's configured limit."""
    limit = builder.profile.max_tools
    if limit and count > limit:
        raise BadRequest("tools", f"{count} tools; this upstream takes {limit}")


def _with_examples(description: str, tool: dict[str, Any]) -> str:
    examples = tool.get("input_examples")
    if not examples:
        return description
    lines = "\n".join(compact_json(example) for example in examples)
    return f"{description}\n\nExample inputs:\n{lines}".lstrip()


def tool_choice_mode(choice: Mapping[str, Any], builder: RequestBuilder) -> str:
    """Return OpenAI's ``auto``, ``none`` or ``required``; "" for a choice that names a tool."""
    match choice["type"]:
        case "auto":
            return "auto"
        case "none":
            return "none"  # the tools are still sent, because the history contains calls of them
        case "any" if builder.profile.required_tool_choice:
            return "required"
        case "any":
            builder.add_note(
                "tool_choice", "clamped", "this upstream does not accept 'required': sent as auto"
            )
            return "auto"
    return ""


def _screen_size(tool: dict[str, Any]) -> str:
    """Return the screen size, in pixels, to which a computer tool's coordinates refer."""
    width, height = tool.get("display_width_px"), tool.get("display_height_px")
    return f" The screen is {width} x {height} pixels." if width and height else ""


def _parameters(kind: str, client_tool: FunctionTool) -> dict[str, Any]:
    if kind not in WITH_UNDO:
        return client_tool.parameters
    properties = client_tool.parameters["properties"]
    command = properties["command"]
    command = command | {"enum": [*command["enum"], "undo_edit"]}
    return client_tool.parameters | {"properties": properties | {"command": command}}


def _string(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


_VIEW_RANGE: Final = {
    "type": "array",
    "items": {"type": "integer"},
    "description": "With view: first and last line, counted from 1; -1 is the end of the file",
}

WITH_UNDO: Final = frozenset({"text_editor_20241022", "text_editor_20250124"})
"""Types of the text editor tool with an undo command."""

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
    "computer_20": FunctionTool(  # prefix of the computer tool's dated types, not of toolsets
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
"""Functions by prefix of the tool's type, because types end in a date."""

REQUIRED_CAPABILITY: Final[Mapping[str, str]] = {"computer_20": "computer"}
"""The profile capability that a client tool requires; without it, a request with the tool is
rejected."""

_SCREEN_REASON: Final = "screen coordinates differ between providers"

SERVER_TOOLS: Final[Mapping[str, ServerTool]] = {
    "advisor": ServerTool("refused", "the upstream has no advisor"),
    "browser_toolset": ServerTool("refused", _SCREEN_REASON),
    "code_execution": ServerTool("refused", "the upstream has no code execution"),
    "computer": ServerTool("refused", _SCREEN_REASON),
    "mcp_toolset": ServerTool("refused", "the upstream does not connect to MCP servers"),
    "tool_search_tool": ServerTool("dropped", "all tools are sent at once"),
    "web_fetch": ServerTool("dropped", "the upstream does not fetch pages"),
    "web_search": ServerTool("dropped", "the upstream has no web search"),
}
"""Server tools that the upstream does not support. Dropped: the model can respond without the tool.
Refused: BadRequest, because without the tool the response would be different."""
