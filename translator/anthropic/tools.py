"""Validate the ``tools`` and ``tool_choice`` of a request (docs/mapping.md)."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from .content_blocks import CACHE_CONTROL
from .validators import (
    Check,
    ValidationFault,
    any_value,
    boolean,
    integer,
    list_of,
    mapping,
    mapping_of,
    object_of,
    short_name,
    shorten,
    string,
    tagged_union,
)

_COMMON: Final[Mapping[str, Check]] = {
    "allowed_callers": list_of(string),
    "cache_control": CACHE_CONTROL,
    "defer_loading": boolean,
    "eager_input_streaming": boolean,
    "input_examples": list_of(mapping),
    "strict": boolean,
}

_NAMED: Final = object_of({"name": short_name}, _COMMON)

_CUSTOM: Final = object_of(
    {"name": short_name}, {"description": string, "input_schema": mapping, **_COMMON}
)


def _check_domain_lists(tool: dict[str, Any]) -> None:
    if tool.get("allowed_domains") and tool.get("blocked_domains"):
        raise ValidationFault("Only one of allowed_domains and blocked_domains may be given")


_WEB: Final = object_of(
    {"name": short_name},
    {
        "allowed_domains": list_of(string),
        "blocked_domains": list_of(string),
        "max_uses": integer(1),
        "user_location": mapping,
        **_COMMON,
    },
    _check_domain_lists,
)

_ENABLED: Final = object_of(optional={"defer_loading": boolean, "enabled": boolean})

_MCP: Final = object_of(
    {"mcp_server_name": short_name},
    {
        "cache_control": CACHE_CONTROL,
        "configs": mapping_of(_ENABLED),
        "default_config": _ENABLED,
        "name": string,
    },
)

_UNNAMED: Final = object_of(
    optional={"cache_control": CACHE_CONTROL, "configs": any_value, "name": string}
)

TOOL_CHECKS: Final[Mapping[str, Check]] = {
    "advisor": _NAMED,
    "bash_": _NAMED,
    "browser_toolset": _UNNAMED,
    "code_execution": _NAMED,
    "computer_toolset": _UNNAMED,
    "computer_": _NAMED,
    "mcp_toolset": _MCP,
    "memory_": _NAMED,
    "text_editor_": _NAMED,
    "tool_search_tool": _NAMED,
    "web_fetch": _WEB,
    "web_search": _WEB,
}
"""Checks by prefix of the tool's ``type``, because types end in a date; the first match applies."""

TOOLSETS: Final = ("browser_toolset", "computer_toolset", "mcp_toolset")
"""Tools of these types define further tools, whose names the request does not list."""


def check_tool(value: Any) -> None:
    if type(value) is dict and "type" not in value:  # nearly every tool is like this
        _CUSTOM(value)
        return
    kind = value.get("type") if isinstance(value, dict) else None
    if kind is None or kind == "custom":
        _CUSTOM(value)
        return
    if not isinstance(kind, str):
        raise ValidationFault("Input should be a valid string", "type")
    for prefix, check in TOOL_CHECKS.items():
        if kind.startswith(prefix):
            check(value)
            return
    raise ValidationFault(f"{shorten(kind)!r} is no known type of tool", "type")


TOOL_CHOICE: Final = tagged_union(
    {
        "any": object_of(optional={"disable_parallel_tool_use": boolean}),
        "auto": object_of(optional={"disable_parallel_tool_use": boolean}),
        "none": any_value,
        "tool": object_of({"name": short_name}, {"disable_parallel_tool_use": boolean}),
    }
)


def check_inline_tools(request: dict[str, Any]) -> None:
    """Check the tools that system messages add in mid-conversation."""
    for number, block_number, change in _tool_changes(request):
        if change["tool"].get("type") != "tool_definition":
            continue
        path = ("messages", str(number), "content", str(block_number), "tool")
        if "definition" not in change["tool"]:
            raise ValidationFault("Field required", *path, "definition")
        try:
            check_tool(change["tool"]["definition"])
        except ValidationFault as fault:
            raise ValidationFault(fault.message, *path, "definition", *fault.path) from None


def check_tool_names(request: dict[str, Any]) -> None:
    """Check that tool names are unique, and that ``tool_choice`` names an existing tool."""
    tools, choice = request.get("tools"), request.get("tool_choice")
    if not tools and not choice:
        return
    names = [definition["name"] for definition in tools or () if "name" in definition]
    known_names = {name for name in names if name is not None}
    if len(known_names) + names.count(None) < len(names):
        names = [definition.get("name") for definition in tools or ()]
        number = next(n for n, name in enumerate(names) if name is not None and name in names[:n])
        raise ValidationFault("Tool names must be unique", "tools", str(number), "name")
    if not choice or choice["type"] != "tool" or choice["name"] in known_names:
        return
    if choice["name"] not in _added_tool_names(request) and not _has_toolset(request):
        raise ValidationFault(
            f"Tool {shorten(choice['name'])!r} not found in provided tools", "tool_choice", "name"
        )


def _added_tool_names(request: dict[str, Any]) -> Iterator[str]:
    """Yield the names of tools that system messages add in mid-conversation."""
    for _, _, change in _tool_changes(request):
        definition = change["tool"].get("definition") or change["tool"]
        if change["type"] == "tool_addition":
            yield str(definition.get("name"))


def _tool_changes(request: dict[str, Any]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    for number, message in enumerate(request["messages"]):
        if message["role"] == "system" and isinstance(message["content"], list):
            for block_number, block in enumerate(message["content"]):
                if block["type"] in ("tool_addition", "tool_removal"):
                    yield number, block_number, block


def _has_toolset(request: dict[str, Any]) -> bool:
    return any(str(t.get("type")).startswith(TOOLSETS) for t in request.get("tools") or ())
