"""Convert the conversation to ``input`` items, in the order that the Responses API requires.

An assistant turn is followed by the results of its tool calls, one for each call, then by the other
user content in order. Source: docs/mapping.md.

The input parts of Responses API messages.

Convert one assistant turn of the history to input items of the Responses API, in order.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from translator.errors import BadRequest
from translator.request.builder import RequestBuilder, arguments_json
from translator.request.content_parts import Block, PartBuilder
from translator.request.effective_tools import TOOL_CHANGES
from translator.request.id_mapping import carried_fields, upstream_call_id, upstream_name
from translator.request.text_fallbacks import (
    REPEATED_RESULT,
    document_text,
    server_result_text,
    tool_error_text,
)

from .reasoning import RECORDED_REASONING, restore_compaction, restore_reasoning
from .types import CacheBreakpoint, InputFile, InputImage, InputItem, InputPart, InputText


class InputPartBuilder(PartBuilder[InputPart]):
    def text_part(self, text: str) -> InputText:
        return {"type": "input_text", "text": text}

    def image_part(self, url: str) -> InputImage:
        return {"type": "input_image", "detail": "auto", "image_url": url}

    def file_part(self, name: str, data_url: str) -> InputFile:
        return {"type": "input_file", "filename": name, "file_data": data_url}

    def file_url_part(self, url: str) -> InputFile:
        return {"type": "input_file", "file_url": url}

    def set_cache_breakpoint(self, part: InputPart, cache_control: Block) -> None:
        """Set a cache breakpoint; without this capability the server chooses the cached prefix."""
        breakpoint_: CacheBreakpoint = {"mode": "explicit"}
        if cache_control.get("ttl") == "1h":
            breakpoint_["ttl"] = "12h"
        part["prompt_cache_breakpoint"] = breakpoint_


PART_BUILDER: Final = InputPartBuilder()


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


NO_RESULT: Final = "[no result recorded]"
MEDIA_PLACEHOLDER: Final = "[image or file: in the next user message]"
CONTINUE: Final = (
    "Your last message is unfinished. Continue it exactly where it ends, and repeat nothing of it."
)
MAX_BREAKPOINTS: Final = 4  # cache breakpoints in one request, a limit of OpenAI

Output = str | list[InputPart]


class UserTurn:
    """The content between two assistant turns; tool results are sent first."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls  # ids of the tool calls in the assistant turn before this turn
        self.results: dict[str, Output] = {}
        self.result_paths: dict[str, str] = {}
        self.media: list[InputPart] = []  # images and files from tool results that accept only text
        self.items: list[InputItem] = []  # items of user and system messages, in order


def build_input(builder: RequestBuilder) -> list[InputItem]:
    """Return the items of all messages, without the top-level system prompt."""
    items: list[InputItem] = []
    user_turn = UserTurn([])
    for number, message in enumerate(builder.request["messages"]):
        path = f"messages.{number}"
        match message["role"]:
            case "assistant":
                turn = read_assistant_turn(message["content"], path, builder)
                items += _order_user_content(user_turn, path, builder)
                items += turn.items
                user_turn = UserTurn(turn.calls)
            case "system":
                _read_system_message(message, number, user_turn, builder)
            case _:
                _read_user_message(message, path, user_turn, builder)
    items += _order_user_content(user_turn, "messages", builder)
    _mark_last_user_message(items, builder)
    if items and items[-1].get("role") == "assistant":
        # The Responses API starts a new turn after a final assistant message, so the model needs
        # the instruction to continue the message.
        builder.add_note(path, "emulated", "the model is instructed to continue the prefilled text")
        instruction: InputItem = {"type": "message", "role": "developer"}
        items.append({**instruction, "content": [PART_BUILDER.text_part(CONTINUE)]})
    return items


def limit_breakpoints(items: list[InputItem]) -> None:
    """Keep only the last four cache breakpoints, which cover the longest prefixes."""
    marked_parts = [
        part
        for item in items
        if isinstance(content := item.get("content"), list)
        for part in content
        if "prompt_cache_breakpoint" in part
    ]
    for part in marked_parts[:-MAX_BREAKPOINTS]:
        del part["prompt_cache_breakpoint"]


def _read_user_message(
    message: dict[str, Any], path: str, user_turn: UserTurn, builder: RequestBuilder
) -> None:
    content = message["content"]
    if isinstance(content, str):
        parts = PART_BUILDER.convert_content(content, path, builder)
    else:
        parts = []
        for number, block in enumerate(content):
            block_path = f"{path}.content.{number}"
            if block["type"] == "tool_result":
                _read_tool_result(block, block_path, user_turn, builder)
            else:
                parts += PART_BUILDER.convert_block(block, block_path, builder)
    if parts:
        item: InputItem = {"type": "message", "role": "user", "content": parts}
        builder.place(item, path)
        user_turn.items.append(item)


