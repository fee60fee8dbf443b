"""Offer Anthropic's client tools as functions, and handle unsupported server tools.

Anthropic itself defines the schemas of some client tools (bash, text editor, memory), so requests
to other upstreams must contain these schemas. Source: Anthropic documentation, "Tool use".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from translator.capabilities import Profile
from translator.errors import BadRequest
from translator.stream.tool_arguments import compact_json

from .builder import RequestBuilder
from .id_mapping import upstream_name
from .json_schema import normalize, to_strict

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
            description, parameters = client_tool.description, client_tool.parameters
            width, height = tool.get("display_width_px"), tool.get("display_height_px")
            if width and height:  # of the screen to which a computer tool's coordinates refer
                description += f" The screen is {width} x {height} pixels."
            if kind in WITH_UNDO:
                properties = parameters["properties"]
                command = {**properties["command"]}
                command["enum"] = [*command["enum"], "undo_edit"]
                parameters = parameters | {"properties": properties | {"command": command}}
            name = tool.get("name") or client_tool.name
            return FunctionTool(name, _with_examples(description, tool), parameters)
    return None


def find_server_tool(kind: str) -> ServerTool | None:
    """Return the entry for a server tool's type; None if the type is unknown."""
    return next((tool for prefix, tool in SERVER_TOOLS.items() if kind.startswith(prefix)), None)


def function_definition(
    function: FunctionTool,
    tool: dict[str, Any],
    path: str,
    builder: RequestBuilder,
    not_strict: str,
) -> dict[str, Any]:
    """Return a function as OpenAI's APIs define it; ``tool`` is the client's, at ``path``."""
    name, profile = upstream_name(function.name), builder.profile
    if name != function.name:
        builder.tool_names[name] = function.name
        builder.add_note(f"{path}.name", "renamed", f"the upstream receives this tool as {name!r}")
    definition: dict[str, Any] = {"name": name}
    if function.description:
        definition["description"] = function.description
    repairs: dict[str, None] = {}
    definition["parameters"] = normalize(function.parameters, repairs)
    if repairs:
        reason = f"changed for the upstream: {', '.join(repairs)}"
        builder.add_note(f"{path}.input_schema", "repaired", reason)
    # Without this field, a server may make optional properties required.
    definition["strict"] = False
    if tool.get("strict"):
        strict_schema = to_strict(function.parameters) if profile.strict_schemas else None
        if strict_schema is None:
            builder.add_note(f"{path}.strict", "dropped", not_strict)
            return definition
        definition |= {"parameters": strict_schema.schema, "strict": True}
        if strict_schema.optional:
            builder.optional_properties[function.name] = strict_schema.optional
    return definition


NOT_STRICT: Final = "the schema has no strict form here"


def offered_function(
    tool: dict[str, Any], path: str, builder: RequestBuilder, not_strict: str = NOT_STRICT
) -> dict[str, Any] | None:
    """Return the definition of the function for a tool; None if the tool is dropped.

    ``not_strict`` is the note for a schema that OpenAI's strict form cannot express.
    Raises BadRequest if the request depends on a tool that no function can stand for.
    """
    if SPECIAL_FIELDS.isdisjoint(tool):  # nearly every tool is like this
        return function_definition(custom_function(tool), tool, path, builder, not_strict)
    kind = tool.get("type") or "custom"
    function = client_tool_function(tool, builder.profile)
    if function is None:
        server_tool = find_server_tool(kind)
        if server_tool is not None and server_tool.fate == "dropped":
            builder.add_note(path, "dropped", server_tool.reason)
            return None
        reason = server_tool.reason if server_tool is not None else "not supported by this upstream"
        raise BadRequest(f"{path}.type", f"{kind!r}: {reason}")
    callers = tool.get("allowed_callers")
    if callers and "direct" not in callers:
        raise BadRequest(f"{path}.allowed_callers", "only direct calls are possible here")
    if kind != "custom":
        reason = f"{kind} is sent as a function with its schema"
        builder.add_note(f"{path}.type", "emulated", reason)
    return function_definition(function, tool, path, builder, not_strict)


def tool_fields(
    tools: Mapping[str, dict[str, Any]],
    named_choice: Callable[[dict[str, Any]], dict[str, Any]],
    builder: RequestBuilder,
) -> dict[str, Any]:
    """Return ``tools`` and ``tool_choice``; {} without tools.

    ``tools`` are the upstream's tools by the client's names; ``named_choice`` returns OpenAI's
    choice of one of them. Raises BadRequest for more tools than the upstream's configured limit,
    and for a choice of a tool that is not there.
    """
    limit, choice = builder.profile.max_tools, builder.request.get("tool_choice") or {}
    if limit and len(tools) > limit:
        raise BadRequest("tools", f"{len(tools)} tools; this upstream takes {limit}")
    if not tools:
        if choice.get("type") in ("any", "tool"):
            raise BadRequest("tool_choice", "this upstream supports none of the required tools")
        return {}
    fields: dict[str, Any] = {"tools": list(tools.values())}
    match choice.get("type"):
        case "auto" | "none" as mode:  # with "none" too, as the history contains calls of the tools
            fields["tool_choice"] = mode
        case "any" if builder.profile.required_tool_choice:
            fields["tool_choice"] = "required"
        case "any":
            builder.add_note(
                "tool_choice", "clamped", "this upstream does not accept 'required': sent as auto"
            )
            fields["tool_choice"] = "auto"
        case "tool":
            name = choice["name"]
            if name not in tools:
                raise BadRequest("tool_choice.name", f"{name!r} is not among the tools here")
            fields["tool_choice"] = named_choice(tools[name])
    return fields


def _with_examples(description: str, tool: dict[str, Any]) -> str:
    examples = tool.get("input_examples")
    if not examples:
        return description
    lines = "\n".join(compact_json(example) for example in examples)
    return f"{description}\n\nExample inputs:\n{lines}".lstrip()


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
