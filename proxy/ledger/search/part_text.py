"""Extract the text of a stored part: prompts, responses, tool inputs and results.

Binary content, signatures and the names of JSON fields are left out. The order of the passages is
that of the JSON.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from proxy.ledger.transcripts.body_parts import decode_json

MAX_TEXT: Final = 1_000_000
"""Characters of one part that are indexed; text after them is not found."""
MAX_DEPTH: Final = 40
SKIPPED_FIELDS: Final = frozenset(
    {"type", "role", "signature", "media_type", "encrypted_content", "cache_control"}
)
BINARY_TYPES: Final = ("base64", "redacted_thinking")  # a tuple: a type may be unhashable
SYSTEM, TOOLS, BODY = "system", "tools", "body"
SPEAKERS: Final = {"user": "user", "assistant": "assistant", "system": "system"}
KINDS: Final = {
    "tool_use": "tool input",
    "server_tool_use": "tool input",
    "mcp_tool_use": "tool input",
    "thinking": "thinking",
}
"""Block type -> kind of its passages; a type that ends with ``tool_result`` is a tool result."""


class Passage(NamedTuple):
    """A text of a part, and its kind: whose text it is."""

    kind: str
    text: str


def passages_of(part: bytes) -> list[Passage]:
    """Return the passages of a part, ``MAX_TEXT`` characters in all.

    A part that is not JSON is one passage.
    """
    try:
        value = decode_json(part)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return [Passage(BODY, part[: 4 * MAX_TEXT].decode(errors="replace")[:MAX_TEXT])]
    found, left = [], MAX_TEXT
    for passage in _passages_of_value(value):
        found.append(Passage(passage.kind, passage.text[:left]))
        left -= len(passage.text)
        if left <= 0:
            break
    return found


def _passages_of_value(value: Any) -> Iterator[Passage]:
    """Yield the passages of a message, a system block, the list of tools, or a rejected body."""
    match value:
        case {"role": str(role), "content": content}:
            yield from _passages_of_content(SPEAKERS.get(role, BODY), content)
        case {"messages": _} | {"model": _}:
            yield from (Passage(BODY, text) for text in _texts(value, 0))
        case list():
            yield from (Passage(TOOLS, text) for text in _texts(value, 0))
        case _:
            yield from (Passage(SYSTEM, text) for text in _texts(value, 0))


def _passages_of_content(speaker: str, content: Any) -> Iterator[Passage]:
    for block in content if isinstance(content, list) else [content]:
        kind = str(block.get("type")) if isinstance(block, dict) else ""
        kind = "tool result" if kind.endswith("tool_result") else KINDS.get(kind, speaker)
        yield from (Passage(kind, text) for text in _texts(block, 0))


def _texts(value: Any, depth: int) -> Iterator[str]:
    """Yield the strings in a JSON value, without binary data and without names of fields."""
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, list) and depth < MAX_DEPTH:
        for element in value:
            yield from _texts(element, depth + 1)
    elif isinstance(value, dict) and depth < MAX_DEPTH:
        is_binary = value.get("type") in BINARY_TYPES
        for name, field in value.items():
            if name not in SKIPPED_FIELDS and not (is_binary and name == "data"):
                yield from _texts(field, depth + 1)
