"""Repair the event order of Anthropic-compatible servers whose content blocks overlap.

llama.cpp and LiteLLM start a block before they stop the one before it, and llama.cpp may omit
``message_start``. Clients such as the Anthropic SDKs accept neither. The repaired stream has one
open block at a time; the events of the other blocks wait, up to ``MAX_WAITING_CHARACTERS``. Text,
and thinking that its server does not sign, ends as soon as another block starts, so that the other
block need not wait; a late piece of it gets a block of its own.
"""

from collections.abc import Callable
from typing import Any, Final

from translator.anthropic import Event
from translator.errors import IllegalMove
from translator.message_stream.events_to_message import STRING_DELTAS
from translator.message_stream.stream_grammar import (
    BEFORE,
    EVENT_TYPES,
    INSIDE,
    StreamValidator,
    check_delta_type,
)
from translator.notes import Note
from translator.stream.text_buffer import TextBuffer

Delta = dict[str, Any]

MAX_WAITING_CHARACTERS: Final = 4 * 2**20
"""Maximum characters of waiting events in one stream. The answer of a model has far fewer."""
EVENT_CHARACTERS: Final = 100
"""What an event without text counts: about the memory that its object takes."""

LATE_BLOCKS: Final[dict[str, dict[str, Any]]] = {
    "text_delta": {"type": "text", "text": ""},
    "thinking_delta": {"type": "thinking", "thinking": "", "signature": ""},
}
"""Type of a delta that arrives after the end of its block -> the block that is started for it."""

MISSING_FIELDS: Final[dict[str, dict[str, Any]]] = {
    "thinking": {"signature": ""},
    "tool_use": {"input": {}},
}
"""Block type -> fields that llama.cpp omits when it starts such a block, and clients read."""

NO_SIGNATURE: Final[Delta] = {"type": "signature_delta", "signature": ""}

NO_START: Final = Note("content", "repaired", "the upstream sent no message_start")
SECOND_START: Final = Note("content", "ignored", "the upstream sent message_start again")
OVERLAP: Final = Note("content", "repaired", "the upstream's content blocks overlapped")
NO_STOP: Final = Note("content", "repaired", "the upstream did not stop a content block")
STRAY_STOP: Final = Note("content", "ignored", "the upstream stopped a block that was not open")
RENUMBERED: Final = Note("content", "repaired", "the upstream's block indices were not consecutive")
LATE_PIECE: Final = Note("content", "repaired", "a piece of a block arrived after the block's end")
LATE_SIGNATURE: Final = Note("content", "ignored", "a signature arrived after its block's end")


class _Block:
    """One content block of the upstream; while it waits, it stores its events."""

    __slots__ = ("deltas", "ends_early", "is_ended", "is_stopped", "start", "type")

    def __init__(self, content_block: dict[str, Any], start: Event) -> None:
        self.type = str(content_block["type"])
        # Whether the block may end before the upstream stops it. Servers that sign thinking start
        # its block with an empty signature.
        self.ends_early = self.type == "text" or (
            self.type == "thinking" and "signature" not in content_block
        )
        self.start = start  # the event to send, without its final index
        # Deltas to send later: a text of several pieces is stored as its type and one buffer.
        self.deltas: list[tuple[str, TextBuffer] | Delta] = []
        self.is_stopped = False  # whether the upstream stopped the block
        self.is_ended = False  # whether ``content_block_stop`` was sent to the client

    def store(self, delta: Delta) -> int:
        """Store a delta and return what it counts."""
        kind = delta["type"]
        name = STRING_DELTAS.get(kind)
        if name is None:
            self.deltas.append(delta)
            return EVENT_CHARACTERS + len(repr(delta))
        last = self.deltas[-1] if self.deltas else None
        if not isinstance(last, tuple) or last[0] != kind:
            last = (kind, TextBuffer())
            self.deltas.append(last)
        last[1].append(delta[name])
        return len(delta[name])

    def stored_deltas(self) -> list[Delta]:
        return [
            {"type": each[0], STRING_DELTAS[each[0]]: each[1].getvalue()}
            if isinstance(each, tuple)
            else each
            for each in self.deltas
        ]


