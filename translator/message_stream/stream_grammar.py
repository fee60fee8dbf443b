"""The valid order of events in one Anthropic message stream, for writing and for checking.

All streams except those of Anthropic upstreams are written by ``MessageWriter``, so that no
translated stream has an invalid order. ``StreamValidator`` checks events from Anthropic-compatible
servers; it allows more: events, blocks and deltas of unknown types pass where a known type is
valid. Source: Anthropic documentation, "Streaming Messages".
"""

from typing import Any, Final

from translator.anthropic import Event
from translator.errors import IllegalMove

BEFORE: Final = "before message_start"
BETWEEN: Final = "between blocks"
INSIDE: Final = "inside a block"  # exactly one block is open: Anthropic's blocks never overlap
ENDING: Final = "after message_delta"
AFTER: Final = "after the end"

ORDER: Final[dict[str, dict[str, str]]] = {
    BEFORE: {"message_start": BETWEEN, "error": AFTER},
    BETWEEN: {"content_block_start": INSIDE, "message_delta": ENDING, "error": AFTER},
    INSIDE: {"content_block_delta": INSIDE, "content_block_stop": BETWEEN},
    ENDING: {"message_delta": ENDING, "message_stop": AFTER, "error": AFTER},
    AFTER: {},
}
"""Phase of a stream -> its next phase for each valid event."""

EVENT_TYPES: Final = frozenset({"message_stop"}).union(*ORDER.values())

BLOCK_DELTAS: Final[dict[str, frozenset[str]]] = {
    "text": frozenset({"text_delta", "citations_delta"}),
    "thinking": frozenset({"thinking_delta", "signature_delta"}),
    "tool_use": frozenset({"input_json_delta"}),
    "server_tool_use": frozenset({"input_json_delta"}),
    "mcp_tool_use": frozenset({"input_json_delta"}),
}
"""Valid delta types of each block type; a block of any other type is complete in its start
event."""

NO_DELTAS: Final[frozenset[str]] = frozenset()
KNOWN_DELTAS: Final = frozenset().union(*BLOCK_DELTAS.values())
MAX_SHOWN_INDEX: Final = 10**9


class StreamOrder:
    """The state of one stream, as far as it decides which event is valid next."""

    def __init__(self) -> None:
        self.phase = BEFORE
        self.index = -1  # index of the open content block, or of the last one
        self.block: dict[str, Any] = {}  # the open block as in its start event
        # Valid delta types of the open block, if its type is known.
        self._allowed_deltas = NO_DELTAS
        # Whether message_start contained the complete message, with a stop reason: this happens for
        # a message that was created inside a server tool.
        self._is_complete = False

    def next_phase(self, kind: str) -> str:
        """Return the phase after an event of this type; raise IllegalMove if it is not valid."""
        phase = ORDER[self.phase].get(kind)
        if phase is not None:
            return phase
        if self._is_complete and kind == "message_stop" and self.phase == BETWEEN:
            return AFTER
        raise IllegalMove(f"{kind} {self.phase}")

    def _open(self, block: dict[str, Any]) -> None:
        self.index += 1
        self.block = block
        self._allowed_deltas = BLOCK_DELTAS.get(block["type"], NO_DELTAS)


class MessageWriter(StreamOrder):
    """Writes the events of one message: its start, blocks with rising indices, exactly one end."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        """Events written for the current upstream event. The caller sets a new list before each
        upstream event and sends the list afterwards."""

    def start(self, *, message_id: str, model: str, usage: dict[str, Any]) -> None:
        """Write ``message_start``, with every field that the types of Anthropic's SDKs demand."""
        self.phase = self.next_phase("message_start")
        message: dict[str, Any] = {
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "container": None,
            "diagnostics": None,
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "usage": usage,
        }
        self.events.append({"type": "message_start", "message": message})

    def open_block(self, block: dict[str, Any]) -> None:
        self.phase = self.next_phase("content_block_start")
        self._open(block)
        self.events.append(
            {"type": "content_block_start", "index": self.index, "content_block": block}
        )

    def write_delta(self, delta: dict[str, Any]) -> None:
        if self.phase != INSIDE or delta["type"] not in self._allowed_deltas:
            place = f"in a block of type {self.block['type']}" if self.block else ""
            raise IllegalMove(f"{delta['type']} {self.phase} {place}".rstrip())
        self.events.append({"type": "content_block_delta", "index": self.index, "delta": delta})

    def close_block(self, finished: dict[str, Any] | None = None) -> None:
        """Close the open block; ``finished`` is the complete block for clients that request it."""
        self.phase = self.next_phase("content_block_stop")
        stop: Event = {"type": "content_block_stop", "index": self.index}
        if finished is not None:
            stop["content_block"] = finished
        self.events.append(stop)

    def finish(
        self,
        *,
        stop_reason: str,
        usage: dict[str, Any],
        stop_sequence: str | None = None,
        stop_details: dict[str, Any] | None = None,
        **extra_fields: Any,
    ) -> None:
        """Write ``message_delta`` with ``extra_fields``, then ``message_stop``."""
        self.phase = self.next_phase("message_delta")
        delta: dict[str, Any] = {
            "container": None,
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "stop_details": stop_details,
        }
        message_delta: Event = {
            "type": "message_delta",
            "delta": delta,
            "usage": usage,
            **extra_fields,
        }
        self.events += (message_delta, {"type": "message_stop"})
        self.phase = AFTER

    def fail(self, *, error_type: str, message: str) -> None:
        """Close the open block, so that every start has a stop, and write an ``error`` event."""
        if self.phase == INSIDE:
            self.close_block()
        self.phase = self.next_phase("error")
        self.events.append({"type": "error", "error": {"type": error_type, "message": message}})


class StreamValidator(StreamOrder):
    """Validates one stream; ``check`` raises IllegalMove without changing the state."""

    def __init__(self) -> None:
        super().__init__()
        self.valid_events = 0  # the number of valid events in the current or last call of ``check``

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
                    self._check_index(event)
                    check_delta_type(self.block["type"], event["delta"]["type"])
            elif kind in EVENT_TYPES or self.phase == AFTER:  # other types are ping or unknown
                next_phase = self.next_phase(kind)
                if kind == "content_block_start":
                    if event["index"] != self.index + 1:
                        raise IllegalMove(f"start of {_block_name(event)} after block {self.index}")
                    self._open(event["content_block"])
                elif kind == "content_block_stop":
                    self._check_index(event)
                elif kind == "message_start":
                    self._is_complete = event["message"].get("stop_reason") is not None
                self.phase = next_phase
            self.valid_events += 1

    def _check_index(self, event: Event) -> None:
        if event["index"] != self.index:
            raise IllegalMove(f"{event['type']} of {_block_name(event)} inside block {self.index}")


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
