"""Calls of tools that OpenAI runs itself, told as Anthropic's server tool blocks.

Each function takes a finished output item and returns the blocks that tell it: the use, and its
result. Source: mapping.md 3.1.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from translator.arguments import compact_json, parse_arguments

from .types import OutputItem

Block = dict[str, Any]

PAGE_ACTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "find": ("url", "pattern"),
    "find_in_page": ("url", "pattern"),
    "open_page": ("url",),
}
"""What a search tool does besides searching, and with what."""


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _use_id(item: OutputItem) -> str:
    """An id of Anthropic's shape, always the same for one item, which may have none itself."""
    told = str(item.get("id") or compact_json(item))
    return "srvtoolu_" + hashlib.sha256(told.encode(errors="surrogatepass")).hexdigest()[:24]


def web_search_blocks(item: OutputItem) -> list[Block]:
    use_id = _use_id(item)
    action = _dict(item.get("action"))
    use = {"type": "server_tool_use", "id": use_id, "name": "web_search"}
    content: Any = [_search_result(source["url"]) for source in _sources(action)]
    if item.get("status") == "failed":
        content = {"type": "web_search_tool_result_error", "error_code": "unavailable"}
    return [
        use | {"input": _search_input(action)},
        {"type": "web_search_tool_result", "tool_use_id": use_id, "content": content},
    ]


def _search_input(action: Mapping[str, Any]) -> dict[str, Any]:
    names = PAGE_ACTIONS.get(str(action.get("type")))
    if names is not None:
        return {name: action.get(name) or "" for name in names}
    queries = action.get("queries")
    several = [q for q in queries if isinstance(q, str)] if isinstance(queries, list) else []
    return {"query": action.get("query") or "; ".join(several)}


def _sources(action: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [s for s in _dicts(action.get("sources")) if isinstance(s.get("url"), str)]


def _search_result(url: str) -> Block:
    """One source; OpenAI names no titles here, and has nothing to hand back encrypted."""
    return {
        "type": "web_search_result",
        "url": url,
        "title": url,
        "encrypted_content": "",
        "page_age": None,
    }


def code_interpreter_blocks(item: OutputItem) -> list[Block]:
    use_id = _use_id(item)
    logs = [
        output["logs"]
        for output in _dicts(item.get("outputs"))
        if isinstance(output.get("logs"), str)
    ]
    failed = item.get("status") == "failed"
    result: Block = {
        "type": "code_execution_result",
        "stdout": "\n".join(logs),
        "stderr": "",
        "return_code": 1 if failed else 0,
        "content": [],
    }
    return [
        {
            "type": "server_tool_use",
            "id": use_id,
            "name": "code_execution",
            "input": {"code": item.get("code") or ""},
        },
        {"type": "code_execution_tool_result", "tool_use_id": use_id, "content": result},
    ]


def mcp_call_blocks(item: OutputItem) -> list[Block]:
    use_id = _use_id(item)
    arguments = item.get("arguments")
    error = item.get("error")
    said = error.get("message") if isinstance(error, dict) else error
    text = item.get("output") or said or ""
    return [
        {
            "type": "mcp_tool_use",
            "id": use_id.replace("srvtoolu_", "mcptoolu_"),
            "name": item.get("name") or "",
            "server_name": item.get("server_label") or "",
            "input": parse_arguments(arguments if isinstance(arguments, str) else "")[0],
        },
        {
            "type": "mcp_tool_result",
            "tool_use_id": use_id.replace("srvtoolu_", "mcptoolu_"),
            "is_error": bool(error),
            "content": [{"type": "text", "text": text if isinstance(text, str) else ""}],
        },
    ]


HOSTED: Final[Mapping[str, Callable[[OutputItem], list[Block]]]] = {
    "web_search_call": web_search_blocks,
    "code_interpreter_call": code_interpreter_blocks,
    "mcp_call": mcp_call_blocks,
}

CAPABILITY: Final = {"code_interpreter_call": "code_interpreter", "mcp_call": "mcp"}
"""The capability without which nobody asked for such a call: it is dropped with a note.

Searches are always told: text that cites their results follows.
"""
