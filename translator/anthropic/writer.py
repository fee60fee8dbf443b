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


class Moves(dict[Move, Phase]):
    """What a phase becomes by each move that is legal in it; any other raises IllegalMove."""

    def __init__(self, phase: Phase, moves: dict[Move, Phase]) -> None:
        super().__init__(moves)
        self.phase = phase

    def __missing__(self, move: Move) -> Phase:
        raise IllegalMove(f"cannot {move.value} while {self.phase.value}")


_LEGAL: Final[dict[Phase, dict[Move, Phase]]] = {
    Phase.BEFORE: {Move.START: Phase.BETWEEN, Move.FAIL: Phase.AFTER},
    Phase.BETWEEN: {Move.OPEN: Phase.INSIDE, Move.FINISH: Phase.AFTER, Move.FAIL: Phase.AFTER},
    Phase.INSIDE: {Move.DELTA: Phase.INSIDE, Move.CLOSE: Phase.BETWEEN},
    Phase.AFTER: {},
}

TRANSITIONS: Final = {phase: Moves(phase, moves) for phase, moves in _LEGAL.items()}

BLOCK_DELTAS: Final[dict[str, frozenset[str]]] = {
    "text": frozenset({"text_delta", "citations_delta"}),
    "thinking": frozenset({"thinking_delta", "signature_delta"}),
    "tool_use": frozenset({"input_json_delta"}),
    "server_tool_use": frozenset({"input_json_delta"}),
    "mcp_tool_use": frozenset({"input_json_delta"}),
}
"""Which deltas fit which block; a block type that is not here arrives whole in its start."""


NONE: Final[frozenset[str]] = frozenset()


class MessageWriter:
    """Writes one message: start, blocks with rising indices, and exactly one ending."""

    def __init__(self) -> None:
        self.phase = Phase.BEFORE
        self.index = -1  # of the open block, or of the last one
        self.block: dict[str, Any] = {}  # the open block as it was started
        self._fitting = NONE  # deltas that the block takes
        self.written: list[Event] = []
        """Of the step that runs: who begins one puts a new list here, and delivers it."""

    def start(self, *, message_id: str, model: str, usage: dict[str, Any], **more: Any) -> None:
        """Write ``message_start``, with what else its message tells."""
        self.phase = TRANSITIONS[self.phase][Move.START]
        message: dict[str, Any] = {
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
            **more,
        }
        self.written.append({"type": "message_start", "message": message})

    def open_block(self, block: dict[str, Any]) -> None:
        self.phase = TRANSITIONS[self.phase][Move.OPEN]
        self.index += 1
        self.block = block
        self._fitting = BLOCK_DELTAS.get(block["type"], NONE)
        self.written.append(
            {"type": "content_block_start", "index": self.index, "content_block": block}
        )

    def delta(self, delta: dict[str, Any]) -> None:
        if delta["type"] not in self._fitting:
            raise IllegalMove(f"cannot send {delta['type']} into {self.block.get('type')!r}")
        self.phase = TRANSITIONS[self.phase][Move.DELTA]
        self.written.append({"type": "content_block_delta", "index": self.index, "delta": delta})

    def text(self, piece: str) -> Event:
        """A ``text_delta`` for one who knows that the open block ``flows`` and cannot break off.

        It is not ``written``: who asks for it delivers it.
        """
        return {
            "type": "content_block_delta",
            "index": self.index,
            "delta": {"type": "text_delta", "text": piece},
        }

    def close_block(self, finished: dict[str, Any] | None = None) -> None:
        """Close the open block; ``finished`` is shown on the event (opt-in extra ``blocks``)."""
        self.phase = TRANSITIONS[self.phase][Move.CLOSE]
        stop: Event = {"type": "content_block_stop", "index": self.index}
        if finished is not None:
            stop["content_block"] = finished
        self.written.append(stop)

    def finish(
        self,
        *,
        stop_reason: str,
        usage: dict[str, Any],
        stop_sequence: str | None = None,
        stop_details: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Write ``message_delta``, with what else it tells, and ``message_stop``."""
        self.phase = TRANSITIONS[self.phase][Move.FINISH]
        delta: dict[str, Any] = {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
        if stop_details is not None:
            delta["stop_details"] = stop_details
        ending: Event = {"type": "message_delta", "delta": delta, "usage": usage, **more}
        self.written += (ending, {"type": "message_stop"})

    def fail(self, *, error_type: str, message: str) -> None:
        """End in ``event: error``; an open block is closed first, so that starts and stops pair."""
        if self.phase is Phase.INSIDE:
            self.close_block()
        self.phase = TRANSITIONS[self.phase][Move.FAIL]
        self.written.append({"type": "error", "error": {"type": error_type, "message": message}})
