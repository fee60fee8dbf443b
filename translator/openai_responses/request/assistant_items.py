"""Convert one assistant turn of the history to input items of the Responses API, in order."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from translator.errors import BadRequest
from translator.openai_responses.reasoning import (
    RECORDED_REASONING,
    restore_compaction,
    restore_reasoning,
)
from translator.openai_responses.types import InputItem
from translator.request.builder import RequestBuilder
from translator.request.call_arguments import arguments_json
from translator.request.id_mapping import carried_fields, upstream_call_id, upstream_name
from translator.request.text_fallbacks import document_text, server_result_text

Block = dict[str, Any]


MCP_ID: Final = "mcptoolu_"
"""The prefix of Anthropic's ids of MCP calls."""
MAX_ITEM_ID: Final = 64
CALLS: Final = frozenset({"function_call", "mcp_call"})


class AssistantTurn:
    """The Responses API input items of one assistant turn."""

    def __init__(self) -> None:
        self.items: list[InputItem] = []
        self.calls: list[str] = []  # ids of tool calls without results so far
        self.mcp_calls: dict[str, InputItem] = {}  # by the id of the call
        self._recorded_items = 0  # number of reasoning items from the record

    def add_text(self, text: str) -> None:
        # A plain string, since output_text parts would need the ids of messages that OpenAI has not
        # stored.
        if text and not text.isspace():
            self.items.append({"type": "message", "role": "assistant", "content": text})

    def add_recorded_reasoning(self, number: int, item: InputItem) -> None:
        """Add a reasoning item where it was in its response: after ``number`` content blocks."""
        self.items.insert(number + self._recorded_items, item)
        self._recorded_items += 1

    def drop_orphan_reasoning(self, path: str, builder: RequestBuilder) -> None:
        """Drop reasoning items that no other item follows: OpenAI rejects such items."""
        while self.items and self.items[-1]["type"] == "reasoning":
            self.items.pop()
            builder.add_note(path, "ignored", "reasoning without its output is not sent")


def read_assistant_turn(
    content: str | list[Block], path: str, builder: RequestBuilder
) -> AssistantTurn:
    turn = AssistantTurn()
    if isinstance(content, str):
        turn.add_text(content)
        for item in turn.items:
            builder.place(item, path)
        content = []
    for number, block in enumerate(content):
        block_path = f"{path}.content.{number}"
        kind = block["type"]
        if kind not in ASSISTANT_BLOCKS:
            raise BadRequest(f"{block_path}.type", f"{kind!r} is not supported by this upstream")
        known = len(turn.items)
        ASSISTANT_BLOCKS[kind](turn, block, block_path, builder)
        for item in turn.items[known:]:
            builder.place(item, f"{block_path}.{kind}")
    if turn.items and turn.items[-1]["type"] == "reasoning":
        turn.drop_orphan_reasoning(path, builder)
    if builder.profile.phase:
        _mark_phases(turn)
    return turn


def _mark_phases(turn: AssistantTurn) -> None:
    """Set ``phase``: ``commentary`` before a tool call, ``final_answer`` for other text."""
    phase = "final_answer"
    for item in reversed(turn.items):
        if item["type"] in CALLS:
            phase = "commentary"
        elif "role" in item and item["role"] == "assistant":
            item["phase"] = phase


def _add_text(turn: AssistantTurn, block: Block, path: str, builder: RequestBuilder) -> None:
    turn.add_text(block["text"])


def _add_tool_use(turn: AssistantTurn, block: Block, path: str, builder: RequestBuilder) -> None:
    call_id = upstream_call_id(block["id"], builder.target)
    turn.calls.append(call_id)
    if builder.target.recorded_calls:
        builder.note_recorded_call(block["id"])
        recorded = carried_fields(block["id"], builder.target)
        for number, item in recorded.get(RECORDED_REASONING, ()):
            turn.add_recorded_reasoning(number, item)
    turn.items.append(
        {
            "type": "function_call",
            "call_id": call_id,
            "name": upstream_name(block["name"]),
            "arguments": arguments_json(block.get("input"), path, builder),
        }
    )


