"""Tools and tool choice (mapping.md 1.7 and 1.8)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from translator.client_tools import (
    RARE,
    FunctionTool,
    custom_function,
    function_of,
    go_without,
)
from translator.draft import Draft
from translator.errors import BadRequest
from translator.names import upstream_name
from translator.schemas import normalise, strict
from translator.tool_changes import offered_tools

Tool = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Hosted:
    """A tool that the upstream runs itself, where its profile has the capability."""

    capability: str
    build: Callable[[Tool, str, Draft], Tool | None]


def build_tools(draft: Draft) -> dict[str, Any]:
    """``tools``, ``tool_choice``, ``parallel_tool_calls``; nothing without a callable tool."""
    offered = offered_tools(draft)
    if not offered and NEEDING.isdisjoint(draft.request):
        return {}
    tools = [tool for _, tool in offered]
    known: dict[str, Tool] = {}  # by the client's name
    for path, tool in offered:
        built = _tool(tool, path, draft)
        if built is not None:
            known[tool.get("name") or path] = built
    for server in _mcp_servers(tools, draft):
        known[f"mcp {server['server_label']}"] = server
    if len(known) > draft.profile.max_tools:
        limit = draft.profile.max_tools
        raise BadRequest("tools", f"{len(known)} tools; this upstream takes {limit}")
    choice = draft.request.get("tool_choice") or {}
    if not known:
        if choice.get("type") in ("any", "tool"):
            raise BadRequest("tool_choice", "this upstream has none of the tools that are demanded")
        return {}
    fields: dict[str, Any] = {"tools": list(known.values())}
    if choice:
        fields["tool_choice"] = _choice(choice, known, draft)
    if draft.profile.parallel_tool_calls:
        fields["parallel_tool_calls"] = not choice.get("disable_parallel_tool_use")
    return fields | _max_calls(tools, draft)


def _tool(tool: Tool, path: str, draft: Draft) -> Tool | None:
    """One tool as this upstream knows it; None where it goes without."""
    if RARE.isdisjoint(tool):  # nearly every one
        return _function(custom_function(tool), tool, path, draft)
    kind = tool.get("type") or "custom"
    if kind != "custom":
        for prefix, hosted in HOSTED.items():
            if kind.startswith(prefix) and getattr(draft.profile, hosted.capability):
                return hosted.build(tool, path, draft)
    callers = tool.get("allowed_callers")
    if callers and "direct" not in callers:
        raise BadRequest(f"{path}.allowed_callers", "only direct calls are possible here")
    found = function_of(tool, draft.profile)
    if found is None:
        go_without(kind, path, draft)
        return None
    if tool.get("defer_loading"):
        draft.note(f"{path}.defer_loading", "emulated", "the tool is sent at once")
    if kind != "custom":
        draft.note(f"{path}.type", "emulated", f"{kind} is told as a function with its schema")
    return _function(found, tool, path, draft)


def _function(found: FunctionTool, tool: Tool, path: str, draft: Draft) -> Tool:
    name = upstream_name(found.name)
    if name != found.name:
        draft.tool_names[name] = found.name
        draft.note(f"{path}.name", "renamed", f"the upstream knows this tool as {name!r}")
    # strict is always said: left out it means "make optional properties required".
    function: Tool = {
        "type": "function",
        "name": name,
        "parameters": normalise(found.parameters),
        "strict": False,
    }
    if found.description:
        function["description"] = found.description
    if tool.get("strict"):
        made = strict(found.parameters) if draft.profile.strict_schemas else None
        if made is None:
            draft.note(f"{path}.strict", "dropped", "the schema has no strict form here")
            return function
        function |= {"parameters": made.schema, "strict": True}
        if made.optional:
            draft.optional_properties[found.name] = made.optional
    return function


def _web_search(tool: Tool, path: str, draft: Draft) -> Tool:
    if tool.get("blocked_domains"):
        raise BadRequest(f"{path}.blocked_domains", "the upstream's search cannot leave out sites")
    search: Tool = {"type": "web_search"}
    if tool.get("allowed_domains"):
        search["filters"] = {"allowed_domains": tool["allowed_domains"]}
    if tool.get("user_location"):
        place = ("city", "region", "country", "timezone")
        given = {name: tool["user_location"].get(name) for name in place}
        search["user_location"] = {
            "type": "approximate",
            **{name: value for name, value in given.items() if value},
        }
    if tool.get("response_inclusion"):
        draft.note(f"{path}.response_inclusion", "ignored", "results are always included")
    draft.include.append("web_search_call.action.sources")
    return search


def _code_interpreter(tool: Tool, path: str, draft: Draft) -> Tool:
    draft.note(path, "emulated", "code runs in the upstream's own interpreter")
    draft.include.append("code_interpreter_call.outputs")
    return {"type": "code_interpreter", "container": {"type": "auto"}}


def _mcp_servers(tools: list[Tool], draft: Draft) -> list[Tool]:
    """One ``mcp`` tool for each server of the request, with the tools that may be called."""
    servers = draft.request.get("mcp_servers") or []
    if servers and not draft.profile.mcp:
        raise BadRequest("mcp_servers", "the upstream connects to no MCP servers")
    if not servers:
        return []
    toolsets = {
        tool.get("mcp_server_name"): tool for tool in tools if tool.get("type") == "mcp_toolset"
    }
    return [
        _mcp_server(server, toolsets.get(server["name"]))
        for server in servers
        if (server.get("tool_configuration") or {}).get("enabled") is not False
    ]


def _mcp_server(server: Tool, toolset: Tool | None) -> Tool:
    built: Tool = {
        "type": "mcp",
        "server_label": upstream_name(server["name"]),
        "server_url": server["url"],
        "require_approval": "never",  # there is nobody whom the upstream could ask
    }
    if server.get("authorization_token"):
        built["authorization"] = server["authorization_token"]
    allowed = (server.get("tool_configuration") or {}).get("allowed_tools")
    if toolset is not None and (toolset.get("default_config") or {}).get("enabled") is False:
        configs = toolset.get("configs") or {}
        allowed = [name for name, config in configs.items() if config.get("enabled")]
    if allowed is not None:
        built["allowed_tools"] = allowed
    return built


def _mcp_toolset(tool: Tool, path: str, draft: Draft) -> None:
    """Its server brings the tools: see ``_mcp_servers``."""
    if tool.get("mcp_server_name") not in draft.mcp_server_names:
        raise BadRequest(f"{path}.mcp_server_name", "no such server among mcp_servers")
    default, configs = tool.get("default_config") or {}, tool.get("configs") or {}
    switches = [default, *(config or {} for config in configs.values())]
    if any(switch.get("defer_loading") for switch in switches):
        draft.note(f"{path}.defer_loading", "emulated", "the server's tools are there at once")
    off = [name for name, config in configs.items() if (config or {}).get("enabled") is False]
    if off and default.get("enabled") is not False:  # else only those that are on are allowed
        raise BadRequest(f"{path}.configs", f"the upstream cannot leave out a tool: {off[0]!r}")


def _max_calls(tools: list[Tool], draft: Draft) -> dict[str, Any]:
    """``max_uses`` of a search: OpenAI counts all the calls of its own tools together."""
    if not draft.profile.web_search:
        return {}
    limit = sum(
        tool.get("max_uses") or 0
        for tool in tools
        if "type" in tool and str(tool["type"]).startswith(WITH_MAX_USES)
    )
    return {"max_tool_calls": limit} if limit else {}


def _choice(choice: dict[str, Any], known: Mapping[str, Tool], draft: Draft) -> Any:
    match choice["type"]:
        case "auto":
            return "auto"
        case "none":
            return "none"  # the tools stay: the history refers to them
        case "any" if draft.profile.required_tool_choice:
            return "required"
        case "any":
            draft.note("tool_choice", "clamped", "this upstream takes no 'required': sent as auto")
            return "auto"
    tool = known.get(choice["name"])
    if tool is None:
        raise BadRequest("tool_choice.name", f"{choice['name']!r} is not among the tools here")
    if tool["type"] == "function":
        return {"type": "function", "name": tool["name"]}
    return {"type": "allowed_tools", "mode": "required", "tools": [{"type": tool["type"]}]}


NEEDING: Final = frozenset({"mcp_servers", "tool_choice"})
"""What a request may have that brings tools, or needs some."""

WITH_MAX_USES: Final = ("web_fetch", "web_search")
"""Tools whose ``max_uses`` means something; another's field of that name may hold anything."""

HOSTED: Final[Mapping[str, Hosted]] = {
    "code_execution": Hosted("code_interpreter", _code_interpreter),
    "mcp_toolset": Hosted("mcp", _mcp_toolset),
    "web_search": Hosted("web_search", _web_search),
}
"""By the start of the tool's type, which ends in a date."""
