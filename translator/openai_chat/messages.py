"""Convert the conversation to Chat Completions messages, in the order that this API requires.

Tool messages directly follow the assistant message with their calls, one for each call. Images from
tool results follow in one user message, before the user's own content. Source: docs/mapping.md.
"""

from typing import Any, Final

from translator.errors import BadRequest
from translator.request.body_edits import UNSIGNED_CALL
from translator.request.builder import SYSTEM, RequestBuilder
from translator.request.content_parts import Block, Part, PartBuilder
from translator.request.conversation import AssistantTurn, Conversation, Entry, Output
from translator.request.history_shapes import (
    join_texts,
    merge_turns,
    move_system_text,
    split_calls,
    write_calls_as_text,
)
from translator.request.id_mapping import carried_fields, upstream_name
from translator.request.text_fallbacks import system_blocks

from .reasoning import CARRIED_FIELDS, HIDDEN_TEXT, REASONING_DETAILS, restore_reasoning


class ChatPartBuilder(PartBuilder):
    def text_part(self, text: str) -> Part:
        return {"type": "text", "text": text}

    def image_part(self, url: str) -> Part:
        return {"type": "image_url", "image_url": {"url": url}}

    def file_part(self, name: str, data_url: str) -> Part:
        return {"type": "file", "file": {"filename": name, "file_data": data_url}}

    def file_url_part(self, url: str) -> None:
        return None

    def set_cache_breakpoint(self, part: Part, cache_control: Block) -> None:
        part["prompt_cache_breakpoint"] = {"mode": "explicit"}


PART_BUILDER: Final = ChatPartBuilder()


class ChatTurn(AssistantTurn):
    """The content of one assistant turn, by the fields of a Chat Completions message."""

    RENDERED = "a {} of another provider is sent as text"
    OMITTED = "a {} of another provider has no meaning here"

    def __init__(self, content: str | list[Block], path: str, builder: RequestBuilder) -> None:
        self.texts: list[str] = []
        self.tool_calls: list[dict[str, Any]] = []
        self.thinking_blocks: list[Block] = []
        # OpenRouter's ``reasoning_details`` in the ids of the calls
        self.carried_details: list[Block] = []
        self.hidden_texts: list[str] = []  # reasoning in the records of the calls
        self.summaries: list[str] = []  # texts of the compaction blocks before this turn
        super().__init__(content, path, builder)

    def message(self, path: str) -> Entry | None:
        """Return the Chat Completions message of the turn; None if no content is left."""
        text, profile = "\n\n".join(self.texts), self.builder.profile
        if not text and not self.tool_calls:
            if self.thinking_blocks:
                self.builder.add_note(path, "ignored", "reasoning without its output is not sent")
            return None
        empty_content = "" if profile.empty_content else None
        message: Entry = {"role": "assistant", "content": text or empty_content}
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        has_reasoning = self.thinking_blocks or self.carried_details or self.hidden_texts
        if has_reasoning or profile.reasoning_required_with_tools:
            message |= restore_reasoning(
                self.thinking_blocks,
                self.carried_details,
                self.hidden_texts,
                path,
                self.builder,
                with_tools=bool(self.tool_calls),
            )
        return message

    def write(self, text: str) -> None:
        if text and not text.isspace():
            self.texts.append(text)

    def add_text(self, block: Block, path: str) -> None:
        text = block["text"]
        if self.tool_calls and text and not text.isspace():
            self.builder.add_note(path, "emulated", "text between tool calls is sent before them")
        self.write(text)

    def add_tool_use(self, block: Block, path: str) -> None:
        builder = self.builder
        call_id = self.start_call(block)
        function = {
            "name": upstream_name(block["name"]),
            "arguments": builder.arguments_json(block.get("input"), path),
        }
        carried = carried_fields(block["id"], builder.target)
        inner = carried.pop("function", None)
        details = carried.get(REASONING_DETAILS)
        if isinstance(hidden_text := carried.get(HIDDEN_TEXT), str):
            self.hidden_texts.append(hidden_text)
        if isinstance(details, list):
            self.carried_details += [entry for entry in details if isinstance(entry, dict)]
        fields = {name: value for name, value in carried.items() if name in CARRIED_FIELDS}
        is_first = not self.tool_calls
        if builder.profile.signed_calls and is_first and not (fields or isinstance(inner, dict)):
            fields = UNSIGNED_CALL
            builder.add_note(
                path, "emulated", "a call without a thought signature is marked as such"
            )
        call = fields | {
            "id": call_id,
            "type": "function",
            "function": {**inner, **function} if isinstance(inner, dict) else function,
        }
        builder.place(call, self.place)
        self.tool_calls.append(call)

    def add_thinking(self, block: Block, path: str) -> None:
        self.thinking_blocks.append(block)

    def add_compaction(self, block: Block, path: str) -> None:
        if block.get("content"):
            self.summaries.append(block["content"])
        self.builder.add_note(path, "emulated", "a compaction is sent as its summary")


