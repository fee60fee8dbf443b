"""Convert tools and tool choice to Chat Completions functions (docs/mapping.md)."""

from typing import Any

from translator.request.builder import RequestBuilder
from translator.request.effective_tools import effective_tools
from translator.request.tool_support import NOT_STRICT, offered_function, tool_fields


def build_tools(builder: RequestBuilder) -> dict[str, Any]:
    """Return ``tools``, ``tool_choice`` and ``parallel_tool_calls``; {} without functions."""
    offered = effective_tools(builder)
    if not offered and "tool_choice" not in builder.request:
        return {}
    is_strict = builder.profile.strict_schemas
    not_strict = "the schema has no strict form" if is_strict else NOT_STRICT
    tools: dict[str, dict[str, Any]] = {}
    for path, tool in offered:
        definition = offered_function(tool, path, builder, not_strict)
        if definition is None:
            continue
        if not is_strict:
            del definition["strict"]
        name = builder.tool_names.get(definition["name"], definition["name"])
        tools[name] = {"type": "function", "function": definition}
    fields = tool_fields(
        tools,
        lambda tool: {"type": "function", "function": {"name": tool["function"]["name"]}},
        builder,
    )
    choice = builder.request.get("tool_choice") or {}
    is_single = fields and choice.get("disable_parallel_tool_use")
    if is_single and builder.profile.parallel_tool_calls:
        fields["parallel_tool_calls"] = False
    return fields
