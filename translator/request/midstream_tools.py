"""Apply tool additions and removals in the middle of a conversation.

An upstream takes one list of tools: the tools that are available at the end of the conversation.
Source: docs/mapping.md and the type ``BetaRequestToolAdditionBlockParam`` of Anthropic's SDK.
"""

from collections.abc import Iterator
from typing import Any, Final

from translator.anthropic.types import MessagesRequest

from .builder import RequestBuilder
from .deferred_tools import loaded_tools

Tool = dict[str, Any]

TOOL_CHANGES: Final = frozenset({"tool_addition", "tool_removal"})

MCP_REFERENCES: Final = frozenset({"mcp_tool_reference", "mcp_toolset_reference"})
"""Types of references to tools that only an MCP server defines."""


def effective_tools(builder: RequestBuilder) -> list[tuple[str, Tool]]:
    """Return the tools available at the end of the conversation, with their request paths.

    Tools of the ``tools`` field come first, then tools that messages add.
    """
    declared: list[tuple[str, Tool]] = []
    if tools := builder.request.get("tools"):
        declared = [(f"tools.{n}", tool) for n, tool in enumerate(tools)]
    changes = list(_tool_changes(builder.request))
    if not changes:
        return loaded_tools(declared, builder)
    # Keyed by name; toolsets have no name and are keyed by path.
    tools_by_name = {str(tool.get("name") or path): (path, tool) for path, tool in declared}
    removed_names: set[str] = set()
    for path, block in changes:
        tool_change = block["tool"]
        if tool_change.get("type") in MCP_REFERENCES:
            builder.add_note(path, "dropped", "tools of an MCP server cannot be changed")
            continue
        builder.add_note(path, "emulated", "the upstream receives the tools that remain at the end")
        definition = tool_change.get("definition")
        name = str((definition or tool_change).get("name") or path)
        if block["type"] == "tool_removal":
            removed_names.add(name)
            continue
        removed_names.discard(name)
        if definition:
            tools_by_name[name] = (f"{path}.tool.definition", definition)
    remaining = [entry for name, entry in tools_by_name.items() if name not in removed_names]
    return loaded_tools(remaining, builder)


def _tool_changes(request: MessagesRequest) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, message in enumerate(request["messages"]):
        if message["role"] == "system" and not isinstance(message["content"], str):
            for block_number, block in enumerate(message["content"]):
                if block["type"] in TOOL_CHANGES:
                    yield f"messages.{number}.content.{block_number}", block
