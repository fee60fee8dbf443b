"""Folds a stream of Anthropic events into the message that they amount to.

Transcripts, non-streaming answers and the law "stream equals whole" all come from here.
"""

from collections.abc import Iterable
from typing import Any, Final

from translator.arguments import parse_arguments
from translator.said import MOST_CHARACTERS, Said

from .types import Event, Message

STRING_DELTAS: Final = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "input_json_delta": "partial_json",
}
"""Deltas that are pieces of one string, and the field that holds the piece."""

NOTHING: Final = Said()
"""What no block has said; nobody writes to it."""


class MessageFold:
    """Takes events as they come; ``message`` is what was said so far, also in mid stream."""

    def __init__(self) -> None:
        self.error: dict[str, Any] | None = None  # of the ``error`` event, if the stream had one
        self._head: Message = {}
        self._blocks: dict[Any, dict[str, Any]] = {}  # by index
        self._said: dict[Any, Said] = {}  # by index: the block's text or input
        self._newest = NOTHING
        self._before = 0  # characters of the blocks before it

    def feed(self, *events: Event) -> None:
        said, blocks = self._said, self._blocks
        for event in events:
            match event["type"]:
                case "content_block_delta":  # nearly all of them
                    index, delta = event["index"], event["delta"]
                    kind = delta["type"]
                    if kind in STRING_DELTAS and index in said:
                        said[index].append(delta[STRING_DELTAS[kind]])
                    elif index in blocks:
                        self._detail(blocks[index], delta)
                case "message_start":
                    self._head = {**event["message"]}
                case "content_block_start":
                    self._begin(event)
                case "message_delta":
                    self._end(event)
                case "error":
                    self.error = event.get("error")

    @property
    def message(self) -> Message:
        """The message so far; empty before ``message_start``."""
        if not self._head:
            return {}
        blocks = list(map(self._finished, self._blocks))
        if begun := self._head.get("content"):  # a message may start with all of its content
            blocks = [*begun, *blocks]
        return {**self._head, "content": blocks}

    @property
    def characters(self) -> int:
        """How much is kept so far: text, thinking and arguments of tools. From any thread."""
        return self._before + self._newest.tell()

    @property
    def full(self) -> bool:
        """More was said than is kept (see ``said.py``): the end of a text is missing."""
        return self._before + self._newest.tell() >= MOST_CHARACTERS

    @property
    def speaking(self) -> str:
        """The type of the newest block; empty before the first. From any thread."""
        newest = list(self._blocks.values())[-1:]
        return str(newest[0].get("type", "")) if newest else ""

    def _begin(self, event: Event) -> None:
        """Another block; none is kept after more than is kept was said."""
        characters = self._before + self._newest.tell()
        if characters < MOST_CHARACTERS:
            self._before = characters
            self._blocks[event["index"]] = {**event["content_block"]}
            self._said[event["index"]] = self._newest = Said()

    def _detail(self, block: dict[str, Any], delta: dict[str, Any]) -> None:
        if delta["type"] == "citations_delta":
            block["citations"] = [*(block.get("citations") or []), delta["citation"]]
        else:
            # signature_delta and newer kinds: their fields replace the block's.
            block.update({k: v for k, v in delta.items() if k != "type"})

    def _end(self, event: Event) -> None:
        told = event.get("usage") or {}
        if None in told.values():
            told = {name: count for name, count in told.items() if count is not None}
        self._head["usage"] = {**(self._head.get("usage") or {}), **told}
        self._head |= event["delta"]
        if "context_management" in event:
            self._head["context_management"] = event["context_management"]

    def _finished(self, index: Any) -> dict[str, Any]:
        block = {**self._blocks[index]}
        said = self._said[index].getvalue()
        match block.get("type"):
            case "text" | "thinking" as kind:
                block[kind] = block.get(kind, "") + said
            case _ if "input" in block and said:
                value, repaired = parse_arguments(said)
                block["input"] = said if repaired else value
        return block


def fold(events: Iterable[Event]) -> Message:
    """The message that these events amount to."""
    folded = MessageFold()
    folded.feed(*events)
    return folded.message
