"""The rules of Anthropic's API for the messages of a request, as documented and as its errors say.

Sources: the reference of the Messages API; the errors ``text content blocks must be non-empty``,
``text content blocks must contain non-whitespace text``, ``all messages must have non-empty
content except for the optional final assistant message``, ``tool_use ids must be unique``,
``tool_use ids were found without tool_result blocks immediately after``, ``unexpected tool_use_id
found in tool_result blocks``, ``Invalid signature in thinking block``.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from translator.stream.reasoning_signature import is_own_signature
from translator.web_search.results import is_own_content

Block = dict[str, Any]
ID = re.compile(r"[A-Za-z0-9_-]+")
SERVER_ID = re.compile(r"srvtoolu_[A-Za-z0-9_]+")
TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
SERVER_RESULTS = re.compile(r"(mcp|web_search|web_fetch|.*code_execution|tool_search)_tool_result")


def refusals(messages: list[dict[str, Any]], *, unsigned_thinking: bool = False) -> list[str]:
    """Return why Anthropic would refuse the messages, each with its path.

    ``unsigned_thinking``: the server is another one, which takes thinking without a signature.
    """
    return list(_refusals(messages, unsigned_thinking=unsigned_thinking))


def _refusals(messages: list[dict[str, Any]], *, unsigned_thinking: bool) -> Iterator[str]:
    seen: set[str] = set()
    open_calls: list[str] = []
    for number, message in enumerate(messages):
        path = f"messages.{number}"
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        last = number == len(messages) - 1
        if not blocks and not (last and message["role"] == "assistant"):
            yield f"{path}: all messages must have non-empty content"
        results = [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]
        yield from (f"{path}: {each}: no tool_result" for each in open_calls if each not in results)
        yield from (f"{path}: {each}: no tool_use" for each in results if each not in open_calls)
        open_calls = [b["id"] for b in blocks if b["type"] == "tool_use"]
        for place, block in enumerate(blocks):
            if not (unsigned_thinking and block["type"] == "thinking" and not block["signature"]):
                yield from _block_refusals(block, f"{path}.content.{place}")
            if block["type"] in {"tool_use", "server_tool_use", "mcp_tool_use"}:
                if block["id"] in seen:
                    yield f"{path}.content.{place}.id: tool_use ids must be unique"
                seen.add(block["id"])
        yield from _server_pairs(blocks, path)


def _block_refusals(block: Block, path: str) -> Iterator[str]:
    rules = RULES.get(block["type"])
    yield from rules(block, path) if rules else ()


def _text(block: Block, path: str) -> Iterator[str]:
    if not block["text"].strip():
        yield f"{path}.text: text content blocks must contain non-whitespace text"
    for citation in block.get("citations") or ():
        if citation["type"] == "web_search_result_location" and not citation["encrypted_index"]:
            yield f"{path}.citations: no encrypted_index"


def _thinking(block: Block, path: str) -> Iterator[str]:
    signature = block.get("signature") or block.get("data")
    if not signature or is_own_signature(signature):
        yield f"{path}: Invalid signature in {block['type']} block"


def _call(block: Block, path: str) -> Iterator[str]:
    pattern = ID if block["type"] == "tool_use" else SERVER_ID
    if not pattern.fullmatch(block["id"]):
        yield f"{path}.id: String should match pattern"
    if not TOOL_NAME.fullmatch(block["name"]):
        yield f"{path}.name: String should match pattern"
    if not isinstance(block["input"], dict):
        yield f"{path}.input: Input should be an object"


def _search_result(block: Block, path: str) -> Iterator[str]:
    results = block["content"] if isinstance(block["content"], list) else ()
    for encrypted in (result.get("encrypted_content") for result in results):
        if not encrypted or is_own_content(encrypted):
            yield f"{path}.content: Invalid encrypted_content in search result"


def _tool_result(block: Block, path: str) -> Iterator[str]:
    content = block.get("content")
    for place, inner in enumerate(content if isinstance(content, list) else ()):
        yield from _block_refusals(inner, f"{path}.content.{place}")


RULES: Final[Mapping[str, Callable[[Block, str], Iterator[str]]]] = {
    "redacted_thinking": _thinking,
    "server_tool_use": _call,
    "text": _text,
    "thinking": _thinking,
    "tool_result": _tool_result,
    "tool_use": _call,
    "web_search_tool_result": _search_result,
}


def _server_pairs(blocks: list[Block], path: str) -> Iterator[str]:
    """Each result of a server tool follows its call in the same message."""
    called: set[str] = set()
    for place, block in enumerate(blocks):
        if block["type"] in {"server_tool_use", "mcp_tool_use"}:
            called.add(block["id"])
        elif SERVER_RESULTS.fullmatch(block["type"]) and block["tool_use_id"] not in called:
            yield f"{path}.content.{place}.tool_use_id: no call of a server tool"
