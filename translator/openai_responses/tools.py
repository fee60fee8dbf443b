"""Convert tools and tool choice to the Responses API (docs/mapping.md)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from translator.errors import BadRequest
from translator.request.builder import RequestBuilder
from translator.request.effective_tools import effective_tools
from translator.request.id_mapping import upstream_name
from translator.request.json_schema import to_strict
from translator.request.tool_support import (
    SPECIAL_FIELDS,
    FunctionTool,
    accepted_parameters,
    check_tool_count,
    client_tool_function,
    custom_function,
    drop_tool,
    tool_choice_mode,
)

Tool = dict[str, Any]


@dataclass(frozen=True, slots=True)
class HostedTool:
    """A tool that the upstream runs itself, if its profile has the capability."""

    capability: str
    build: Callable[[Tool, str, RequestBuilder], Tool | None]


def build_tools(builder: RequestBuilder) -> dict[str, Any]:
    """Return ``tools``, ``tool_choice`` and ``parallel_tool_calls``; {} without tools."""
    offered = effective_tools(builder)
    if not offered and TOOL_FIELDS.isdisjoint(builder.request):
        return {}
    tools = [tool for _, tool in offered]
    tools_by_name: dict[str, Tool] = {}  # tool name in the client's request -> the tool
    for path, tool in offered:
        upstream_tool = _tool(tool, path, builder)
        if upstream_tool is not None:
            tools_by_name[tool.get("name") or path] = upstream_tool
    for server in _mcp_servers(tools, builder):
        tools_by_name[f"mcp {server['server_label']}"] = server
    check_tool_count(len(tools_by_name), builder)
    choice = builder.request.get("tool_choice") or {}
    if not tools_by_name:
        if choice.get("type") in ("any", "tool"):
            raise BadRequest("tool_choice", "this upstream supports none of the required tools")
        return {}
    fields: dict[str, Any] = {"tools": list(tools_by_name.values())}
    if choice:
        fields["tool_choice"] = _choice(choice, tools_by_name, builder)
    if builder.profile.parallel_tool_calls:
        fields["parallel_tool_calls"] = not choice.get("disable_parallel_tool_use")
    return fields | _max_calls(tools, builder)


def _tool(tool: Tool, path: str, builder: RequestBuilder) -> Tool | None:
    """Return one tool in the upstream's format; None if it is dropped."""
    if SPECIAL_FIELDS.isdisjoint(tool):  # nearly every tool is like this
        return _function(custom_function(tool), tool, path, builder)
    kind = tool.get("type") or "custom"
    if kind != "custom":
        for prefix, hosted in HOSTED_TOOLS.items():
            if kind.startswith(prefix) and getattr(builder.profile, hosted.capability):
                return hosted.build(tool, path, builder)
    callers = tool.get("allowed_callers")
    if callers and "direct" not in callers:
        raise BadRequest(f"{path}.allowed_callers", "only direct calls are possible here")
    function = client_tool_function(tool, builder.profile)
    if function is None:
        drop_tool(kind, path, builder)
        return None
    if kind != "custom":
        builder.add_note(
            f"{path}.type", "emulated", f"{kind} is sent as a function with its schema"
        )
    return _function(function, tool, path, builder)


def _function(function_tool: FunctionTool, tool: Tool, path: str, builder: RequestBuilder) -> Tool:
    name = upstream_name(function_tool.name)
    if name != function_tool.name:
        builder.tool_names[name] = function_tool.name
        builder.add_note(f"{path}.name", "renamed", f"the upstream receives this tool as {name!r}")
    # strict is always sent, because without it OpenAI makes optional properties required.
    function: Tool = {
        "type": "function",
        "name": name,
        "parameters": accepted_parameters(function_tool, path, builder),
        "strict": False,
    }
    if function_tool.description:
        function["description"] = function_tool.description
    if tool.get("strict"):
        strict_schema = (
            to_strict(function_tool.parameters) if builder.profile.strict_schemas else None
        )
        if strict_schema is None:
            builder.add_note(f"{path}.strict", "dropped", "the schema has no strict form here")
            return function
        function |= {"parameters": strict_schema.schema, "strict": True}
        if strict_schema.optional:
            builder.optional_properties[function_tool.name] = strict_schema.optional
    return function


