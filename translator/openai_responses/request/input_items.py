"""Convert the conversation to ``input`` items, in the order that the Responses API requires.

An assistant turn is followed by the results of its tool calls, one for each call, then by the other
user content in order. Source: docs/mapping.md.
"""

from typing import Any, Final

from translator.openai_responses.types import InputItem, InputPart
from translator.request.builder import RequestBuilder
from translator.request.id_mapping import upstream_call_id
from translator.request.midstream_tools import TOOL_CHANGES
from translator.request.text_fallbacks import REPEATED_RESULT, tool_error_text

from .assistant_items import read_assistant_turn
from .content_parts import PART_BUILDER

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
