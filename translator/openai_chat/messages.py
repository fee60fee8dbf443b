"""Convert the conversation to Chat Completions messages, in the order that this API requires.

Tool messages directly follow the assistant message with their calls, one for each call. Images from
tool results follow in one user message, before the user's own content. Source: docs/mapping.md.

JSON types of Chat Completions, with the field names of OpenAI's documentation.

The types also have fields of compatible servers that this package reads or writes. Source:
https://platform.openai.com/docs/api-reference/chat

The content parts of Chat Completions messages.

Convert one assistant turn of the history to one Chat Completions assistant message.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NoReturn, Required, TypedDict, cast

from translator.errors import BadRequest
from translator.request.body_edits import UNSIGNED_CALL
from translator.request.builder import SYSTEM, RequestBuilder, arguments_json
from translator.request.content_parts import Block, PartBuilder
from translator.request.effective_tools import TOOL_CHANGES
from translator.request.history_shapes import (
    join_texts,
    merge_turns,
    move_system_text,
    split_calls,
    write_calls_as_text,
)
from translator.request.id_mapping import carried_fields, upstream_call_id, upstream_name
from translator.request.text_fallbacks import (
    REPEATED_RESULT,
    document_text,
    server_result_text,
    system_blocks,
    tool_error_text,
)

from .reasoning import CARRIED_FIELDS, HIDDEN_TEXT, REASONING_DETAILS, restore_reasoning

ContentPart = dict[str, Any]
"""One part of a message's content: ``text``, ``image_url`` or ``file``."""


class FunctionCall(TypedDict, total=False):
    name: str
    arguments: str | dict[str, Any] | None  # an object from Ollama-like servers


class ToolCall(TypedDict, total=False):
    index: int  # this occurs only in streams; some servers omit it or always send 0
    id: str | None
    type: Literal["function"]
    function: FunctionCall


class ChatMessage(TypedDict, total=False):
    role: Required[Literal["system", "developer", "user", "assistant", "tool"]]
    content: str | list[ContentPart] | None
    tool_calls: list[ToolCall]
    tool_call_id: str
    reasoning_content: str  # DeepSeek, Kimi, GLM, Qwen, llama.cpp and older vLLM send this
    reasoning: str  # vLLM, Groq, OpenRouter and Ollama send this
    reasoning_details: list[dict[str, Any]]  # OpenRouter: later requests must repeat it unchanged


class Delta(TypedDict, total=False):
    role: str | None
    content: str | list[ContentPart] | None  # Mistral sends a list
    refusal: str | None
    tool_calls: list[ToolCall] | None
    function_call: FunctionCall | None  # the field of OpenAI's older API, before tool_calls
    annotations: list[dict[str, Any]]
    reasoning_content: str | None
    reasoning: str | None
    reasoning_details: list[dict[str, Any]]


class Choice(TypedDict, total=False):
    index: int
    delta: Delta
    message: Delta  # this occurs in responses that are not streamed; some servers also stream it
    finish_reason: str | None
    stop_reason: str | int | None  # vLLM: the stop string that matched
    error: dict[str, Any]  # only OpenRouter sends this


class ChatChunk(TypedDict, total=False):
    """One chunk of a stream, or a complete response if its choice contains ``message``."""

    id: str
    model: str
    choices: list[Choice]
    usage: dict[str, Any] | None
    error: Any


class ChatPartBuilder(PartBuilder[ContentPart]):
    def text_part(self, text: str) -> ContentPart:
        return {"type": "text", "text": text}

    def image_part(self, url: str) -> ContentPart:
        return {"type": "image_url", "image_url": {"url": url}}

    def file_part(self, name: str, data_url: str) -> ContentPart:
        return {"type": "file", "file": {"filename": name, "file_data": data_url}}

    def file_url_part(self, url: str) -> None:
        return None

    def set_cache_breakpoint(self, part: ContentPart, cache_control: Block | None = None) -> None:
        part["prompt_cache_breakpoint"] = {"mode": "explicit"}


PART_BUILDER: Final = ChatPartBuilder()


def is_text(part: ContentPart) -> bool:
    return "text" in part


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