def _web_search(tool: Tool, path: str, builder: RequestBuilder) -> Tool:
    if tool.get("blocked_domains"):
        raise BadRequest(f"{path}.blocked_domains", "the upstream's search cannot exclude sites")
    search: Tool = {"type": "web_search"}
    if tool.get("allowed_domains"):
        search["filters"] = {"allowed_domains": tool["allowed_domains"]}
    if tool.get("user_location"):
        place_fields = ("city", "region", "country", "timezone")
        location = {name: tool["user_location"].get(name) for name in place_fields}
        search["user_location"] = {
            "type": "approximate",
            **{name: value for name, value in location.items() if value},
        }
    if tool.get("response_inclusion"):
        builder.add_note(f"{path}.response_inclusion", "ignored", "results are always included")
    builder.include.append("web_search_call.action.sources")
    return search


def _code_interpreter(tool: Tool, path: str, builder: RequestBuilder) -> Tool:
    builder.add_note(path, "emulated", "code runs in the upstream's own interpreter")
    builder.include.append("code_interpreter_call.outputs")
    return {"type": "code_interpreter", "container": {"type": "auto"}}


def _mcp_servers(tools: list[Tool], builder: RequestBuilder) -> list[Tool]:
    """Return one ``mcp`` tool for each MCP server of the request, with its allowed tools."""
    servers = builder.request.get("mcp_servers") or []
    if servers and not builder.profile.mcp:
        raise BadRequest("mcp_servers", "the upstream does not connect to MCP servers")
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
    mcp_tool: Tool = {
        "type": "mcp",
        "server_label": upstream_name(server["name"]),
        "server_url": server["url"],
        "require_approval": "never",  # no user can approve the call
    }
    if server.get("authorization_token"):
        mcp_tool["authorization"] = server["authorization_token"]
    allowed = (server.get("tool_configuration") or {}).get("allowed_tools")
    if toolset is not None and (toolset.get("default_config") or {}).get("enabled") is False:
        configs = toolset.get("configs") or {}
        allowed = [name for name, config in configs.items() if config.get("enabled")]
    if allowed is not None:
        mcp_tool["allowed_tools"] = allowed
    return mcp_tool


def _mcp_toolset(tool: Tool, path: str, builder: RequestBuilder) -> None:
    """Check an MCP toolset and return nothing: ``_mcp_servers`` builds the tool for its server."""
    if tool.get("mcp_server_name") not in builder.mcp_server_names:
        raise BadRequest(f"{path}.mcp_server_name", "no such server among mcp_servers")
    default, configs = tool.get("default_config") or {}, tool.get("configs") or {}
    switches = [default, *(config or {} for config in configs.values())]
    if any(switch.get("defer_loading") for switch in switches):
        builder.add_note(
            f"{path}.defer_loading", "emulated", "the server's tools are available at once"
        )
    off = [name for name, config in configs.items() if (config or {}).get("enabled") is False]
    # Otherwise the upstream gets a list of allowed tools.
    if off and default.get("enabled") is not False:
        raise BadRequest(f"{path}.configs", f"the upstream cannot exclude a tool: {off[0]!r}")


def _max_calls(tools: list[Tool], builder: RequestBuilder) -> dict[str, Any]:
    """Convert ``max_uses`` to ``max_tool_calls``, OpenAI's one limit for all its own tools.

    The limit is the sum of ``max_uses`` of the search tools.
    """
    if not builder.profile.web_search:
        return {}
    limit = sum(
        tool.get("max_uses") or 0
        for tool in tools
        if "type" in tool and str(tool["type"]).startswith(WITH_MAX_USES)
    )
    return {"max_tool_calls": limit} if limit else {}


def _choice(
    choice: dict[str, Any], tools_by_name: Mapping[str, Tool], builder: RequestBuilder
) -> Any:
    if mode := tool_choice_mode(choice, builder):
        return mode
    tool = tools_by_name.get(choice["name"])
    if tool is None:
        raise BadRequest("tool_choice.name", f"{choice['name']!r} is not among the tools here")
    if tool["type"] == "function":
        return {"type": "function", "name": tool["name"]}
    return {"type": "allowed_tools", "mode": "required", "tools": [{"type": tool["type"]}]}


TOOL_FIELDS: Final = frozenset({"mcp_servers", "tool_choice"})
"""Request fields that define tools or refer to tools."""

WITH_MAX_USES: Final = ("web_fetch", "web_search")
"""Tool types whose ``max_uses`` limits calls; other tools may use this field for anything."""

HOSTED_TOOLS: Final[Mapping[str, HostedTool]] = {
    "code_execution": HostedTool("code_interpreter", _code_interpreter),
    "mcp_toolset": HostedTool("mcp", _mcp_toolset),
    "web_search": HostedTool("web_search", _web_search),
}
"""Hosted tools by prefix of Anthropic's tool type, because types end in a date."""
