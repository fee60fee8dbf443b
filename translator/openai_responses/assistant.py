"""One assistant turn of the history -> input items, in the order in which they were said."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from translator.arguments import compact_json
from translator.draft import Draft
from translator.errors import BadRequest
from translator.names import upstream_call_id, upstream_name
from translator.render import document_text, server_result_text

from .reasoning import restored, restored_compaction
from .types import InputItem

Block = dict[str, Any]


class Turn:
    """The items of one turn, as far as it was read."""

    def __init__(self) -> None:
        self.items: list[InputItem] = []
        self.calls: list[str] = []  # ids that wait for their results

    def say(self, text: str) -> None:
        # A plain string: output_text parts would need the ids of messages that nobody stored.
        if text and not text.isspace():
            self.items.append({"type": "message", "role": "assistant", "content": text})

    def forget_thoughts(self, path: str, draft: Draft) -> None:
        """Drop reasoning whose product is not in the history: OpenAI refuses it alone."""
        while self.items and self.items[-1]["type"] == "reasoning":
            self.items.pop()
            draft.note(path, "ignored", "reasoning whose product is gone stays behind")


def assistant_turn(content: str | list[Block], path: str, draft: Draft) -> Turn:
    turn = Turn()
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    for number, block in enumerate(content):
        here = f"{path}.content.{number}"
        kind = block["type"]
        if kind not in ASSISTANT_BLOCKS:
            raise BadRequest(f"{here}.type", f"{kind!r} is not supported by this upstream")
        ASSISTANT_BLOCKS[kind](turn, block, here, draft)
    if turn.items and turn.items[-1]["type"] == "reasoning":
        turn.forget_thoughts(path, draft)
    if draft.profile.phase:
        _mark_phases(turn)
    return turn


def _mark_phases(turn: Turn) -> None:
    """Commentary leads to a tool call, the rest is the answer. Anthropic has no slot for it."""
    phase = "final_answer"
    for item in reversed(turn.items):
        if item["type"] == "function_call":
            phase = "commentary"
        elif "role" in item and item["role"] == "assistant":
            item["phase"] = phase


def _text(turn: Turn, block: Block, path: str, draft: Draft) -> None:
    turn.say(block["text"])


def _tool_use(turn: Turn, block: Block, path: str, draft: Draft) -> None:
    given = block["input"]
    call_id = upstream_call_id(block["id"])
    turn.calls.append(call_id)
    turn.items.append(
        {
            "type": "function_call",
            "call_id": call_id,
            "name": upstream_name(block["name"]),
            # A string is what our own answer said when the arguments were broken JSON.
            "arguments": given if isinstance(given, str) else compact_json(given),
        }
    )


def _thinking(turn: Turn, block: Block, path: str, draft: Draft) -> None:
    item = restored(block, draft.target)
    if isinstance(item, str):
        draft.note(path, "ignored", item)
    else:
        turn.items.append({**item})


def _rendered(turn: Turn, block: Block, path: str, draft: Draft) -> None:
    text = server_result_text(block)
    if not text:
        _omitted(turn, block, path, draft)
        return
    turn.forget_thoughts(path, draft)
    turn.say(text)
    draft.note(path, "emulated", f"a {block['type']} is told as text")


def _document(turn: Turn, block: Block, path: str, draft: Draft) -> None:
    turn.say(document_text(block))
    draft.note(path, "emulated", "a document in an assistant turn is told as text")


def _compaction(turn: Turn, block: Block, path: str, draft: Draft) -> None:
    item = restored_compaction(block, draft.target)
    if item is not None:
        turn.items.append(item)
        return
    if block.get("content"):
        text = {"type": "input_text", "text": block["content"]}
        turn.items.append({"type": "message", "role": "developer", "content": [text]})
    draft.note(path, "emulated", "a compaction is told as its summary")


def _omitted(turn: Turn, block: Block, path: str, draft: Draft) -> None:
    turn.forget_thoughts(path, draft)
    draft.note(path, "ignored", f"a {block['type']} of an earlier answer is not told again")


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
    "redacted_thinking": _thinking,
    "server_tool_use": _omitted,
    "text": _text,
    "text_editor_code_execution_tool_result": _rendered,
    "thinking": _thinking,
    "tool_search_tool_result": _rendered,
    "tool_use": _tool_use,
    "web_fetch_tool_result": _rendered,
    "web_search_tool_result": _rendered,
}
