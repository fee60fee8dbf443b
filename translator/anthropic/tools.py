"""The tools of a request and the choice among them (mapping.md 1.5, 1.7 and 1.8)."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from .content import CACHE_CONTROL
from .shapes import (
    Check,
    Fault,
    anything,
    boolean,
    integer,
    list_of,
    mapping,
    shape,
    short_name,
    shortened,
    string,
    tagged,
    values_of,
)

_COMMON: Final[Mapping[str, Check]] = {
    "allowed_callers": list_of(string),
    "cache_control": CACHE_CONTROL,
    "defer_loading": boolean,
    "eager_input_streaming": boolean,
    "input_examples": list_of(mapping),
    "strict": boolean,
}

_NAMED: Final = shape({"name": short_name}, _COMMON)

_CUSTOM: Final = shape(
    {"name": short_name}, {"description": string, "input_schema": mapping, **_COMMON}
)


def _one_list_of_domains(tool: dict[str, Any]) -> None:
    if tool.get("allowed_domains") and tool.get("blocked_domains"):
        raise Fault("Only one of allowed_domains and blocked_domains may be given")


_WEB: Final = shape(
    {"name": short_name},
    {
        "allowed_domains": list_of(string),
        "blocked_domains": list_of(string),
        "max_uses": integer(1),
        "user_location": mapping,
        **_COMMON,
    },
    _one_list_of_domains,
)

_SWITCH: Final = shape(optional={"defer_loading": boolean, "enabled": boolean})

_MCP: Final = shape(
    {"mcp_server_name": short_name},
    {
        "cache_control": CACHE_CONTROL,
        "configs": values_of(_SWITCH),
        "default_config": _SWITCH,
        "name": string,
    },
)

_UNNAMED: Final = shape(
    optional={"cache_control": CACHE_CONTROL, "configs": anything, "name": string}
)

TOOLS: Final[Mapping[str, Check]] = {
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
"""By the start of the type, which ends in a date; the first that fits."""

TOOLSETS: Final = ("browser_toolset", "computer_toolset", "mcp_toolset")
"""Tools of these kinds bring names that the request does not tell."""


def tool(value: Any) -> None:
    """Check one tool definition."""
    if type(value) is dict and "type" not in value:  # nearly all of them
        _CUSTOM(value)
        return
    kind = value.get("type") if isinstance(value, dict) else None
    if kind is None or kind == "custom":
        _CUSTOM(value)
        return
    if not isinstance(kind, str):
        raise Fault("Input should be a valid string", "type")
    for prefix, check in TOOLS.items():
        if kind.startswith(prefix):
            check(value)
            return
    raise Fault(f"{shortened(kind)!r} is no known type of tool", "type")


TOOL_CHOICE: Final = tagged(
    {
        "any": shape(optional={"disable_parallel_tool_use": boolean}),
        "auto": shape(optional={"disable_parallel_tool_use": boolean}),
        "none": anything,
        "tool": shape({"name": short_name}, {"disable_parallel_tool_use": boolean}),
    }
)


def check_inline_tools(request: dict[str, Any]) -> None:
    """Tools that are defined in mid conversation are tools like any other."""
    for number, part, change in _changes(request):
        if change["tool"].get("type") != "tool_definition":
            continue
        path = ("messages", str(number), "content", str(part), "tool")
        if "definition" not in change["tool"]:
            raise Fault("Field required", *path, "definition")
        try:
            tool(change["tool"]["definition"])
        except Fault as fault:
            raise Fault(fault.message, *path, "definition", *fault.path) from None


def check_tool_names(request: dict[str, Any]) -> None:
    """Names are unique, and the choice names one of them."""
    tools, choice = request.get("tools"), request.get("tool_choice")
    if not tools and not choice:
        return
    names = [each["name"] for each in tools or () if "name" in each]
    known = {name for name in names if name is not None}
    if len(known) + names.count(None) < len(names):
        names = [each.get("name") for each in tools or ()]
        number = next(n for n, name in enumerate(names) if name is not None and name in names[:n])
        raise Fault("Tool names must be unique", "tools", str(number), "name")
    if not choice or choice["type"] != "tool" or choice["name"] in known:
        return
    if choice["name"] not in _added(request) and not _has_toolset(request):
        raise Fault(
            f"Tool {shortened(choice['name'])!r} not found in provided tools", "tool_choice", "name"
        )


def _added(request: dict[str, Any]) -> Iterator[str]:
    """Names of tools that system messages add in mid conversation."""
    for _, _, change in _changes(request):
        added = change["tool"].get("definition") or change["tool"]
        if change["type"] == "tool_addition":
            yield str(added.get("name"))


def _changes(request: dict[str, Any]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    for number, each in enumerate(request["messages"]):
        if each["role"] == "system" and isinstance(each["content"], list):
            for part, block in enumerate(each["content"]):
                if block["type"] in ("tool_addition", "tool_removal"):
                    yield number, part, block


def _has_toolset(request: dict[str, Any]) -> bool:
    return any(str(t.get("type")).startswith(TOOLSETS) for t in request.get("tools") or ())