class ChatConversation(Conversation):
    """The messages of a request, without the top-level system prompt."""

    PARTS = PART_BUILDER

    def add_assistant_turn(self, content: str | list[Block], path: str) -> list[str]:
        turn = ChatTurn(content, path, self.builder)
        self.entries += filter(None, [self.system_message(text, path) for text in turn.summaries])
        if (message := turn.message(path)) is not None:
            self.builder.place(message, path)
            self.entries.append(message)
        return turn.calls

    def add_system_text(self, parts: list[Part], path: str) -> None:
        text = "\n\n".join(part["text"] for part in parts)
        if (message := self.system_message(text, path)) is not None:
            self.builder.place(message, path)
            self.user_entries.append(message)

    def system_message(self, text: str, path: str) -> Entry | None:
        """Return the system message for its place; None if its text joins the system prompt."""
        if self.builder.profile.system_in_place:
            return self.message(system_role(self.builder), text)
        self.builder.system_additions.append(text)
        self.builder.add_note(
            path, "emulated", "a system message in mid conversation joins the first one"
        )
        return None

    def result_entry(self, call_id: str, output: Output) -> Entry:
        return {"role": "tool", "tool_call_id": call_id, "content": output}

    def orphan_parts(self, output: Output) -> list[Part]:
        return [self.PARTS.text_part(f"[tool result] {output}")]


def build_messages(builder: RequestBuilder) -> list[Entry]:
    """Return all messages of the request, the system prompt first."""
    conversation = ChatConversation(builder, media_in_output=False)
    history = conversation.entries
    for message in history:
        if isinstance(content := message["content"], list):
            message["content"] = join_texts(content)
    if history and history[-1]["role"] == "assistant" and not builder.profile.prefill:
        number = len(builder.request["messages"]) - 1
        raise BadRequest(
            f"messages.{number}", "this model does not support assistant message prefill"
        )
    conversation.mark_last_user_message()
    blocks, notes = system_blocks(builder.request)
    builder.add_notes(notes)
    parts = [
        part for block in blocks for part in PART_BUILDER.convert_block(block, "system", builder)
    ]
    parts += map(PART_BUILDER.text_part, builder.system_additions)
    if parts:
        prompt = conversation.message(system_role(builder), join_texts(parts))
        builder.place(prompt, SYSTEM)
        history.insert(0, prompt)
    messages = _fit_template(history, builder)
    if not messages:
        raise BadRequest("messages", "text content blocks must be non-empty")
    return messages


def system_role(builder: RequestBuilder) -> str:
    return "developer" if builder.profile.developer_role else "system"


def _fit_template(messages: list[Entry], builder: RequestBuilder) -> list[Entry]:
    """Give the messages the shape that the model's chat template accepts."""
    profile = builder.profile
    reshaped = messages
    for needs_shape, shape in (
        (not profile.system_role, move_system_text),
        (profile.single_calls, split_calls),
        (profile.merge_users, merge_turns),
        (not profile.tool_messages, write_calls_as_text),
    ):
        if needs_shape:
            reshaped = shape(reshaped)
    if reshaped is not messages and reshaped != messages:
        builder.add_note("messages", "emulated", "the history has the shape of its chat template")
    return reshaped
