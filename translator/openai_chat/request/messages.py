"""Convert the conversation to Chat Completions messages, in the order that this API requires.

Tool messages directly follow the assistant message with their calls, one for each call. Images from
tool results follow in one user message, before the user's own content. Source: docs/mapping.md.
"""

from typing import Any, Literal, NoReturn, cast

from translator.errors import BadRequest
from translator.openai_chat.types import ChatMessage, ContentPart
from translator.request.builder import SYSTEM, RequestBuilder
from translator.request.history_shapes import (
    join_texts,
    merge_turns,
    move_system_text,
    split_calls,
    write_calls_as_text,
)
from translator.request.id_mapping import upstream_call_id
from translator.request.midstream_tools import TOOL_CHANGES
from translator.request.text_fallbacks import REPEATED_RESULT, system_blocks, tool_error_text

from .assistant_messages import build_assistant_message, read_assistant_turn
from .content_parts import PART_BUILDER, is_text

IMAGE_PLACEHOLDER = "[image or file: in the next user message]"
NO_RESULT = "[no result recorded]"


class UserTurn:
    """The content between two assistant messages; tool results are sent first."""

    def __init__(self) -> None:
        # Ids of the tool calls in the assistant message before this turn.
        self.calls: list[str] = []
        self.results: dict[str, str] = {}
        self.result_paths: dict[str, str] = {}
        self.media: list[ContentPart] = []  # images and files from tool results
        self.messages: list[ChatMessage] = []  # user and system messages, in order

    def add(self, message: ChatMessage, path: str, builder: RequestBuilder) -> None:
        builder.place(message, path)
        self.messages.append(message)


def build_messages(builder: RequestBuilder) -> list[ChatMessage]:
    """Return all messages of the request, the system prompt first."""
    history: list[ChatMessage] = []
    user_turn = UserTurn()
    for number, message in enumerate(builder.request["messages"]):
        path = f"messages.{number}"
        match message["role"]:
            case "assistant":
                history += _order_user_content(user_turn, path, builder)
                user_turn = UserTurn()
                history += _assistant_messages(message, path, user_turn, builder)
            case "system":
                _read_system_message(message, number, user_turn, builder)
            case _:
                _read_user_message(message, path, user_turn, builder)
    history += _order_user_content(user_turn, "messages", builder)
    if history and history[-1]["role"] == "assistant" and not builder.profile.prefill:
        _refuse_prefill(builder)
    if builder.profile.cache_breakpoints and builder.request.get("cache_control"):
        _mark_last_user_message(history)
    messages = _fit_template(_system_prompt(builder) + history, builder)
    if not messages:
        raise BadRequest("messages", "text content blocks must be non-empty")
    return messages


def _fit_template(messages: list[ChatMessage], builder: RequestBuilder) -> list[ChatMessage]:
    """Give the messages the shape that the model's chat template accepts."""
    profile = builder.profile
    shapes = [
        shape
        for needs_shape, shape in (
            (not profile.system_role, move_system_text),
            (profile.single_calls, split_calls),
            (profile.merge_users, merge_turns),
            (not profile.tool_messages, write_calls_as_text),
        )
        if needs_shape
    ]
    if not shapes:
        return messages
    reshaped: Any = messages
    for shape in shapes:
        reshaped = shape(reshaped)
    if reshaped != messages:
        builder.add_note("messages", "emulated", "the history has the shape of its chat template")
    return cast("list[ChatMessage]", reshaped)


def system_role(builder: RequestBuilder) -> Literal["developer", "system"]:
    return "developer" if builder.profile.developer_role else "system"


def _system_prompt(builder: RequestBuilder) -> list[ChatMessage]:
    blocks, notes = system_blocks(builder.request)
    for note in notes:
        builder.add_note(note.path, note.fate, note.reason)
    parts: list[ContentPart] = []
    for block in blocks:
        parts += PART_BUILDER.convert_block(block, "system", builder)
    parts += map(PART_BUILDER.text_part, builder.system_additions)
    if not parts:
        return []
    message: ChatMessage = {"role": system_role(builder), "content": join_texts(parts)}
    builder.place(message, SYSTEM)
    return [message]


def _assistant_messages(
    message: dict[str, Any], path: str, user_turn: UserTurn, builder: RequestBuilder
) -> list[ChatMessage]:
    turn = read_assistant_turn(message["content"], path, builder)
    messages: list[ChatMessage] = []
    if turn.summaries:
        messages += filter(None, [_system_message(text, path, builder) for text in turn.summaries])
    if (assistant := build_assistant_message(turn, path, builder)) is not None:
        builder.place(assistant, path)
        messages.append(assistant)
    user_turn.calls = [call["id"] or "" for call in turn.calls]
    return messages


def _read_user_message(
    message: dict[str, Any], path: str, user_turn: UserTurn, builder: RequestBuilder
) -> None:
    content = message["content"]
    if isinstance(content, str):
        if content and not content.isspace():
            user_turn.add({"role": "user", "content": content}, path, builder)
        return
    parts: list[ContentPart] = []
    for number, block in enumerate(content):
        if block["type"] == "tool_result":
            _read_tool_result(block, f"{path}.content.{number}", user_turn, builder)
        else:
            parts += PART_BUILDER.convert_block(block, f"{path}.content.{number}", builder)
    if parts:
        user_turn.add({"role": "user", "content": parts}, path, builder)


