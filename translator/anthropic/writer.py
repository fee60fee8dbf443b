"""The grammar of one Anthropic message stream, and nothing else.

Every stream this package produces is written here, so no dialect can produce an illegal one.
Source: Anthropic documentation, "Streaming Messages".
"""

import enum
from typing import Any, Final

from translator.errors import IllegalMove

from .types import Event


class Phase(enum.StrEnum):
    BEFORE = "before"  # nothing sent yet
    BETWEEN = "between"  # message_start sent, no block open
    INSIDE = "inside"  # exactly one block is open: Anthropic blocks never overlap
    AFTER = "after"  # message_stop or error sent; nothing may follow


class Move(enum.StrEnum):
    START = "start"
    OPEN = "open"
    DELTA = "delta"
    CLOSE = "close"
    FINISH = "finish"
    FAIL = "fail"


TRANSITIONS: Final[dict[Phase, dict[Move, Phase]]] = {
    Phase.BEFORE: {Move.START: Phase.BETWEEN, Move.FAIL: Phase.AFTER},
    Phase.BETWEEN: {Move.OPEN: Phase.INSIDE, Move.FINISH: Phase.AFTER, Move.FAIL: Phase.AFTER},
    Phase.INSIDE: {Move.DELTA: Phase.INSIDE, Move.CLOSE: Phase.BETWEEN},
    Phase.AFTER: {},
}

BLOCK_DELTAS: Final[dict[str, frozenset[str]]] = {
    "text": frozenset({"text_delta", "citations_delta"}),
    "thinking": frozenset({"thinking_delta", "signature_delta"}),
    "tool_use": frozenset({"input_json_delta"}),
    "server_tool_use": frozenset({"input_json_delta"}),
    "mcp_tool_use": frozenset({"input_json_delta"}),
}
"""Which deltas fit which block; a block type that is not here arrives whole in its start."""


class MessageWriter:
    """Writes one message: start, blocks with rising indices, and exactly one ending."""

    def __init__(self) -> None:
        self.phase = Phase.BEFORE
        self.index = -1  # of the open block, or of the last one
        self.block: dict[str, Any] = {}  # the open block as it was started
        self._fitting: frozenset[str] = frozenset()  # deltas that the block takes
        self.written: list[Event] = []
        """Of the step that runs: who begins one empties it, and delivers it if it breaks off."""

    def start(self, *, message_id: str, model: str, usage: dict[str, Any]) -> list[Event]:
        self._move(Move.START)
        message: dict[str, Any] = {
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        event: Event = {"type": "message_start", "message": message}
        self.written.append(event)
        return [event]

    def open_block(self, block: dict[str, Any]) -> list[Event]:
        self._move(Move.OPEN)
        self.index += 1
        self.block = block
        self._fitting = BLOCK_DELTAS.get(block.get("type", ""), frozenset())
        event: Event = {"type": "content_block_start", "index": self.index, "content_block": block}
        self.written.append(event)
        return [event]

    def delta(self, delta: dict[str, Any]) -> list[Event]:
        if delta["type"] not in self._fitting:
            raise IllegalMove(f"cannot send {delta['type']} into {self.block.get('type')!r}")
        if self.phase is not Phase.INSIDE:  # where a delta changes nothing: this is the hot path
            self._move(Move.DELTA)
        event: Event = {"type": "content_block_delta", "index": self.index, "delta": delta}
        self.written.append(event)
        return [event]

    def text(self, piece: str) -> Event:
        """A ``text_delta`` for one who knows that the open block ``flows`` and cannot break off."""
        return {
            "type": "content_block_delta",
            "index": self.index,
            "delta": {"type": "text_delta", "text": piece},
        }

    def close_block(self, finished: dict[str, Any] | None = None) -> list[Event]:
        """Close the open block; ``finished`` is shown on the event (opt-in extra ``blocks``)."""
        self._move(Move.CLOSE)
        stop: Event = {"type": "content_block_stop", "index": self.index}
        if finished is not None:
            stop["content_block"] = finished
        self.written.append(stop)
        return [stop]

    def finish(
        self,
        *,
        stop_reason: str,
        usage: dict[str, Any],
        stop_sequence: str | None = None,
        stop_details: dict[str, Any] | None = None,
    ) -> list[Event]:
        self._move(Move.FINISH)
        delta: dict[str, Any] = {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
        if stop_details is not None:
            delta["stop_details"] = stop_details
        events: list[Event] = [
            {"type": "message_delta", "delta": delta, "usage": usage},
            {"type": "message_stop"},
        ]
        self.written += events
        return events

    def fail(self, *, error_type: str, message: str) -> list[Event]:
        """End in ``event: error``; an open block is closed first, so that starts and stops pair."""
        closing = self.close_block() if self.phase is Phase.INSIDE else []
        self._move(Move.FAIL)
        event: Event = {"type": "error", "error": {"type": error_type, "message": message}}
        self.written.append(event)
        return [*closing, event]

    def _move(self, move: Move) -> None:
        try:
            self.phase = TRANSITIONS[self.phase][move]
        except KeyError:
            raise IllegalMove(f"cannot {move.value} while {self.phase.value}") from None
