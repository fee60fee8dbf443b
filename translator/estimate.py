"""How many input tokens a request has, without a tokenizer: an estimate that errs high.

One that is too low lets a client overrun the window; one that is a little high only makes it
compact its history a little early. The figures were calibrated on recorded requests whose
providers told the count (the test has them); mapping.md 6.1.
"""

import base64
import binascii
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from .anthropic.types import MessagesRequest
from .arguments import compact_json

ASCII_PER_TOKEN: Final = 3.4
"""Prose has more characters a token, code and JSON have fewer."""
TOKENS_PER_WIDE: Final = 1.1
"""Per character outside ASCII: one for Chinese, half of one for Cyrillic, two for emoji."""
CIPHER_PER_TOKEN: Final = 4
MESSAGE: Final = 4
TOOL: Final = 12
REQUEST: Final = 24

# What providers tell their models beside what we send, once a request.
TOOLS: Final = 550
CITATIONS: Final = 650
LAYOUT: Final = 130

IMAGE: Final = 1600
PDF_PAGE: Final = 2500
"""Anthropic reads a page as text and as an image."""
PDF_PAGE_BYTES: Final = 100_000
SERVER_TOOL: Final = 1200
MARGIN: Final = 1.15

_PAGE: Final = re.compile(rb"/Type\s*/Page\b")
_WIDE: Final = re.compile(r"[^\x00-\x7f]+")


def estimate_tokens(request: MessagesRequest) -> int:
    """Input tokens of a checked request, estimated; never 0."""
    total = REQUEST + _text_or_blocks(request.get("system"))
    for message in request["messages"]:
        total += MESSAGE + _text_or_blocks(message["content"])
    tools = request.get("tools") or []
    if tools:
        total += TOOLS + sum(_tool(tool) for tool in tools)
    config = request.get("output_config") or {}
    layout = config.get("format") or request.get("output_format")
    if layout:
        total += LAYOUT + _text(compact_json(layout))
    if any(_cites(message["content"]) for message in request["messages"]):
        total += CITATIONS
    return math.ceil(total * MARGIN)


def _cites(content: Any) -> bool:
    """Whether the model is asked for citations, by a document or by a tool's search results."""
    return isinstance(content, list) and any(
        (block.get("citations") or {}).get("enabled")
        if block["type"] in ("document", "search_result")
        else block["type"] == "tool_result" and _cites(block.get("content"))
        for block in content
    )


def _text_or_blocks(content: Any) -> float:
    if isinstance(content, str):
        return _text(content)
    return sum((_block(block) for block in content or ()), 0.0)


def _block(block: dict[str, Any]) -> float:
    count = _BLOCKS.get(block["type"])
    if count is not None:
        return count(block)
    return sum((_text(text) for text in _strings(block)), float(MESSAGE))


def _thinking(block: dict[str, Any]) -> float:
    # The text is in the cipher again.
    signature = block.get("signature") or ""
    return max(_text(block["thinking"]), len(signature) / CIPHER_PER_TOKEN)


def _document(block: dict[str, Any]) -> float:
    source = block["source"]
    frame = _text(block.get("title") or "") + _text(block.get("context") or "") + MESSAGE
    match source["type"]:
        case "text":
            return frame + _text(source["data"])
        case "content":
            return frame + _text_or_blocks(source["content"])
        case "base64":
            return frame + PDF_PAGE * _pages(source["data"])
        case _:
            return frame + PDF_PAGE


def _pages(data: str) -> int:
    try:
        pdf = base64.b64decode(data)
    except (binascii.Error, ValueError):
        pdf = b""
    return max(len(_PAGE.findall(pdf)), len(data) // PDF_PAGE_BYTES, 1)


def _tool(tool: dict[str, Any]) -> float:
    if tool.get("type") not in (None, "custom"):
        return SERVER_TOOL
    schema = compact_json(tool.get("input_schema") or {})
    return TOOL + _text(tool["name"]) + _text(tool.get("description") or "") + _text(schema)


def _strings(value: Any) -> Iterator[str]:
    """Every string in a block of which we know no better, and its numbers as text."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key not in ("encrypted_content", "cache_control"):
                yield str(key)
                yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
    elif value is not None:
        yield str(value)


def _text(text: str) -> float:
    if text.isascii():
        return len(text) / ASCII_PER_TOKEN
    wide = sum(len(run) for run in _WIDE.findall(text))
    return (len(text) - wide) / ASCII_PER_TOKEN + wide * TOKENS_PER_WIDE


_BLOCKS: Final[Mapping[str, Callable[[dict[str, Any]], float]]] = {
    "document": _document,
    "image": lambda _: IMAGE,
    "redacted_thinking": lambda block: len(block["data"]) / CIPHER_PER_TOKEN,
    "text": lambda block: _text(block["text"]),
    "thinking": _thinking,
    "tool_result": lambda block: MESSAGE + _text_or_blocks(block.get("content")),
}