def _read_tool_result(
    block: dict[str, Any], path: str, user_turn: UserTurn, builder: RequestBuilder
) -> None:
    content = block.get("content") or []
    if isinstance(content, str):
        text = "" if content.isspace() else content
    else:
        text = _tool_result_text(content, path, user_turn, builder)
    if block.get("is_error"):
        builder.add_note(f"{path}.is_error", "emulated", "the output starts with 'Error'")
        text = tool_error_text(text)
    call_id = upstream_call_id(block["tool_use_id"], builder.target)
    earlier = user_turn.results.get(call_id)
    if earlier is not None:
        builder.add_note(path, *REPEATED_RESULT)
        text = text if text == earlier else f"{earlier}\n{text}"
    user_turn.results[call_id] = text
    user_turn.result_paths[call_id] = f"{path}.tool_result"


def _tool_result_text(
    blocks: list[dict[str, Any]], path: str, user_turn: UserTurn, builder: RequestBuilder
) -> str:
    """Return the text of a tool result; images move to ``user_turn.media``."""
    texts: list[str] = []
    for number, block in enumerate(blocks):
        if block["type"] == "text":
            if block["text"] and not block["text"].isspace():
                texts.append(block["text"])
            continue
        for part in PART_BUILDER.convert_block(block, f"{path}.content.{number}", builder):
            part.pop("prompt_cache_breakpoint", None)
            texts.append(part["text"] if is_text(part) else IMAGE_PLACEHOLDER)
            if not is_text(part):
                user_turn.media.append(part)
                builder.add_note(path, "emulated", "media of a tool result moved to a user message")
    return "\n".join(texts)


def _read_system_message(
    message: dict[str, Any], number: int, user_turn: UserTurn, builder: RequestBuilder
) -> None:
    """Send a mid-conversation system message in its place, or add its text to the system prompt."""
    path = f"messages.{number}"
    if message.get("clear_at") == "next_user_message" and number < builder.last_user_message:
        builder.add_note(path, "emulated", "cleared: a user message follows")
        return
    effort = (message.get("output_config") or {}).get("effort")
    if effort and number < builder.effort_end:
        builder.effort = (effort, f"{path}.output_config.effort")
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    text_blocks = [block for block in blocks if block.get("type") not in TOOL_CHANGES]
    parts = [
        part for block in text_blocks for part in PART_BUILDER.convert_block(block, path, builder)
    ]
    text = "\n\n".join(part["text"] for part in parts if is_text(part))
    system_message = _system_message(text, path, builder) if text else None
    if system_message is not None:
        user_turn.add(system_message, path, builder)


def _system_message(text: str, path: str, builder: RequestBuilder) -> ChatMessage | None:
    """Return the system message for its place; None if its text was added to the system prompt."""
    if builder.profile.system_in_place:
        return {"role": system_role(builder), "content": text}
    builder.system_additions.append(text)
    builder.add_note(path, "emulated", "a system message in mid conversation joins the first one")
    return None


def _order_user_content(
    user_turn: UserTurn, path: str, builder: RequestBuilder
) -> list[ChatMessage]:
    """Return a turn's messages: tool results (one per call), their images, other user content."""
    messages: list[ChatMessage] = []
    for id_ in user_turn.calls:
        if id_ not in user_turn.results:
            builder.add_note(path, "repaired", "a tool call without its result")
        text = user_turn.results.pop(id_, NO_RESULT)
        result: ChatMessage = {"role": "tool", "tool_call_id": id_, "content": text}
        builder.place(result, user_turn.result_paths.get(id_, ""))
        messages.append(result)
    if user_turn.results or user_turn.media:
        _prepend_to_user_turn(user_turn, path, builder)
    for message in user_turn.messages:
        if isinstance(content := message["content"], list):
            message["content"] = join_texts(content)
        messages.append(message)
    return messages


def _prepend_to_user_turn(user_turn: UserTurn, path: str, builder: RequestBuilder) -> None:
    """Put images, and tool results without a matching call, before the user's own content."""
    parts = [*user_turn.media]
    for text in user_turn.results.values():
        builder.add_note(path, "repaired", "a tool result without its call is sent as user text")
        parts.append(PART_BUILDER.text_part(f"[tool result] {text}"))
    messages = user_turn.messages
    if messages and messages[0]["role"] == "user":
        messages[0]["content"] = [*parts, *_parts(messages[0])]
    else:
        messages.insert(0, {"role": "user", "content": parts})


def _parts(message: ChatMessage) -> list[ContentPart]:
    content = message.get("content")
    return content if isinstance(content, list) else [PART_BUILDER.text_part(content or "")]


def _refuse_prefill(builder: RequestBuilder) -> NoReturn:
    number = len(builder.request["messages"]) - 1
    raise BadRequest(f"messages.{number}", "this model does not support assistant message prefill")


def _mark_last_user_message(history: list[ChatMessage]) -> None:
    """Set the request's automatic cache breakpoint on the last part of the last user message."""
    last = next((m for m in reversed(history) if m["role"] == "user"), None)
    if last is not None:
        parts = _parts(last)
        PART_BUILDER.set_cache_breakpoint(parts[-1])
        last["content"] = parts