def _read_tool_result(
    block: dict[str, Any], path: str, user_turn: UserTurn, builder: RequestBuilder
) -> None:
    parts = PART_BUILDER.convert_content(block.get("content"), path, builder)
    texts: list[str] = []
    media: list[InputPart] = []
    for part in parts:
        if "prompt_cache_breakpoint" in part:
            del part["prompt_cache_breakpoint"]
        if part["type"] == "input_text":
            texts.append(part["text"])
        else:
            media.append(part)
    if media and not builder.profile.media_in_tool_output:
        user_turn.media += media
        texts += [MEDIA_PLACEHOLDER] * len(media)
        media = []
        builder.add_note(path, "emulated", "media of a tool result moved to a user message")
    output: Output = "\n".join(texts)
    if block.get("is_error"):
        # The Responses API has no error flag, and the model must not read the error as a normal
        # result.
        builder.add_note(f"{path}.is_error", "emulated", "the output starts with 'Error'")
        parts = [PART_BUILDER.text_part(tool_error_text("")), *parts]
        output = tool_error_text("\n".join(texts))
    if media:
        output = parts
    call_id = upstream_call_id(block["tool_use_id"], builder.target)
    earlier = user_turn.results.get(call_id)
    if earlier is not None:
        builder.add_note(path, *REPEATED_RESULT)
        output = output if output == earlier else _join_outputs(earlier, output)
    user_turn.results[call_id] = output
    user_turn.result_paths[call_id] = f"{path}.tool_result"


def _join_outputs(first: Output, second: Output) -> Output:
    """Return the outputs of two results of one call as one output."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n{second}"
    return [
        part
        for output in (first, second)
        for part in ([PART_BUILDER.text_part(output)] if isinstance(output, str) else output)
    ]


def _read_system_message(
    message: dict[str, Any], number: int, user_turn: UserTurn, builder: RequestBuilder
) -> None:
    """Convert a mid-conversation system message to a developer message in the same place."""
    path = f"messages.{number}"
    if message.get("clear_at") == "next_user_message" and number < builder.last_user_message:
        builder.add_note(path, "emulated", "cleared: a user message follows")
        return
    effort = (message.get("output_config") or {}).get("effort")
    if effort and effort in builder.profile.efforts and builder.profile.configuration_update:
        user_turn.items.append({"type": "configuration_update", "reasoning": {"effort": effort}})
    elif effort and number < builder.effort_end:
        builder.effort = (effort, f"{path}.output_config.effort")
    content = message["content"]
    if not isinstance(content, str):
        content = [block for block in content if block.get("type") not in TOOL_CHANGES]
    parts = PART_BUILDER.convert_content(content, path, builder)
    if parts:
        item: InputItem = {"type": "message", "role": "developer", "content": parts}
        builder.place(item, path)
        user_turn.items.append(item)


def _order_user_content(user_turn: UserTurn, path: str, builder: RequestBuilder) -> list[InputItem]:
    """Return a turn's items: tool results (one per call), images and files, other user content."""
    items: list[InputItem] = []
    for call_id in user_turn.calls:
        if call_id not in user_turn.results:
            builder.add_note(path, "repaired", "a tool call without its result")
        output = user_turn.results.pop(call_id, NO_RESULT)
        item: InputItem = {"type": "function_call_output", "call_id": call_id, "output": output}
        builder.place(item, user_turn.result_paths.get(call_id, ""))
        items.append(item)
    if not user_turn.results and not user_turn.media:
        return items + user_turn.items
    parts = [*user_turn.media]
    for orphan in user_turn.results.values():
        builder.add_note(path, "repaired", "a tool result without its call is sent as user text")
        parts.append(PART_BUILDER.text_part("[tool result]"))
        parts += [PART_BUILDER.text_part(orphan)] if isinstance(orphan, str) else orphan
    other_items = user_turn.items
    if other_items and other_items[0].get("role") == "user":
        parts += other_items[0]["content"]
        other_items = other_items[1:]
    return [*items, {"type": "message", "role": "user", "content": parts}, *other_items]


def _mark_last_user_message(items: list[InputItem], builder: RequestBuilder) -> None:
    """Set the request's automatic cache breakpoint on the last part of the last user message."""
    automatic = builder.request.get("cache_control")
    if not automatic or not builder.profile.cache_breakpoints:
        return
    user_messages = [item for item in items if item.get("role") == "user"]
    # A breakpoint that the client set on this part has precedence, since it may last longer.
    if user_messages and "prompt_cache_breakpoint" not in user_messages[-1]["content"][-1]:
        PART_BUILDER.set_cache_breakpoint(user_messages[-1]["content"][-1], automatic)
