"""Apply tool additions and removals in the middle of a conversation.

An upstream takes one list of tools: the tools that are available at the end of the conversation.
Source: docs/mapping.md and the type ``BetaRequestToolAdditionBlockParam`` of Anthropic's SDK.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from translator.anthropic import MessagesRequest
from translator.anthropic.request_validation import tool_changes

from .builder import RequestBuilder

Tool = dict[str, Any]

PLACEHOLDER: Final = "DeferredToolPlaceholder"
"""A tool that Claude Code declares if it has none to defer, so that the field is never missing. It
has no implementation."""
SERVER_SEARCH: Final = "tool_search_tool"
"""Start of the types of Anthropic's own search tools, which no other upstream runs: without them
deferred tools could never be loaded."""
NAMES: Final = re.compile(r"[A-Za-z0-9_-]+")


def loaded_tools(
    declared: list[tuple[str, Tool]], builder: RequestBuilder
) -> list[tuple[str, Tool]]:
    """Return the tools without those that no search has loaded, with a note on their number.

    Claude Code (from 2.1.329 on, by default) and others declare hundreds of MCP tools with
    ``defer_loading``, and a search tool of their own whose result names the found tools in
    ``tool_reference`` blocks. Anthropic keeps the other ones out of the context (documentation,
    "Tool search tool", custom implementation), and upstreams have limits of tools
    (nguyenphutrong/quotio#529).
    """
    offered = [(path, tool) for path, tool in declared if tool.get("name") != PLACEHOLDER]
    if not any("defer_loading" in tool and tool["defer_loading"] for _, tool in offered):
        return offered
    if any(str(tool.get("type")).startswith(SERVER_SEARCH) for _, tool in offered):
        builder.add_note("tools", "emulated", "deferred tools are sent at once: no search here")
        return offered
    names = {tool["name"] for _, tool in offered if tool.get("defer_loading") and "name" in tool}
    loaded = _loaded_names(builder.request, names)
    kept = [
        (path, tool)
        for path, tool in offered
        if not tool.get("defer_loading") or tool.get("name") in loaded
    ]
    if len(kept) < len(offered):
        count = len(offered) - len(kept)
        builder.add_note("tools", "emulated", f"{count} deferred tools are not loaded yet")
    return kept


def _loaded_names(request: MessagesRequest, deferred: set[str]) -> set[str]:
    """Return the deferred tools that the history loads or calls, or that must be called."""
    loaded: set[Any] = {(request.get("tool_choice") or {}).get("name")}
    searches: set[str] = set()  # ids of calls of the client's own search tool
    for message in request["messages"]:
        if isinstance(message["content"], str):
            continue
        for block in message["content"]:
            match block["type"]:
                case "tool_use":
                    loaded.add(block["name"])
                    if "toolsearch" in block["name"].replace("_", "").replace("-", "").lower():
                        searches.add(block["id"])
                case "tool_result":
                    loaded.update(_references(block.get("content")))
                    if block["tool_use_id"] in searches:
                        loaded.update(_named_in(block.get("content"), deferred))
                case "tool_search_tool_result":
                    found = block["content"] if isinstance(block["content"], dict) else {}
                    loaded.update(_references(found.get("tool_references")))
                case "tool_addition":
                    loaded.add((block["tool"].get("definition") or block["tool"]).get("name"))
    return loaded & deferred


def _references(content: Any) -> Iterator[str]:
    for block in content if isinstance(content, list) else ():
        name = block.get("tool_name") if isinstance(block, dict) else None
        if isinstance(name, str):
            yield name


def _named_in(content: Any, deferred: set[str]) -> set[str]:
    """Return the deferred tools that the text of a search result names."""
    blocks = content if isinstance(content, list) else [{"text": content}]
    texts = [block.get("text") for block in blocks if isinstance(block, dict)]
    return {
        name
        for text in texts
        if isinstance(text, str)
        for name in deferred.intersection(NAMES.findall(text))
    }


MCP_REFERENCES: Final = frozenset({"mcp_tool_reference", "mcp_toolset_reference"})
"""Types of references to tools that only an MCP server defines."""


def effective_tools(builder: RequestBuilder) -> list[tuple[str, Tool]]:
    """Return the tools available at the end of the conversation, with their request paths.

    Tools of the ``tools`` field come first, then tools that messages add.
    """
    declared: list[tuple[str, Tool]] = []
    if tools := builder.request.get("tools"):
        declared = [(f"tools.{n}", tool) for n, tool in enumerate(tools)]
    changes = list(tool_changes(builder.request))
    if not changes:
        return loaded_tools(declared, builder)
    # Keyed by name; toolsets have no name and are keyed by path.
    tools_by_name = {str(tool.get("name") or path): (path, tool) for path, tool in declared}
    removed_names: set[str] = set()
    for number, block_number, block in changes:
        path = f"messages.{number}.content.{block_number}"
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