class StreamRepair:
    """Turns the rest of a stream, from its first illegal event on, into legal events.

    ``feed`` takes one upstream event. An event that needs no change is returned as the same object.
    Raises IllegalMove for an event that cannot be repaired.
    """

    def __init__(
        self, validator: StreamValidator, message_start: Event, add_note: Callable[[Note], None]
    ) -> None:
        self._add_note = add_note
        self._is_started = validator.phase != BEFORE
        self._message_start = message_start  # the event to send if the upstream sends none
        self._sent_index = validator.index  # the index of the last block that was started
        self._known_index = validator.index  # the highest index that the upstream used
        self._queue: list[_Block] = []  # blocks that have not ended; the first one is open
        self._by_index: dict[int, _Block] = {}  # the upstream's latest block of each index
        self._waiting_characters = 0
        self._ends_early = True  # true until a piece arrives after the end of its block
        if validator.phase == INSIDE:
            block = _Block(validator.block, {})
            self._queue.append(block)
            self._by_index[validator.index] = block

    def feed(self, event: Event) -> list[Event]:
        kind = event["type"]
        if kind not in EVENT_TYPES:
            return [event]
        if kind == "message_start":
            # The first one is always legal, so it never arrives here.
            self._add_note(SECOND_START)
            return []
        events: list[Event] = []
        if not self._is_started:
            self._is_started = True
            self._add_note(NO_START)
            events.append(self._message_start)
        match kind:
            case "content_block_start":
                return events + self._start_block(event)
            case "content_block_delta":
                return events + self._add_delta(event)
            case "content_block_stop":
                return events + self._stop_block(event)
        # The blocks end before ``message_delta`` and ``message_stop``.
        if self._queue:
            self._add_note(NO_STOP)
        return [*events, *self.end_blocks(), event]

    def end_blocks(self) -> list[Event]:
        """Send and end all blocks, because no more content follows."""
        for block in self._queue:
            block.is_stopped = True
        return self._advance()

    def _start_block(self, event: Event) -> list[Event]:
        index = _index_of(event)
        content_block = event["content_block"]
        if not isinstance(content_block["type"], str):
            raise IllegalMove("content_block_start with a type that is no string")
        events: list[Event] = []
        previous = self._by_index.get(index)
        if previous is not None and not previous.is_stopped:
            self._add_note(NO_STOP)
            events = self._stop(previous)
        if self._queue:
            self._add_note(OVERLAP)
        elif index != self._known_index + 1:
            self._add_note(RENUMBERED)
        self._known_index = max(index, self._known_index)
        if has_missing_fields(event):
            fields = MISSING_FIELDS[content_block["type"]]
            event = {**event, "content_block": {**content_block, **fields, **content_block}}
        block = self._by_index[index] = _Block(content_block, event)
        return events + self._enqueue(block)

    def _enqueue(self, block: _Block) -> list[Event]:
        self._queue.append(block)
        if len(self._queue) == 1:
            return self._open_first()
        self._count_waiting(EVENT_CHARACTERS + len(repr(block.start)))
        return self._advance()

    def _add_delta(self, event: Event) -> list[Event]:
        index, delta = _index_of(event), event["delta"]
        name = STRING_DELTAS.get(delta["type"])
        if name is not None and not isinstance(delta[name], str):
            raise IllegalMove(f"{delta['type']} without a string")
        block = self._by_index.get(index)
        if block is None or block.is_stopped:
            if delta.get(name or "signature"):
                raise IllegalMove("content_block_delta for a block that is not open")
            return []
        if block.is_ended:
            return self._add_late_delta(index, delta)
        check_delta_type(block.type, delta["type"])
        if self._queue[0] is block:
            return [_with_index(event, self._sent_index)]
        self._count_waiting(block.store(delta))
        return []

    def _add_late_delta(self, index: int, delta: Delta) -> list[Event]:
        """Return the events for a delta of a block that already ended for the client.

        Text and thinking continue in a new block, and a late signature is ignored. Raises
        IllegalMove for any other delta with content.
        """
        kind = delta["type"]
        name = STRING_DELTAS.get(kind, "signature")
        if not delta.get(name):
            return []
        if kind == "signature_delta":
            self._add_note(LATE_SIGNATURE)
            return []
        if kind not in LATE_BLOCKS:
            raise IllegalMove(f"{kind} for a block that is not open")
        self._add_note(LATE_PIECE)
        self._ends_early = False
        start = {"type": "content_block_start", "content_block": LATE_BLOCKS[kind]}
        block = self._by_index[index] = _Block(LATE_BLOCKS[kind], start)
        self._known_index = max(index, self._known_index)
        events = self._enqueue(block)
        return events + self._add_delta(
            {"type": "content_block_delta", "index": index, "delta": delta}
        )

    def _stop_block(self, event: Event) -> list[Event]:
        block = self._by_index.get(_index_of(event))
        if block is None or block.is_stopped:
            self._add_note(STRAY_STOP)
            return []
        if self._queue and self._queue[0] is block and len(self._queue) == 1:
            block.is_stopped = block.is_ended = True
            self._queue.clear()
            return [_with_index(event, self._sent_index)]
        return self._stop(block)

    def _stop(self, block: _Block) -> list[Event]:
        block.is_stopped = True
        return self._advance()

    def _advance(self) -> list[Event]:
        """End the blocks at the front of the queue that may end, and open the next one."""
        events: list[Event] = []
        while self._queue:
            block = self._queue[0]
            must_wait = len(self._queue) == 1 or not (self._ends_early and block.ends_early)
            if must_wait and not block.is_stopped:
                break
            if not block.is_stopped and block.type == "thinking":
                events.append(_delta_event(self._sent_index, NO_SIGNATURE))
            events.append({"type": "content_block_stop", "index": self._sent_index})
            block.is_ended = True
            del self._queue[0]
            if self._queue:
                events += self._open_first()
        return events

    def _open_first(self) -> list[Event]:
        """Start the first block of the queue and send what it stored."""
        block = self._queue[0]
        self._sent_index += 1
        deltas = block.stored_deltas()
        block.deltas.clear()
        return [
            _with_index(block.start, self._sent_index),
            *(_delta_event(self._sent_index, delta) for delta in deltas),
        ]

    def _count_waiting(self, characters: int) -> None:
        self._waiting_characters += characters
        if self._waiting_characters > MAX_WAITING_CHARACTERS:
            raise IllegalMove("content blocks that overlap and are too large to wait")


def _index_of(event: Event) -> int:
    index = event["index"]
    if type(index) is not int:
        raise IllegalMove(f"{event['type']} without a block index")
    return index


def has_missing_fields(event: Event) -> bool:
    """Return whether a ``content_block_start`` lacks a field that clients read."""
    block = event["content_block"]
    return any(name not in block for name in MISSING_FIELDS.get(block["type"], ()))


def _with_index(event: Event, index: int) -> Event:
    return event if event.get("index") == index else {**event, "index": index}


def _delta_event(index: int, delta: Delta) -> Event:
    return {"type": "content_block_delta", "index": index, "delta": delta}
