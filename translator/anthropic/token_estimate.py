"""Estimate tokens without a tokenizer, rather too high than too low: the only rule for it.

An estimate counts content. The base64 text of an image or a file is no content: an image has as
many tokens as its pixels need, however large its file is, and a PDF as many as its pages. (Gateways
that divided the bytes of a request charged 300,000 tokens for a screenshot: OmniRoute#8368,
langfuse#1437.)

Too low an estimate lets a client exceed the context window; too high an estimate only makes the
client compact its history earlier. The constants were calibrated on recorded requests with known
counts (see the test). Source: docs/mapping.md.

The functions take any decoded JSON, also a request that is invalid. They are linear in its size and
do not recurse.
"""

import binascii
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

CHARACTERS_PER_TOKEN: Final = 3.4
"""Characters of ASCII, on average: prose has more for each token, code and JSON have fewer."""
TOKENS_PER_WIDE: Final = 1.1
"""Tokens per character outside ASCII: 1 for Chinese, 0.5 for Cyrillic, 2 for emoji."""
CIPHER_CHARACTERS_PER_TOKEN: Final = 4
MEMBER_CHARACTERS: Final = 6
"""The quotes, colon and comma of a member of a JSON object."""
ITEM_CHARACTERS: Final = 2
NUMBER_CHARACTERS: Final = 5
TOKENS_PER_BLOCK: Final = 4
TOKENS_PER_MESSAGE: Final = 4
TOKENS_PER_CALL: Final = 12
"""Beside its name and its arguments."""
CALL_CHARACTERS: Final = round(TOKENS_PER_CALL * CHARACTERS_PER_TOKEN)
"""The same for streams, which count characters. ``python -m benchmarks.output_estimate`` compares
estimated outputs of recorded answers with what was reported."""
TOKENS_PER_TOOL: Final = 12
TOKENS_PER_REQUEST: Final = 24

# Tokens that providers add once for each request.
TOOL_PROMPT_TOKENS: Final = 550
CITATION_PROMPT_TOKENS: Final = 650
FORMAT_PROMPT_TOKENS: Final = 130

TOKENS_PER_IMAGE: Final = 1600
"""Also for audio and other media, whose length their bytes do not show."""
TOKENS_PER_PDF_PAGE: Final = 2500
"""Anthropic processes each page both as text and as an image."""
BYTES_PER_PDF_PAGE: Final = 75_000
MAX_PDF_PAGES: Final = 600
"""Anthropic's limit: https://docs.claude.com/en/docs/build-with-claude/pdf-support"""
MAX_UNSEEN_PAGES: Final = 100
"""The limit for a PDF whose pages are compressed, so that only its size is known."""
PDF_PIECE: Final = 2**20
"""Base64 characters of a PDF that are decoded at once, in 1 ms: other threads run in between."""
PAGE_MARKS: Final = (b"/Type/Page", b"/Type /Page")
TOKENS_PER_SERVER_TOOL: Final = 1200
MARGIN: Final = 1.15

BASE64_CHARACTERS: Final = 512
"""How many characters without white space show that a string of an unknown block is base64. No
word is so long."""
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_=-]*+")

UNCOUNTED: Final = frozenset({"type", "id", "tool_use_id", "cache_control", "encrypted_content"})
"""Members of a block that the model does not read. Search results have the ciphers."""

Pending = list[Any]
"""The values that are still to be counted."""


def estimate_tokens(request: Mapping[str, Any]) -> int:
    """Return the estimated input tokens of a request, valid or not; at least 1."""
    total = TOKENS_PER_REQUEST + _tokens(_text_or_blocks(request.get("system")))
    messages = [message for message in _list(request.get("messages")) if type(message) is dict]
    for message in messages:
        total += TOKENS_PER_MESSAGE + _tokens(_text_or_blocks(message.get("content")))
    tools = _list(request.get("tools"))
    if tools:
        total += TOOL_PROMPT_TOKENS + sum([_tool(tool) for tool in tools])
    config = request.get("output_config")
    output_format = config.get("format") if type(config) is dict else None
    if output_format := output_format or request.get("output_format"):
        total += FORMAT_PROMPT_TOKENS + _json(output_format)
    if any(_requests_citations(message.get("content")) for message in messages):
        total += CITATION_PROMPT_TOKENS
    return math.ceil(total * MARGIN)