def _add_mcp_call(turn: AssistantTurn, block: Block, path: str, builder: RequestBuilder) -> None:
    """Send a call of an MCP server back as the item that it was, if the request has that server.

    As text the model would imitate it: it would write calls instead of making them.
    """
    label = upstream_name(block.get("server_name") or "")
    if not builder.profile.mcp or label not in map(upstream_name, builder.mcp_server_names):
        _omit(turn, block, path, builder)
        return
    item: InputItem = {
        "type": "mcp_call",
        "id": f"mcp_{block['id'].removeprefix(MCP_ID)}"[:MAX_ITEM_ID],
        "server_label": label,
        "name": block["name"],
        "arguments": arguments_json(block.get("input"), path, builder),
    }
    turn.mcp_calls[block["id"]] = item
    turn.items.append(item)


def _add_mcp_result(turn: AssistantTurn, block: Block, path: str, builder: RequestBuilder) -> None:
    item = turn.mcp_calls.get(block["tool_use_id"])
    if item is not None:
        item["output"] = server_result_text(block)
    else:
        _add_rendered_text(turn, block, path, builder)


def _add_reasoning_item(
    turn: AssistantTurn, block: Block, path: str, builder: RequestBuilder
) -> None:
    item = restore_reasoning(block, builder.target)
    if isinstance(item, str):
        builder.add_note(path, "ignored", item)
    else:
        turn.items.append({**item})


def _add_rendered_text(
    turn: AssistantTurn, block: Block, path: str, builder: RequestBuilder
) -> None:
    text = server_result_text(block)
    if not text:
        _omit(turn, block, path, builder)
        return
    turn.drop_orphan_reasoning(path, builder)
    turn.add_text(text)
    builder.add_note(path, "emulated", f"a {block['type']} is sent as text")


def _add_document(turn: AssistantTurn, block: Block, path: str, builder: RequestBuilder) -> None:
    turn.add_text(document_text(block))
    builder.add_note(path, "emulated", "a document in an assistant turn is sent as text")


def _add_compaction(turn: AssistantTurn, block: Block, path: str, builder: RequestBuilder) -> None:
    item = restore_compaction(block, builder.target)
    if item is not None:
        turn.items.append(item)
        return
    if block.get("content"):
        text = {"type": "input_text", "text": block["content"]}
        turn.items.append({"type": "message", "role": "developer", "content": [text]})
    builder.add_note(path, "emulated", "a compaction is sent as its summary")


def _omit(turn: AssistantTurn, block: Block, path: str, builder: RequestBuilder) -> None:
    turn.drop_orphan_reasoning(path, builder)
    builder.add_note(path, "ignored", f"a {block['type']} of an earlier response is not sent again")


ASSISTANT_BLOCKS: Final[
    Mapping[str, Callable[[AssistantTurn, Block, str, RequestBuilder], None]]
] = {
    "advisor_tool_result": _add_rendered_text,
    "bash_code_execution_tool_result": _add_rendered_text,
    "code_execution_tool_result": _add_rendered_text,
    "compaction": _add_compaction,
    "document": _add_document,
    "fallback": _omit,
    "mcp_tool_listing": _omit,
    "mcp_tool_result": _add_mcp_result,
    "mcp_tool_use": _add_mcp_call,
    "redacted_thinking": _add_reasoning_item,
    "server_tool_use": _omit,
    "text": _add_text,
    "text_editor_code_execution_tool_result": _add_rendered_text,
    "thinking": _add_reasoning_item,
    "tool_search_tool_result": _omit,
    "tool_use": _add_tool_use,
    "web_fetch_tool_result": _add_rendered_text,
    "web_search_tool_result": _add_rendered_text,
}
