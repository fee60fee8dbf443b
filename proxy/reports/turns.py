"""One transcript in one shape, whatever a client wrote: system, tools, turns of blocks.

Texts that may be strings or lists are lists of blocks here, the answer is the last turn, and a
tool call tells which request brought its result, and how long that took. Exact bytes are another
report's (``raw``). Source: reports-and-clients.md 1.4.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from translator.arguments import compact_json
from translator.render import BILLING_HEADER

Told = dict[str, Any]

CALLS: Final = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
WORDLESS: Final = frozenset({"type", "kind", "cached", "tool_use_id"})
"""Fields of any block that hold no words: they stay when the words are blotted out."""
WORDLESS_IN: Final = WORDLESS | {
    *("id", "name", "signed", "is_error", "result", "source_type", "media_type", "characters")
}
"""The same of a block whose shape is known here; in another one they may say anything."""


def system_of(system: Any) -> list[Told]:
    """The system prompt, piece by piece; ``attribution`` is a line that a client adds by itself."""
    blocks = blocks_of(system if system is not None else [])
    for block in blocks:
        kind = block.pop("type")
        attributed = str(block.get("text")).startswith(BILLING_HEADER)
        block["kind"] = "attribution" if attributed else kind
    return blocks


def tools_of(tools: Any) -> list[Told]:
    """What the model was offered. ``schema_sha``: equal for equal schemas, whatever their order."""
    return [_tool(tool) for tool in _dicts(tools)]


def turns_of(messages: Any, answer: Mapping[str, Any] | None, new_from: int) -> list[Told]:
    """The history, and what was answered. ``new``: it was not sent by the request before."""
    told = [*_dicts(messages), *([answer] if answer is not None else [])]
    last = len(told) - (answer is not None)
    return [
        {
            "i": i,
            "role": message.get("role"),
            "new": i >= min(new_from, last),
            "blocks": blocks_of(message.get("content")),
        }
        for i, message in enumerate(told)
    ]


def blocks_of(content: Any) -> list[Told]:
    """The blocks of a content; a string is one of text."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    return [_block(block) for block in _dicts(content)]


def results_in(turns: list[Told]) -> Iterator[tuple[str, int, bool]]:
    """Each tool result: its call, the number of its turn, whether it is an error."""
    for turn in turns:
        for block in turn["blocks"]:
            if block["type"] == "tool_result":
                yield str(block["tool_use_id"]), turn["i"], block["is_error"]


def calls_in(turns: list[Told]) -> Iterator[Told]:
    """The calls of tools that the client runs."""
    return (b for turn in turns for b in turn["blocks"] if b["type"] == "tool_use")


def blotted(told: Told) -> Told:
    """The same block without a word of it: each is its length, and names and kinds stay."""
    known = told.get("type") in SHAPES or told.get("type") in CALLS
    kept, blot = (WORDLESS_IN, _blotted) if known else (WORDLESS, _length)
    return {name: v if name in kept else blot(v, name) for name, v in told.items()}


def _blotted(value: Any, name: str) -> Any:
    if name == "blocks":
        return [blotted(block) for block in value]
    if name == "input" and isinstance(value, dict):
        return {key: _length(inner) for key, inner in value.items()}
    return _length(value)


def _length(value: Any, _: str = "") -> str | None:
    if value is None:
        return None
    return f"[{len(value if isinstance(value, str) else compact_json(value))} characters]"


def _tool(tool: Told) -> Told:
    schema = tool.get("input_schema")
    told = {"name": tool.get("name"), "deferred": bool(tool.get("defer_loading"))}
    if tool.get("type") not in (None, "custom"):
        told["type"] = tool["type"]
    return {**told, "schema_sha": None if schema is None else _digest(schema)}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _block(block: Told) -> Told:
    kind = str(block.get("type"))
    told = {"type": kind, **SHAPES.get(kind, _as_it_is)(block)}
    if kind in CALLS:
        told["result"] = None
    if block.get("cache_control"):
        told["cached"] = True
    return told


def _as_it_is(block: Told) -> Told:
    return {name: value for name, value in block.items() if name not in ("type", "cache_control")}


def _thinking(block: Told) -> Told:
    return {"text": block.get("thinking"), "signed": bool(block.get("signature"))}


def _redacted_thinking(block: Told) -> Told:
    return {"text": None, "signed": True, "characters": len(str(block.get("data")))}


def _tool_result(block: Told) -> Told:
    return {
        "tool_use_id": block.get("tool_use_id"),
        "is_error": bool(block.get("is_error")),
        "blocks": blocks_of(block.get("content")),
    }


def _media(block: Told) -> Told:
    """A picture or document; of one that came along its size, not itself."""
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    told = {"source_type": source.get("type"), "media_type": source.get("media_type")}
    told |= {name: block[name] for name in ("title", "context") if block.get(name)}
    match source.get("type"):
        case "base64":
            return {**told, "characters": len(str(source.get("data")))}
        case "text":
            return {**told, "text": source.get("data")}
        case "content":
            return {**told, "blocks": blocks_of(source.get("content"))}
    return {**told, **{name: source[name] for name in ("url", "file_id") if name in source}}


def _dicts(value: Any) -> list[Told]:
    """The objects of a list; what a refused request holds elsewhere is told by ``raw`` alone."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


SHAPES: Final[Mapping[str, Callable[[Told], Told]]] = {
    "document": _media,
    "image": _media,
    "redacted_thinking": _redacted_thinking,
    "thinking": _thinking,
    "tool_result": _tool_result,
}
"""Blocks that have a shape of their own here; any other has its own fields."""
