"""Convert tools and tool choice to Chat Completions functions (docs/mapping.md)."""

from typing import Any

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


def build_tools(builder: RequestBuilder) -> dict[str, Any]:
    """Return ``tools``, ``tool_choice`` and ``parallel_tool_calls``; {} without functions."""
    offered = effective_tools(builder)
    if not offered and "tool_choice" not in builder.request:
        return {}
    functions = [
        function
        for path, tool in offered
        if (function := _function(tool, path, builder)) is not None
    ]
    check_tool_count(len(functions), builder)
    choice = builder.request.get("tool_choice") or {}
    if not functions:
        if choice.get("type") in ("any", "tool"):
            raise BadRequest("tool_choice", "this upstream supports none of the required tools")
        return {}
    fields: dict[str, Any] = {"tools": functions}
    if choice:
        fields["tool_choice"] = _choice(choice, functions, builder)
    if choice.get("disable_parallel_tool_use") and builder.profile.parallel_tool_calls:
        fields["parallel_tool_calls"] = False
    return fields


def _function(tool: dict[str, Any], path: str, builder: RequestBuilder) -> dict[str, Any] | None:
    if SPECIAL_FIELDS.isdisjoint(tool):  # nearly every tool is like this
        function = custom_function(tool)
        return {"type": "function", "function": _definition(function, tool, path, builder)}
    known = client_tool_function(tool, builder.profile)
    if known is None:
        drop_tool(tool["type"], path, builder)
        return None
    _check_special_fields(tool, path, builder)
    return {"type": "function", "function": _definition(known, tool, path, builder)}


def _check_special_fields(tool: dict[str, Any], path: str, builder: RequestBuilder) -> None:
    callers = tool.get("allowed_callers")
    if callers and "direct" not in callers:
        raise BadRequest(f"{path}.allowed_callers", "only direct calls are possible here")
    kind = tool.get("type") or "custom"
    if kind != "custom":
        builder.add_note(
            f"{path}.type", "emulated", f"{kind} is sent as a function with its schema"
        )


def _definition(
    function: FunctionTool, tool: dict[str, Any], path: str, builder: RequestBuilder
) -> dict[str, Any]:
    name = upstream_name(function.name)
    if name != function.name:
        builder.tool_names[name] = function.name
        builder.add_note(f"{path}.name", "renamed", f"the upstream receives this tool as {name!r}")
    definition: dict[str, Any] = {"name": name}
    if function.description:
        definition["description"] = function.description
    definition["parameters"] = accepted_parameters(function, path, builder)
    if not builder.profile.strict_schemas:
        if tool.get("strict"):
            builder.add_note(f"{path}.strict", "dropped", "the schema has no strict form here")
        return definition
    # Without this field, a server may make optional properties required.
    definition["strict"] = False
    if tool.get("strict"):
        strict_schema = to_strict(function.parameters)
        if strict_schema is None:
            builder.add_note(f"{path}.strict", "dropped", "the schema has no strict form")
        else:
            definition |= {"parameters": strict_schema.schema, "strict": True}
            if strict_schema.optional:
                builder.optional_properties[function.name] = strict_schema.optional
    return definition


def _choice(
    choice: dict[str, Any], functions: list[dict[str, Any]], builder: RequestBuilder
) -> Any:
    if mode := tool_choice_mode(choice, builder):
        return mode
    name = upstream_name(choice["name"])
    if name not in {function["function"]["name"] for function in functions}:
        raise BadRequest("tool_choice.name", f"{choice['name']!r} is not among the tools here")
    return {"type": "function", "function": {"name": name}}
