"""Text renderings of what an upstream has no slot for, the same in every dialect."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from .anthropic.types import MessagesRequest
from .arguments import compact_json
from .notes import Note

BILLING_HEADER: Final = "x-anthropic-billing-header"
"""A block that starts so is a hash of each request: it would defeat every prefix cache."""

Block = dict[str, Any]


def document_text(block: Block) -> str:
    """A document as text: title, context, then what it says; a name for what cannot be read."""
    source = _mapping(block.get("source"))
    match source.get("type"):
        case "text":
            body = str(source.get("data", ""))
        case "content":
            body = _joined(source.get("content"))
        case kind:
            body = f"[document: {source.get('url') or kind}]"
    return _lines(block.get("title"), block.get("context"), body)


def search_result_text(block: Block) -> str:
    """A search result as text: title, source, body."""
    return _lines(block.get("title"), block.get("source"), _joined(block.get("content")))


def server_result_text(block: Block) -> str:
    """What a server tool of another provider was asked or said; empty where that means nothing."""
    render = RENDERINGS.get(block["type"])
    return render(block) if render is not None else ""


def tool_error_text(text: str) -> str:
    """A failed tool's output, for upstreams without a field for failure."""
    return f"Error: {text}" if text else "Error"


def system_blocks(request: MessagesRequest) -> tuple[list[Block], list[Note]]:
    """The top-level system prompt as blocks, without empty ones and the billing header."""
    system = request.get("system")
    if isinstance(system, str):
        system = [{"type": "text", "text": system}]
    blocks: list[Block] = []
    notes: list[Note] = []
    for number, block in enumerate(system or []):
        if block["text"].startswith(BILLING_HEADER):
            notes.append(
                Note(f"system.{number}", "ignored", "a per-request hash, it defeats prefix caches")
            )
        elif block["text"] and not block["text"].isspace():
            blocks.append(block)
    return blocks, notes


def _web_search(block: Block) -> str:
    results = block.get("content")
    if not isinstance(results, list):
        return ""  # an error object
    return "\n".join(
        f"[search result] {_lines(r.get('title'), r.get('url'), joint=' ')}"
        for r in results
        if isinstance(r, Mapping)
    )


def _web_fetch(block: Block) -> str:
    content = _mapping(block.get("content"))
    document = content.get("content")
    if not isinstance(document, dict):
        return ""
    return _lines(f"[fetched] {content.get('url') or ''}".strip(), document_text(document))


def _code_execution(block: Block) -> str:
    content = _mapping(block.get("content"))
    code = content.get("return_code")
    return _lines(
        content.get("stdout"),
        content.get("stderr"),
        f"[exit code {code}]" if code else None,
    )


def _text_editor(block: Block) -> str:
    content = _mapping(block.get("content"))
    changed = content.get("lines")
    return _lines(
        content.get("content"),
        "\n".join(str(line) for line in changed) if isinstance(changed, list) else None,
    )


def _tool_search(block: Block) -> str:
    found = _mapping(block.get("content")).get("tool_references")
    if not isinstance(found, list):
        return ""
    names = [str(_mapping(tool).get("tool_name", "")) for tool in found]
    return "\n".join(f"[tool loaded: {name}]" for name in names if name)


def _mcp_use(block: Block) -> str:
    return f"[called {block.get('name', '')} {compact_json(block.get('input') or {})}]"


def _mcp_result(block: Block) -> str:
    text = _joined(block.get("content"))
    return tool_error_text(text) if block.get("is_error") else text


def _advice(block: Block) -> str:
    return str(_mapping(block.get("content")).get("text") or "")


RENDERINGS: Final[Mapping[str, Callable[[Block], str]]] = {
    "advisor_tool_result": _advice,
    "bash_code_execution_tool_result": _code_execution,
    "code_execution_tool_result": _code_execution,
    "mcp_tool_result": _mcp_result,
    "mcp_tool_use": _mcp_use,
    "text_editor_code_execution_tool_result": _text_editor,
    "tool_search_tool_result": _tool_search,
    "web_fetch_tool_result": _web_fetch,
    "web_search_tool_result": _web_search,
}


def _joined(content: Any) -> str:
    """The text of a string or of a list of blocks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(
        str(part["text"]) for part in content if isinstance(part, Mapping) and part.get("text")
    )


def _lines(*parts: Any, joint: str = "\n") -> str:
    return joint.join(str(part) for part in parts if part)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