def content_tokens(content: Any) -> int:
    """Return the estimated tokens of content alone: a text, blocks, or a body of any dialect."""
    return math.ceil(_tokens(_text_or_blocks(content)))


def tokens_of_characters(characters: int) -> int:
    """Return the estimated tokens of a text of which only the length is known."""
    return math.ceil(characters / CHARACTERS_PER_TOKEN)


def _tokens(pending: Pending) -> float:
    """Return the tokens of the pending values and of all values in them."""
    total = 0.0
    while pending:
        value = pending.pop()
        kind = type(value)
        if kind is str:
            total += _file_or_text(value)
        elif kind is list:
            pending += value
            total += len(value) * ITEM_CHARACTERS / CHARACTERS_PER_TOKEN
        elif kind is dict:
            total += _block(value, pending)
        elif value is not None:
            total += NUMBER_CHARACTERS / CHARACTERS_PER_TOKEN
    return total


def _file_or_text(value: str) -> float:
    """Return the tokens of a string in a block of an unknown type, which may be a file's data."""
    if value.startswith("data:"):
        return _media(value[5:70], value)
    is_data = len(value) >= BASE64_CHARACTERS and _BASE64.fullmatch(value, 0, BASE64_CHARACTERS)
    return TOKENS_PER_IMAGE if is_data else _text(value)


def _text_or_blocks(content: Any) -> Pending:
    """Return the pending values of a ``content``; a text that looks like media is a text."""
    if type(content) is str:
        return [{"type": "text", "text": content}]
    return [*content] if type(content) is list else [content]


def _block(block: dict[str, Any], pending: Pending) -> float:
    """Return the tokens of the block itself. What it contains is added to ``pending``."""
    kind = block.get("type")
    count = _BLOCKS.get(kind) if type(kind) is str else None
    if count is not None:
        return count(block, pending)
    names = [name for name in block if name not in UNCOUNTED]
    pending += [block[name] for name in names]
    return _text("".join(names)) + len(names) * MEMBER_CHARACTERS / CHARACTERS_PER_TOKEN


def _text_block(block: dict[str, Any], pending: Pending) -> float:
    text = block.get("text")
    return _text(text) if type(text) is str else 0.0


def _image(block: dict[str, Any], pending: Pending) -> float:
    return TOKENS_PER_IMAGE


def _document(block: dict[str, Any], pending: Pending) -> float:
    pending += [block.get("title"), block.get("context")]
    source = block.get("source")
    if type(source) is not dict:
        return TOKENS_PER_BLOCK + TOKENS_PER_PDF_PAGE
    kind = source.get("type")
    if kind == "text":
        return TOKENS_PER_BLOCK + _string(source.get("data"))
    if kind == "content":
        pending += _text_or_blocks(source.get("content"))
        return TOKENS_PER_BLOCK
    if kind == "base64":
        return TOKENS_PER_BLOCK + _pdf(source.get("data"))
    return TOKENS_PER_BLOCK + TOKENS_PER_PDF_PAGE


def _base64_source(source: dict[str, Any], pending: Pending) -> float:
    return _media(str(source.get("media_type"))[:64], source.get("data"))


def _media(media_type: str, data: Any) -> float:
    """Return the tokens of a file of which ``data`` is the base64 text or the ``data:`` URL."""
    return _pdf(data) if media_type.startswith("application/pdf") else TOKENS_PER_IMAGE


