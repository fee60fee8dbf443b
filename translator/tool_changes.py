"""Tools that system messages add and take away in mid conversation.

An upstream that takes one list of tools gets those that are left at the end. Source: mapping.md 1.3
and the SDK's ``BetaRequestToolAdditionBlockParam``.
"""

from collections.abc import Iterator
from typing import Any, Final

from .anthropic.types import MessagesRequest
from .draft import Draft

Tool = dict[str, Any]

CHANGES: Final = frozenset({"tool_addition", "tool_removal"})

OF_SERVERS: Final = frozenset({"mcp_tool_reference", "mcp_toolset_reference"})
"""References to tools that only their MCP server knows."""


def offered_tools(draft: Draft) -> list[tuple[str, Tool]]:
    """Each tool that is left at the end, with its path: the declared ones, then the inline ones."""
    declared: list[tuple[str, Tool]] = []
    if tools := draft.request.get("tools"):
        declared = [(f"tools.{n}", tool) for n, tool in enumerate(tools)]
    changes = list(_changes(draft.request))
    if not changes:
        return declared
    # By name; toolsets, which have none, by their path.
    known = {str(tool.get("name") or path): (path, tool) for path, tool in declared}
    removed: set[str] = set()
    for path, block in changes:
        changed = block["tool"]
        if changed.get("type") in OF_SERVERS:
            draft.note(path, "dropped", "the tools of an MCP server stay as they are")
            continue
        draft.note(path, "emulated", "the tools are those that are left at the end")
        definition = changed.get("definition")
        name = str((definition or changed).get("name") or path)
        if block["type"] == "tool_removal":
            removed.add(name)
            continue
        removed.discard(name)
        if definition:
            known[name] = (f"{path}.tool.definition", definition)
    return [each for name, each in known.items() if name not in removed]


def _changes(request: MessagesRequest) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, message in enumerate(request["messages"]):
        if message["role"] == "system" and not isinstance(message["content"], str):
            for part, block in enumerate(message["content"]):
                if block["type"] in CHANGES:
                    yield f"messages.{number}.content.{part}", block
