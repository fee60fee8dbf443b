"""Estimate the input tokens of a request without a tokenizer, rather too high than too low.

Too low an estimate lets a client exceed the context window; too high an estimate only makes the
client compact its history earlier. The constants were calibrated on recorded requests with known
counts (see the test). Source: docs/mapping.md.
"""

import base64
import binascii
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from translator.anthropic.types import MessagesRequest
from translator.stream.tool_arguments import compact_json

ASCII_CHARACTERS_PER_TOKEN: Final = 3.4
"""An average: prose has more characters per token, code and JSON have fewer."""
TOKENS_PER_WIDE: Final = 1.1
"""Tokens per character outside ASCII: 1 for Chinese, 0.5 for Cyrillic, 2 for emoji."""
CIPHER_CHARACTERS_PER_TOKEN: Final = 4
TOKENS_PER_MESSAGE: Final = 4
TOKENS_PER_TOOL: Final = 12
TOKENS_PER_REQUEST: Final = 24

# Tokens that providers add once for each request.
TOOL_PROMPT_TOKENS: Final = 550
CITATION_PROMPT_TOKENS: Final = 650
FORMAT_PROMPT_TOKENS: Final = 130

TOKENS_PER_IMAGE: Final = 1600
TOKENS_PER_PDF_PAGE: Final = 2500
"""Anthropic processes each page both as text and as an image."""
BYTES_PER_PDF_PAGE: Final = 100_000
TOKENS_PER_SERVER_TOOL: Final = 1200
MARGIN: Final = 1.15

_PAGE: Final = re.compile(rb"/Type\s*/Page\b")
_WIDE: Final = re.compile(r"[^\x00-\x7f]+")


def estimate_tokens(request: MessagesRequest) -> int:
    """Return the estimated input tokens of a valid request, at least 1."""
    total = TOKENS_PER_REQUEST + _text_or_blocks(request.get("system"))
    for message in request["messages"]:
        total += TOKENS_PER_MESSAGE + _text_or_blocks(message["content"])
    tools = request.get("tools") or []
    if tools:
        total += TOOL_PROMPT_TOKENS + sum(_tool(tool) for tool in tools)
    config = request.get("output_config") or {}
    output_format = config.get("format") or request.get("output_format")
    if output_format:
        total += FORMAT_PROMPT_TOKENS + _text(compact_json(output_format))
    if any(_requests_citations(message["content"]) for message in request["messages"]):
        total += CITATION_PROMPT_TOKENS
    return math.ceil(total * MARGIN)


def _requests_citations(content: Any) -> bool:
    """Return whether a document or a search result in ``content`` enables citations."""
    return isinstance(content, list) and any(
        (block.get("citations") or {}).get("enabled")
        if block["type"] in ("document", "search_result")
        else block["type"] == "tool_result" and _requests_citations(block.get("content"))
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
    return sum((_text(text) for text in _strings(block)), float(TOKENS_PER_MESSAGE))


def _thinking(block: dict[str, Any]) -> float:
    # The signature contains the thinking text in encrypted form; the longer estimate applies.
    signature = block.get("signature") or ""
    return max(_text(block["thinking"]), len(signature) / CIPHER_CHARACTERS_PER_TOKEN)


def _document(block: dict[str, Any]) -> float:
    source = block["source"]
    heading = (
        _text(block.get("title") or "") + _text(block.get("context") or "") + TOKENS_PER_MESSAGE
    )
    match source["type"]:
        case "text":
            return heading + _text(source["data"])
        case "content":
            return heading + _text_or_blocks(source["content"])
        case "base64":
            return heading + TOKENS_PER_PDF_PAGE * _pages(source["data"])
        case _:
            return heading + TOKENS_PER_PDF_PAGE


def _pages(data: str) -> int:
    try:
        pdf = base64.b64decode(data)
    except (binascii.Error, ValueError):
        pdf = b""
    return max(len(_PAGE.findall(pdf)), len(data) // BYTES_PER_PDF_PAGE, 1)


def _tool(tool: dict[str, Any]) -> float:
    if tool.get("type") not in (None, "custom"):
        return TOKENS_PER_SERVER_TOOL
    schema = compact_json(tool.get("input_schema") or {})
    return (
        TOKENS_PER_TOOL + _text(tool["name"]) + _text(tool.get("description") or "") + _text(schema)
    )


def _strings(value: Any) -> Iterator[str]:
    """Yield all strings in a block of unknown type, and its numbers as text."""
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
        return len(text) / ASCII_CHARACTERS_PER_TOKEN
    wide_characters = sum(len(run) for run in _WIDE.findall(text))
    return (
        len(text) - wide_characters
    ) / ASCII_CHARACTERS_PER_TOKEN + wide_characters * TOKENS_PER_WIDE


_BLOCKS: Final[Mapping[str, Callable[[dict[str, Any]], float]]] = {
    "document": _document,
    "image": lambda _: TOKENS_PER_IMAGE,
    "redacted_thinking": lambda block: len(block["data"]) / CIPHER_CHARACTERS_PER_TOKEN,
    "text": lambda block: _text(block["text"]),
    "thinking": _thinking,
    "tool_result": lambda block: TOKENS_PER_MESSAGE + _text_or_blocks(block.get("content")),
}
