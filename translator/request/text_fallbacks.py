"""Write content blocks as text for upstreams that have no field for such blocks."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from translator.anthropic import MessagesRequest
from translator.notes import Note

BILLING_HEADER: Final = "x-anthropic-billing-header"
"""The start of a system block with a hash of each request, which would defeat prompt caches."""

Block = dict[str, Any]


def document_text(block: Block) -> str:
    """Return a document as text: title, context and content; a placeholder if it is binary."""
    source = _mapping(block.get("source"))
    match source.get("type"):
        case "text":
            body = str(source.get("data", ""))
        case "content":
            body = _text_of(source.get("content"))
        case kind:
            body = f"[document: {source.get('url') or kind}]"
    return _lines(block.get("title"), block.get("context"), body)


def search_result_text(block: Block) -> str:
    """Return a search result block as text: title, source and content."""
    return _lines(block.get("title"), block.get("source"), _text_of(block.get("content")))


def server_result_text(block: Block) -> str:
    """Return another provider's server tool result as text; "" if it has no text.

    The text has no marks such as ``[called …]``: models imitate what stands in their own turns, and
    would write such marks instead of calling a tool.
    """
    render = RENDERERS.get(block["type"])
    return render(block) if render is not None else ""


REPEATED_RESULT: Final = ("repaired", "several results of the same call are sent as one")
"""The note for several results of one call. Anthropic rejects them ("each tool_use must have a
single result"), but a client with such a history could never continue its session."""


def tool_error_text(text: str) -> str:
    """Return a failed tool's output as text, for upstreams without an error flag."""
    return f"Error: {text}" if text else "Error"


def system_blocks(request: MessagesRequest) -> tuple[list[Block], list[Note]]:
    """Return the top-level system prompt as blocks, without empty blocks and billing header."""
    system = request.get("system")
    if isinstance(system, str):
        system = [{"type": "text", "text": system}]
    blocks: list[Block] = []
    notes: list[Note] = []
    for number, block in enumerate(system or []):
        if block["text"].startswith(BILLING_HEADER):
            notes.append(
                Note(
                    f"system.{number}",
                    "ignored",
                    "a hash of each request, which defeats prefix caches",
                )
            )
        elif block["text"] and not block["text"].isspace():
            blocks.append(block)
    return blocks, notes


def _web_search(block: Block) -> str:
    results = block.get("content")
    if not isinstance(results, list):
        return ""  # the content is an error object instead of a result
    return "\n".join(
        _lines(r.get("title"), r.get("url"), separator=" ")
        for r in results
        if isinstance(r, Mapping)
    )


def _web_fetch(block: Block) -> str:
    content = _mapping(block.get("content"))
    document = content.get("content")
    if not isinstance(document, dict):
        return ""
    return _lines(content.get("url"), document_text(document))


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


def _mcp_result(block: Block) -> str:
    text = _text_of(block.get("content"))
    return tool_error_text(text) if block.get("is_error") else text


def _advisor_result(block: Block) -> str:
    return str(_mapping(block.get("content")).get("text") or "")


RENDERERS: Final[Mapping[str, Callable[[Block], str]]] = {
    "advisor_tool_result": _advisor_result,
    "bash_code_execution_tool_result": _code_execution,
    "code_execution_tool_result": _code_execution,
    "mcp_tool_result": _mcp_result,
    "text_editor_code_execution_tool_result": _text_editor,
    "web_fetch_tool_result": _web_fetch,
    "web_search_tool_result": _web_search,
}


def _text_of(content: Any) -> str:
    """Return the text of ``content``: a string or a list of blocks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(
        str(part["text"]) for part in content if isinstance(part, Mapping) and part.get("text")
    )


def _lines(*parts: Any, separator: str = "\n") -> str:
    return separator.join(str(part) for part in parts if part)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
