"""Tools and tool choice -> functions (mapping.md 1.7 and 1.8)."""

from typing import Any

from translator.client_tools import RARE, FunctionTool, custom_function, function_of, go_without
from translator.draft import Draft
from translator.errors import BadRequest
from translator.names import upstream_name
from translator.schemas import normalise, strict
from translator.tool_changes import offered_tools


def build_tools(draft: Draft) -> dict[str, Any]:
    """``tools``, ``tool_choice`` and ``parallel_tool_calls``; nothing without a callable tool."""
    offered = offered_tools(draft)
    if not offered and "tool_choice" not in draft.request:
        return {}
    functions = [
        function for path, tool in offered if (function := _function(tool, path, draft)) is not None
    ]
    if len(functions) > draft.profile.max_tools:
        raise BadRequest(
            "tools", f"{len(functions)} tools; this upstream takes {draft.profile.max_tools}"
        )
    choice = draft.request.get("tool_choice") or {}
    if not functions:
        if choice.get("type") in ("any", "tool"):
            raise BadRequest("tool_choice", "this upstream has none of the tools that are demanded")
        return {}
    fields: dict[str, Any] = {"tools": functions}
    if choice:
        fields["tool_choice"] = _choice(choice, functions, draft)
    if choice.get("disable_parallel_tool_use") and draft.profile.parallel_tool_calls:
        fields["parallel_tool_calls"] = False
    return fields


def _function(tool: dict[str, Any], path: str, draft: Draft) -> dict[str, Any] | None:
    if RARE.isdisjoint(tool):  # nearly every one
        found = custom_function(tool)
        return {"type": "function", "function": _definition(found, tool, path, draft)}
    known = function_of(tool, draft.profile)
    if known is None:
        go_without(tool["type"], path, draft)
        return None
    _note_rare(tool, path, draft)
    return {"type": "function", "function": _definition(known, tool, path, draft)}


def _note_rare(tool: dict[str, Any], path: str, draft: Draft) -> None:
    callers = tool.get("allowed_callers")
    if callers and "direct" not in callers:
        raise BadRequest(f"{path}.allowed_callers", "only direct calls are possible here")
    if tool.get("defer_loading"):
        draft.note(f"{path}.defer_loading", "emulated", "the tool is sent at once")
    kind = tool.get("type") or "custom"
    if kind != "custom":
        draft.note(f"{path}.type", "emulated", f"{kind} is told as a function with its schema")


def _definition(
    found: FunctionTool, tool: dict[str, Any], path: str, draft: Draft
) -> dict[str, Any]:
    name = upstream_name(found.name)
    if name != found.name:
        draft.tool_names[name] = found.name
        draft.note(f"{path}.name", "renamed", f"the upstream knows this tool as {name!r}")
    definition: dict[str, Any] = {"name": name}
    if found.description:
        definition["description"] = found.description
    definition["parameters"] = normalise(found.parameters)
    if not draft.profile.strict_schemas:
        if tool.get("strict"):
            draft.note(f"{path}.strict", "dropped", "the schema has no strict form here")
        return definition
    definition["strict"] = False  # left out it may mean: make optional properties required
    if tool.get("strict"):
        made = strict(found.parameters)
        if made is None:
            draft.note(f"{path}.strict", "dropped", "the schema has no strict form")
        else:
            definition |= {"parameters": made.schema, "strict": True}
            if made.optional:
                draft.optional_properties[found.name] = made.optional
    return definition


def _choice(choice: dict[str, Any], functions: list[dict[str, Any]], draft: Draft) -> Any:
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
    name = upstream_name(choice["name"])
    if name not in {function["function"]["name"] for function in functions}:
        raise BadRequest("tool_choice.name", f"{choice['name']!r} is not among the tools here")
    return {"type": "function", "function": {"name": name}}
