"""Convert tools and tool choice to the Responses API (docs/mapping.md)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from translator.errors import BadRequest
from translator.request.builder import RequestBuilder
from translator.request.effective_tools import effective_tools
from translator.request.id_mapping import upstream_name
from translator.request.tool_support import offered_function, tool_fields

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
    tools_by_name: dict[str, Tool] = {}  # tool name in the client's request -> the tool
    for path, tool in offered:
        if (upstream_tool := _tool(tool, path, builder)) is not None:
            tools_by_name[tool.get("name") or path] = upstream_tool
    tools = [tool for _, tool in offered]
    for server in _mcp_servers(tools, builder):
        tools_by_name[f"mcp {server['server_label']}"] = server
    fields = tool_fields(tools_by_name, _named_choice, builder)
    if not fields:
        return {}
    if builder.profile.parallel_tool_calls:
        choice = builder.request.get("tool_choice") or {}
        fields["parallel_tool_calls"] = not choice.get("disable_parallel_tool_use")
    # OpenAI has one limit for all its own tools: the sum of ``max_uses`` of the search tools.
    limit = sum(
        tool.get("max_uses") or 0
        for tool in tools
        if "type" in tool and str(tool["type"]).startswith(WITH_MAX_USES)
    )
    if limit and builder.profile.web_search:
        fields["max_tool_calls"] = limit
    return fields


def _tool(tool: Tool, path: str, builder: RequestBuilder) -> Tool | None:
    """Return one tool in the upstream's format; None if it is dropped."""
    if kind := tool.get("type"):
        for prefix, hosted in HOSTED_TOOLS.items():
            if kind.startswith(prefix) and getattr(builder.profile, hosted.capability):
                return hosted.build(tool, path, builder)
    function = offered_function(tool, path, builder)
    if function is None:
        return None
    if "description" in function:  # last, as ever: another order would miss the prompt cache
        function["description"] = function.pop("description")
    return {"type": "function", **function}


def _named_choice(tool: Tool) -> Tool:
    if tool["type"] == "function":
        return {"type": "function", "name": tool["name"]}
    return {"type": "allowed_tools", "mode": "required", "tools": [{"type": tool["type"]}]}


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
    upstream_tools: list[Tool] = []
    for server in servers:
        configuration = server.get("tool_configuration") or {}
        if configuration.get("enabled") is False:
            continue
        mcp_tool: Tool = {
            "type": "mcp",
            "server_label": upstream_name(server["name"]),
            "server_url": server["url"],
            "require_approval": "never",  # no user can approve the call
        }
        if server.get("authorization_token"):
            mcp_tool["authorization"] = server["authorization_token"]
        allowed = configuration.get("allowed_tools")
        toolset = toolsets.get(server["name"])
        if toolset is not None and (toolset.get("default_config") or {}).get("enabled") is False:
            configs = toolset.get("configs") or {}
            allowed = [name for name, config in configs.items() if config.get("enabled")]
        if allowed is not None:
            mcp_tool["allowed_tools"] = allowed
        upstream_tools.append(mcp_tool)
    return upstream_tools


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
