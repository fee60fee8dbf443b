"""One assistant turn of the history -> one assistant message."""

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from translator.arguments import compact_json
from translator.draft import Draft
from translator.errors import BadRequest
from translator.names import upstream_call_id, upstream_name
from translator.render import document_text, server_result_text

from .reasoning import carried_extras, restored_reasoning
from .types import ChatMessage, FunctionCall, ToolCall

Block = dict[str, Any]


class Turn:
    """What one assistant turn holds, sorted by where Chat keeps it."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.calls: list[ToolCall] = []
        self.thoughts: list[Block] = []
        self.summaries: list[str] = []  # of what was compacted before this turn


def read_turn(content: str | list[Block], path: str, draft: Draft) -> Turn:
    turn = Turn()
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    for number, block in enumerate(content):
        here = f"{path}.content.{number}"
        kind = block["type"]
        if kind not in ASSISTANT_BLOCKS:
            raise BadRequest(f"{here}.type", f"{kind!r} is not supported by this upstream")
        ASSISTANT_BLOCKS[kind](turn, block, here, draft)
    return turn


def assistant_message(turn: Turn, path: str, draft: Draft) -> ChatMessage | None:
    """The message of a turn; None when nothing of it is left."""
    text = "\n\n".join(turn.texts)
    if not text and not turn.calls:
        if turn.thoughts:
            draft.note(path, "ignored", "reasoning whose product is gone stays behind")
        return None
    nothing = "" if draft.profile.empty_content else None
    message: dict[str, Any] = {"role": "assistant", "content": text or nothing}
    if turn.calls:
        message["tool_calls"] = _with_extras(turn, draft) if turn.thoughts else turn.calls
    if turn.thoughts or draft.profile.reasoning_required_with_tools:
        message |= restored_reasoning(turn.thoughts, path, draft, with_tools=bool(turn.calls))
    return cast("ChatMessage", message)  # the vendor's field has its name from the profile


def _with_extras(turn: Turn, draft: Draft) -> list[Any]:
    """The calls, each with what its maker sent beside it and wants back."""
    extras = carried_extras(turn.thoughts, draft.target)
    return [
        call if call["id"] not in extras else {**call, "extra_content": extras[call["id"]]}
        for call in turn.calls
    ]


def _text(turn: Turn, block: Block, path: str, draft: Draft) -> None:
    text = block["text"]
    if not text or text.isspace():
        return
    if turn.calls:
        draft.note(path, "emulated", "text between tool calls stands before them")
    turn.texts.append(text)


def _tool_use(turn: Turn, block: Block, path: str, draft: Draft) -> None:
    given = block["input"]
    function: FunctionCall = {
        "name": upstream_name(block["name"]),
        # A string is what our own answer said when the arguments were broken JSON.
        "arguments": given if isinstance(given, str) else compact_json(given),
    }
    turn.calls.append(
        {"id": upstream_call_id(block["id"]), "type": "function", "function": function}
    )


def _thought(turn: Turn, block: Block, path: str, draft: Draft) -> None:
    turn.thoughts.append(block)


def _rendered(turn: Turn, block: Block, path: str, draft: Draft) -> None:
    text = server_result_text(block)
    if not text:
        _omitted(turn, block, path, draft)
        return
    turn.texts.append(text)
    draft.note(path, "emulated", f"a {block['type']} of another provider is told as text")


def _document(turn: Turn, block: Block, path: str, draft: Draft) -> None:
    turn.texts.append(document_text(block))
    draft.note(path, "emulated", "a document in an assistant turn is told as text")


def _compaction(turn: Turn, block: Block, path: str, draft: Draft) -> None:
    if block.get("content"):
        turn.summaries.append(block["content"])
    draft.note(path, "emulated", "a compaction is told as its summary")


def _omitted(turn: Turn, block: Block, path: str, draft: Draft) -> None:
    draft.note(path, "ignored", f"a {block['type']} of another provider means nothing here")


ASSISTANT_BLOCKS: Final[Mapping[str, Callable[[Turn, Block, str, Draft], None]]] = {
    "advisor_tool_result": _rendered,
    "bash_code_execution_tool_result": _rendered,
    "code_execution_tool_result": _rendered,
    "compaction": _compaction,
    "document": _document,
    "fallback": _omitted,
    "mcp_tool_listing": _omitted,
    "mcp_tool_result": _rendered,
    "mcp_tool_use": _rendered,
    "redacted_thinking": _thought,
    "server_tool_use": _omitted,
    "text": _text,
    "text_editor_code_execution_tool_result": _rendered,
    "thinking": _thought,
    "tool_search_tool_result": _rendered,
    "tool_use": _tool_use,
    "web_fetch_tool_result": _rendered,
    "web_search_tool_result": _rendered,
}
