"""Combine the events of an Anthropic stream into the message that they describe.

The gateway's transcripts and non-streaming responses use this code, and so do tests that compare a
stream with a message.
"""

from collections.abc import Iterable
from typing import Any, Final

from translator.anthropic import Event, Message
from translator.stream.text_buffer import MAX_CHARACTERS, TextBuffer
from translator.stream.tool_arguments import parse_arguments

STRING_DELTAS: Final = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "input_json_delta": "partial_json",
}
"""Types of deltas with a piece of one string -> the field that contains the piece."""

EMPTY_BUFFER: Final = TextBuffer()
"""The text buffer before the first block; nothing writes to this buffer."""


class MessageFold:
    """Combines the events of a stream; ``message`` is the message so far, even in mid-stream."""

    def __init__(self) -> None:
        # The error in the ``error`` event, if the stream had one.
        self.error: dict[str, Any] | None = None
        self._message: Message = {}
        self._blocks: dict[Any, dict[str, Any]] = {}  # content blocks by their index
        self._buffers: dict[Any, TextBuffer] = {}  # the text or input of each block, by its index
        self._last_buffer = EMPTY_BUFFER
        self._previous_characters = 0  # number of characters in the blocks before the last one

    def feed(self, *events: Event) -> None:
        buffers, blocks = self._buffers, self._blocks
        for event in events:
            match event["type"]:
                case "content_block_delta":  # nearly every event is of this type
                    index, delta = event["index"], event["delta"]
                    kind = delta["type"]
                    if kind in STRING_DELTAS and index in buffers:
                        buffers[index].append(delta[STRING_DELTAS[kind]])
                    elif index in blocks:
                        block = blocks[index]
                        if delta["type"] == "citations_delta":
                            block["citations"] = [
                                *(block.get("citations") or []),
                                delta["citation"],
                            ]
                        else:
                            # For signature_delta and newer delta types, the fields of the delta
                            # replace those of the block.
                            block.update({k: v for k, v in delta.items() if k != "type"})
                case "message_start":
                    # A second start begins the message again (see ``SPLICED``).
                    self._message = {**event["message"]}
                    self._blocks.clear()
                    self._buffers.clear()
                    self._last_buffer, self._previous_characters = EMPTY_BUFFER, 0
                case "content_block_start":
                    # No block is added beyond the limit of stored characters.
                    characters = self._previous_characters + self._last_buffer.tell()
                    if characters < MAX_CHARACTERS:
                        self._previous_characters = characters
                        self._blocks[event["index"]] = {**event["content_block"]}
                        self._buffers[event["index"]] = self._last_buffer = TextBuffer()
                case "message_delta":
                    usage = event.get("usage") or {}
                    if None in usage.values():
                        usage = {name: count for name, count in usage.items() if count is not None}
                    self._message["usage"] = {**(self._message.get("usage") or {}), **usage}
                    self._message |= event["delta"]
                    if "context_management" in event:
                        self._message["context_management"] = event["context_management"]
                case "error":
                    self.error = event.get("error")

    @property
    def message(self) -> Message:
        """Return the message so far; an empty dict before ``message_start``."""
        if not self._message:
            return {}
        blocks = list(map(self._finished_block, self._blocks))
        # The message in message_start may already contain all content.
        if initial_content := self._message.get("content"):
            blocks = [*initial_content, *blocks]
        return {**self._message, "content": blocks}

    @property
    def characters(self) -> int:
        """Return the number of stored characters (text, thinking, tool arguments). Thread-safe."""
        return self._previous_characters + self._last_buffer.tell()

    @property
    def is_truncated(self) -> bool:
        """Return whether text is missing because it exceeds the limit of ``TextBuffer``."""
        return self._previous_characters + self._last_buffer.tell() >= MAX_CHARACTERS

    @property
    def last_block_type(self) -> str:
        """Return the type of the newest block; empty before the first. Thread-safe."""
        newest = list(self._blocks.values())[-1:]
        return str(newest[0].get("type", "")) if newest else ""

    def _finished_block(self, index: Any) -> dict[str, Any]:
        block = {**self._blocks[index]}
        text = self._buffers[index].getvalue()
        match block.get("type"):
            case "text" | "thinking" as kind:
                block[kind] = block.get(kind, "") + text
            case _ if "input" in block and text:
                value, _ = parse_arguments(text)
                block["input"] = value if isinstance(value, dict) else text
        return block


def fold(events: Iterable[Event]) -> Message:
    message_fold = MessageFold()
    message_fold.feed(*events)
    return message_fold.message
