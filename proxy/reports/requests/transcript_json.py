"""A transcript in one JSON form: system prompt, tools, and turns of content blocks.

A content that may be a string or a list becomes a list of blocks. The response is the last turn. A
tool call has the id of the request that contained its result, and the time until that request. The
exact bytes are available from the report ``raw``.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from translator.request.text_fallbacks import BILLING_HEADER
from translator.stream.tool_arguments import compact_json

JsonObject = dict[str, Any]

CALLS: Final = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
TEXTLESS: Final = frozenset({"type", "kind", "cached", "tool_use_id"})
"""Fields that never contain text of the conversation, so redaction does not change them."""
TEXTLESS_IN_KNOWN: Final = TEXTLESS | {
    *("id", "name", "signed", "is_error", "result", "source_type", "media_type", "characters")
}
"""Fields that redaction does not change in blocks of a known type. In a block of an unknown type,
those that are not in ``TEXTLESS`` may contain text."""


def system_of(system: Any) -> list[JsonObject]:
    """Return the blocks of the system prompt.

    The kind ``attribution`` marks the billing header line that Claude Code adds.
    """
    blocks = blocks_of(system if system is not None else [])
    for block in blocks:
        kind = block.pop("type")
        attributed = str(block.get("text")).startswith(BILLING_HEADER)
        block["kind"] = "attribution" if attributed else kind
    return blocks


def tools_of(tools: Any) -> list[JsonObject]:
    """Return the offered tools. ``schema_sha`` does not depend on the order of keys."""
    return [_tool(tool) for tool in _dicts(tools)]


def turns_of(messages: Any, answer: Mapping[str, Any] | None, new_from: int) -> list[JsonObject]:
    """Return the message history and the response as turns.

    ``new`` is true if the previous request of the conversation did not contain the message.
    """
    history = [*_dicts(messages), *([answer] if answer is not None else [])]
    last = len(history) - (answer is not None)
    return [
        {
            "i": i,
            "role": message.get("role"),
            "new": i >= min(new_from, last),
            "blocks": blocks_of(message.get("content")),
        }
        for i, message in enumerate(history)
    ]


def blocks_of(content: Any) -> list[JsonObject]:
    """Return the blocks of a message's ``content``; a string becomes one text block."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    return [_block(block) for block in _dicts(content)]


def results_in(turns: list[JsonObject]) -> Iterator[tuple[str, int, bool]]:
    """Yield (tool_use_id, number of the turn, is_error) for each tool result in the turns."""
    for turn in turns:
        for block in turn["blocks"]:
            if block["type"] == "tool_result":
                yield str(block["tool_use_id"]), turn["i"], block["is_error"]


def calls_in(turns: list[JsonObject]) -> Iterator[JsonObject]:
    """Yield the blocks of calls to client tools (not server tools)."""
    return (b for turn in turns for b in turn["blocks"] if b["type"] == "tool_use")


def redact_text(block: JsonObject) -> JsonObject:
    """Return the block with each text replaced by its length; names and types do not change."""
    known = block.get("type") in CONVERTERS or block.get("type") in CALLS
    unchanged, redact = (TEXTLESS_IN_KNOWN, _redact_value) if known else (TEXTLESS, _length)
    return {name: v if name in unchanged else redact(v, name) for name, v in block.items()}


def _redact_value(value: Any, name: str) -> Any:
    if name == "blocks":
        return [redact_text(block) for block in value]
    if name == "input" and isinstance(value, dict):
        return {key: _length(inner) for key, inner in value.items()}
    return _length(value)


def _length(value: Any, _: str = "") -> str | None:
    if value is None:
        return None
    return f"[{len(value if isinstance(value, str) else compact_json(value))} characters]"


def _tool(tool: JsonObject) -> JsonObject:
    schema = tool.get("input_schema")
    result = {"name": tool.get("name"), "deferred": bool(tool.get("defer_loading"))}
    if tool.get("type") not in (None, "custom"):
        result["type"] = tool["type"]
    return {**result, "schema_sha": None if schema is None else _digest(schema)}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _block(block: JsonObject) -> JsonObject:
    kind = str(block.get("type"))
    result = {"type": kind, **CONVERTERS.get(kind, _other)(block)}
    if kind in CALLS:
        result["result"] = None
    if block.get("cache_control"):
        result["cached"] = True
    return result


def _other(block: JsonObject) -> JsonObject:
    return {name: value for name, value in block.items() if name not in ("type", "cache_control")}


def _thinking(block: JsonObject) -> JsonObject:
    return {"text": block.get("thinking"), "signed": bool(block.get("signature"))}


def _redacted_thinking(block: JsonObject) -> JsonObject:
    return {"text": None, "signed": True, "characters": len(str(block.get("data")))}


def _tool_result(block: JsonObject) -> JsonObject:
    return {
        "tool_use_id": block.get("tool_use_id"),
        "is_error": bool(block.get("is_error")),
        "blocks": blocks_of(block.get("content")),
    }


def _media(block: JsonObject) -> JsonObject:
    """Return an image or document block; the length of base64 data replaces the data."""
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    result = {"source_type": source.get("type"), "media_type": source.get("media_type")}
    result |= {name: block[name] for name in ("title", "context") if block.get(name)}
    match source.get("type"):
        case "base64":
            return {**result, "characters": len(str(source.get("data")))}
        case "text":
            return {**result, "text": source.get("data")}
        case "content":
            return {**result, "blocks": blocks_of(source.get("content"))}
    return {**result, **{name: source[name] for name in ("url", "file_id") if name in source}}


def _dicts(value: Any) -> list[JsonObject]:
    """Return the objects of a list.

    Other values occur only in requests that the gateway rejected; the report ``raw`` has them.
    """
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


CONVERTERS: Final[Mapping[str, Callable[[JsonObject], JsonObject]]] = {
    "document": _media,
    "image": _media,
    "redacted_thinking": _redacted_thinking,
    "thinking": _thinking,
    "tool_result": _tool_result,
}
"""Converters by block type. A block of another type is returned with its own fields."""
