"""Convert calls of OpenAI's hosted tools to Anthropic's server tool blocks.

Each conversion takes a finished output item and returns a ``server_tool_use`` block and its result
block. Source: docs/mapping.md.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from translator.anthropic.content_blocks import DIRECT
from translator.dialect import ResponseContext
from translator.stream.tool_arguments import compact_json, parse_arguments

from .types import OutputItem

Block = dict[str, Any]

PAGE_ACTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "find": ("url", "pattern"),
    "find_in_page": ("url", "pattern"),
    "open_page": ("url",),
}
"""Actions of OpenAI's search tool other than a search, and the arguments of each action."""


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _use_id(item: OutputItem) -> str:
    """Return a call id in Anthropic's format, always the same for one item, even without an id."""
    identity = str(item.get("id") or compact_json(item))
    return "srvtoolu_" + hashlib.sha256(identity.encode(errors="surrogatepass")).hexdigest()[:24]


def web_search_blocks(item: OutputItem) -> list[Block]:
    use_id = _use_id(item)
    action = item.get("action")
    action = action if isinstance(action, dict) else {}
    use = {"type": "server_tool_use", "id": use_id, "name": "web_search", **DIRECT}
    urls = [source.get("url") for source in _dicts(action.get("sources"))]
    content: Any = [
        {
            "type": "web_search_result",
            "url": url,
            "title": url,  # OpenAI sends neither title nor encrypted content
            "encrypted_content": "",
            "page_age": None,
        }
        for url in urls
        if isinstance(url, str)
    ]
    if item.get("status") == "failed":
        content = {"type": "web_search_tool_result_error", "error_code": "unavailable"}
    return [
        use | {"input": _search_input(action)},
        {"type": "web_search_tool_result", "tool_use_id": use_id, "content": content, **DIRECT},
    ]


def _search_input(action: Mapping[str, Any]) -> dict[str, Any]:
    names = PAGE_ACTIONS.get(str(action.get("type")))
    if names is not None:
        return {name: action.get(name) or "" for name in names}
    queries = action.get("queries")
    query_list = [q for q in queries if isinstance(q, str)] if isinstance(queries, list) else []
    return {"query": action.get("query") or "; ".join(query_list)}


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
            **DIRECT,
        },
        {"type": "code_execution_tool_result", "tool_use_id": use_id, "content": result},
    ]


def mcp_call_blocks(item: OutputItem) -> list[Block]:
    use_id = _use_id(item)
    arguments = item.get("arguments")
    error = item.get("error")
    error_message = error.get("message") if isinstance(error, dict) else error
    text = item.get("output") or error_message or ""
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
            "content": [
                {"type": "text", "text": text if isinstance(text, str) else "", "citations": None}
            ],
        },
    ]


BLOCK_BUILDERS: Final[Mapping[str, Callable[[OutputItem], list[Block]]]] = {
    "web_search_call": web_search_blocks,
    "code_interpreter_call": code_interpreter_blocks,
    "mcp_call": mcp_call_blocks,
}

REQUIRED_CAPABILITY: Final = {"code_interpreter_call": "code_interpreter", "mcp_call": "mcp"}
"""Item type -> the profile capability without which the tool was not requested.

Web searches are always returned, because text with citations of their results follows.
"""


def was_requested(item_type: str, context: ResponseContext) -> bool:
    """Return whether a call of this type is sent to the client.

    Web searches always are. Calls of other hosted tools are sent if the upstream has the tool and
    the client requested it; the caller drops the rest with a note.
    """
    capability = REQUIRED_CAPABILITY.get(item_type)
    has_capability = not capability or getattr(context.target.profile, capability)
    return has_capability and item_type not in context.unrequested_items
