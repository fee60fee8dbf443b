"""Check the order of events from Anthropic-compatible servers; valid events pass unchanged.

These rules allow more than ``MessageWriter`` writes: events, blocks and deltas of unknown types
pass where a known type is valid.
"""

from typing import Any, Final

from translator.anthropic.types import Event
from translator.errors import IllegalMove
from translator.message_stream.stream_grammar import BLOCK_DELTAS

BEFORE: Final = "before message_start"
BETWEEN: Final = "between blocks"
INSIDE: Final = "inside a block"
ENDING: Final = "after message_delta"
AFTER: Final = "after the end"

TRANSITIONS: Final[dict[str, dict[str, str]]] = {
    BEFORE: {"message_start": BETWEEN, "error": AFTER},
    BETWEEN: {"content_block_start": INSIDE, "message_delta": ENDING, "error": AFTER},
    INSIDE: {"content_block_delta": INSIDE, "content_block_stop": BETWEEN},
    ENDING: {"message_delta": ENDING, "message_stop": AFTER, "error": AFTER},
    AFTER: {},
}

EVENT_TYPES: Final = frozenset(
    {
        "content_block_delta",
        "content_block_start",
        "content_block_stop",
        "error",
        "message_delta",
        "message_start",
        "message_stop",
    }
)

NO_DELTAS: Final[frozenset[str]] = frozenset()
KNOWN_DELTAS: Final = frozenset().union(*BLOCK_DELTAS.values())
MAX_SHOWN_INDEX: Final = 10**9


class StreamValidator:
    """Validates one stream; ``check`` raises IllegalMove without changing the state."""

    def __init__(self) -> None:
        self.phase = BEFORE
        self.index = -1  # index of the open content block, or of the last one
        self.content_block: dict[str, Any] = {}  # the open block as in its start event
        self.valid_events = 0  # the number of valid events in the current or last call of ``check``
        # Valid delta types of the open block, if its type is known.
        self._allowed_deltas: frozenset[str] = NO_DELTAS
        # Whether message_start contained the complete message, with a stop reason: this happens for
        # a message that was created inside a server tool.
        self._is_complete = False

    def check(self, *events: Event) -> None:
        """Raise IllegalMove at the first invalid event; ``valid_events`` counts those before it."""
        self.valid_events = 0
        for event in events:
            kind = event["type"]
            if kind == "content_block_delta" and self.phase == INSIDE:  # nearly every event
                if (
                    event["index"] != self.index
                    or event["delta"]["type"] not in self._allowed_deltas
                ):
                    self._check_delta(event)
            elif kind in EVENT_TYPES or self.phase == AFTER:  # other types are ping or unknown
                transitions = TRANSITIONS[self.phase]
                next_phase = (
                    transitions[kind] if kind in transitions else self._phase_after_complete(kind)
                )
                if kind == "content_block_start":
                    self._start_block(event)
                elif kind == "content_block_stop":
                    self._check_index(event)
                elif kind == "message_start":
                    self._is_complete = event["message"].get("stop_reason") is not None
                self.phase = next_phase
            self.valid_events += 1

    def _phase_after_complete(self, kind: str) -> str:
        if self._is_complete and kind == "message_stop" and self.phase == BETWEEN:
            return AFTER
        raise IllegalMove(f"{kind} {self.phase}")

    def _start_block(self, event: Event) -> None:
        if event["index"] != self.index + 1:
            raise IllegalMove(f"start of {_block_name(event)} after block {self.index}")
        self.content_block = event["content_block"]
        self._allowed_deltas = BLOCK_DELTAS.get(self.content_block["type"], NO_DELTAS)
        self.index += 1

    def _check_index(self, event: Event) -> None:
        if event["index"] != self.index:
            raise IllegalMove(f"{event['type']} of {_block_name(event)} inside block {self.index}")

    def _check_delta(self, event: Event) -> None:
        self._check_index(event)
        check_delta_type(self.content_block["type"], event["delta"]["type"])


def check_delta_type(block_type: str, delta_type: str) -> None:
    """Raise IllegalMove if blocks of this type have no such deltas, and both types are known."""
    allowed = BLOCK_DELTAS.get(block_type)
    if allowed is not None and delta_type in KNOWN_DELTAS and delta_type not in allowed:
        raise IllegalMove(f"{delta_type} in a block of type {block_type}")


def _block_name(event: Event) -> str:
    """Return a name for error messages, which must not quote long or unknown values."""
    index = event["index"]
    known = type(index) is int and abs(index) <= MAX_SHOWN_INDEX
    return f"block {index}" if known else "a block with an invalid index"