def _pdf(data: Any) -> float:
    """Return the tokens of a PDF by its pages; if these are compressed, by its size."""
    if type(data) is not str:
        return TOKENS_PER_PDF_PAGE
    head = data.find(",", 0, 100) + 1  # of a ``data:`` URL
    pages = 0
    for start in range(head, len(data), PDF_PIECE):
        try:
            piece = binascii.a2b_base64(data[start : start + PDF_PIECE])
        except (binascii.Error, ValueError):
            continue
        # Not ``/Type /Pages``, which is a node of the tree of pages.
        pages += sum([piece.count(mark) - piece.count(mark + b"s") for mark in PAGE_MARKS])
    if not pages:
        pages = min(max(len(data) // BYTES_PER_PDF_PAGE, 1), MAX_UNSEEN_PAGES)
    return TOKENS_PER_PDF_PAGE * min(pages, MAX_PDF_PAGES)


def _thinking(block: dict[str, Any], pending: Pending) -> float:
    # The signature contains the thinking text in encrypted form; the longer estimate applies.
    return max(_string(block.get("thinking")), _cipher(block.get("signature")))


def _redacted_thinking(block: dict[str, Any], pending: Pending) -> float:
    return _cipher(block.get("data"))


def _tool_result(block: dict[str, Any], pending: Pending) -> float:
    pending += _text_or_blocks(block.get("content"))
    return TOKENS_PER_BLOCK


def _call(block: dict[str, Any], pending: Pending) -> float:
    return TOKENS_PER_CALL + _string(block.get("name")) + _json(block.get("input"))


_BLOCKS: Final[Mapping[str, Callable[[dict[str, Any], Pending], float]]] = {
    "base64": _base64_source,
    "document": _document,
    "image": _image,
    "image_url": _image,  # of Chat Completions
    "input_image": _image,  # of Responses
    "mcp_tool_use": _call,
    "redacted_thinking": _redacted_thinking,
    "server_tool_use": _call,
    "text": _text_block,
    "thinking": _thinking,
    "tool_result": _tool_result,
    "tool_use": _call,
}
"""How the blocks are counted that are not counted as all their texts."""


def _tool(tool: Any) -> float:
    if type(tool) is not dict:
        return 0.0
    if tool.get("type") not in (None, "custom"):
        return TOKENS_PER_SERVER_TOOL
    words = _string(tool.get("name")) + _string(tool.get("description"))
    return TOKENS_PER_TOOL + words + _json(tool.get("input_schema"))


def _json(value: Any) -> float:
    """Return the tokens of a value that the model reads as JSON, so that its base64 is text."""
    total = 0.0
    characters = 0
    pending = [value]
    while pending:
        value = pending.pop()
        kind = type(value)
        if kind is str:
            total += _text(value)
        elif kind is dict:
            total += _text("".join(value))
            characters += len(value) * MEMBER_CHARACTERS
            pending += value.values()
        elif kind is list:
            characters += len(value) * ITEM_CHARACTERS
            pending += value
        else:
            characters += NUMBER_CHARACTERS
    return total + characters / CHARACTERS_PER_TOKEN


def _requests_citations(content: Any) -> bool:
    """Return whether a document or a search result in ``content`` enables citations."""
    for block in _list(content):
        if type(block) is not dict:
            continue
        for inner in (block, *_list(block.get("content"))):
            citations = inner.get("citations") if type(inner) is dict else None
            if type(citations) is dict and citations.get("enabled"):
                return True
    return False


def _list(value: Any) -> list[Any]:
    return value if type(value) is list else []


def _string(value: Any) -> float:
    return _text(value) if type(value) is str else 0.0


def _cipher(value: Any) -> float:
    return len(value) / CIPHER_CHARACTERS_PER_TOKEN if type(value) is str else 0.0


def _text(text: str) -> float:
    if text.isascii():
        return len(text) / CHARACTERS_PER_TOKEN
    narrow = len(text.encode("ascii", "ignore"))
    return narrow / CHARACTERS_PER_TOKEN + (len(text) - narrow) * TOKENS_PER_WIDE
