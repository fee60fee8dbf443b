"""Convert one assistant turn of the history to one Chat Completions assistant message."""

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from translator.errors import BadRequest
from translator.openai_chat.reasoning import CARRIED_FIELDS, restore_reasoning
from translator.openai_chat.reasoning_details import HIDDEN_TEXT, REASONING_DETAILS
from translator.openai_chat.types import ChatMessage, FunctionCall, ToolCall
from translator.request.body_edits import UNSIGNED_CALL
from translator.request.builder import RequestBuilder
from translator.request.call_arguments import arguments_json
from translator.request.id_mapping import carried_fields, upstream_call_id, upstream_name
from translator.request.text_fallbacks import document_text, server_result_text

Block = dict[str, Any]


class AssistantTurn:
    """The content of one assistant turn, by the fields of a Chat Completions message."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.calls: list[ToolCall] = []
        self.thinking_blocks: list[Block] = []
        # OpenRouter's ``reasoning_details`` in the ids of the calls
        self.carried_details: list[Block] = []
        self.hidden_texts: list[str] = []  # reasoning in the records of the calls
        self.summaries: list[str] = []  # texts of the compaction blocks before this turn


def read_assistant_turn(
    content: str | list[Block], path: str, builder: RequestBuilder
) -> AssistantTurn:
    turn = AssistantTurn()
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    for number, block in enumerate(content):
        block_path = f"{path}.content.{number}"
        kind = block["type"]
        if kind not in ASSISTANT_BLOCKS:
            raise BadRequest(f"{block_path}.type", f"{kind!r} is not supported by this upstream")
        ASSISTANT_BLOCKS[kind](turn, block, block_path, builder)
    return turn


def build_assistant_message(
    turn: AssistantTurn, path: str, builder: RequestBuilder
) -> ChatMessage | None:
    """Return the Chat Completions message of a turn; None if no content is left."""
    text = "\n\n".join(turn.texts)
    if not text and not turn.calls:
        if turn.thinking_blocks:
            builder.add_note(path, "ignored", "reasoning without its output is not sent")
        return None
    empty_content = "" if builder.profile.empty_content else None
    message: dict[str, Any] = {"role": "assistant", "content": text or empty_content}
    if turn.calls:
        message["tool_calls"] = turn.calls
    required = builder.profile.reasoning_required_with_tools
    if turn.thinking_blocks or turn.carried_details or turn.hidden_texts or required:
        message |= restore_reasoning(
            turn.thinking_blocks,
            turn.carried_details,
            turn.hidden_texts,
            path,
            builder,
            with_tools=bool(turn.calls),
        )
    return cast("ChatMessage", message)  # only the profile knows the name of the reasoning field


def _add_text(turn: AssistantTurn, block: Block, path: str, builder: RequestBuilder) -> None:
    text = block["text"]
    if not text or text.isspace():
        return
    if turn.calls:
        builder.add_note(path, "emulated", "text between tool calls is sent before them")
    turn.texts.append(text)


def _add_tool_use(turn: AssistantTurn, block: Block, path: str, builder: RequestBuilder) -> None:
    function: FunctionCall = {
        "name": upstream_name(block["name"]),
        "arguments": arguments_json(block.get("input"), path, builder),
    }
    call_id = upstream_call_id(block["id"], builder.target)
    if builder.target.recorded_calls:
        builder.note_recorded_call(block["id"])
    carried = carried_fields(block["id"], builder.target)
    inner = carried.pop("function", None)
    details = carried.get(REASONING_DETAILS)
    if isinstance(hidden_text := carried.get(HIDDEN_TEXT), str):
        turn.hidden_texts.append(hidden_text)
    if isinstance(details, list):
        turn.carried_details += [entry for entry in details if isinstance(entry, dict)]
    fields = {name: value for name, value in carried.items() if name in CARRIED_FIELDS}
    if builder.profile.signed_calls and not (turn.calls or fields or isinstance(inner, dict)):
        fields = UNSIGNED_CALL
        builder.add_note(path, "emulated", "a call without a thought signature is marked as such")
    call = fields | {
        "id": call_id,
        "type": "function",
        "function": {**inner, **function} if isinstance(inner, dict) else function,
    }
    builder.place(call, f"{path}.tool_use")
    turn.calls.append(cast("ToolCall", call))


def _add_thinking_block(
    turn: AssistantTurn, block: Block, path: str, builder: RequestBuilder
) -> None:
    turn.thinking_blocks.append(block)


def _add_rendered_text(
    turn: AssistantTurn, block: Block, path: str, builder: RequestBuilder
) -> None:
    text = server_result_text(block)
    if not text:
        _omit(turn, block, path, builder)
        return
    turn.texts.append(text)
    builder.add_note(path, "emulated", f"a {block['type']} of another provider is sent as text")


def _add_document(turn: AssistantTurn, block: Block, path: str, builder: RequestBuilder) -> None:
    turn.texts.append(document_text(block))
    builder.add_note(path, "emulated", "a document in an assistant turn is sent as text")


def _add_compaction(turn: AssistantTurn, block: Block, path: str, builder: RequestBuilder) -> None:
    if block.get("content"):
        turn.summaries.append(block["content"])
    builder.add_note(path, "emulated", "a compaction is sent as its summary")


def _omit(turn: AssistantTurn, block: Block, path: str, builder: RequestBuilder) -> None:
    builder.add_note(path, "ignored", f"a {block['type']} of another provider has no meaning here")


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
    "mcp_tool_result": _add_rendered_text,
    "mcp_tool_use": _omit,
    "redacted_thinking": _add_thinking_block,
    "server_tool_use": _omit,
    "text": _add_text,
    "text_editor_code_execution_tool_result": _add_rendered_text,
    "thinking": _add_thinking_block,
    "tool_search_tool_result": _omit,
    "tool_use": _add_tool_use,
    "web_fetch_tool_result": _add_rendered_text,
    "web_search_tool_result": _add_rendered_text,
}
