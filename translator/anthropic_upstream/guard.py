"""The grammar of the streams that Anthropic-like servers send: what is legal passes, unchanged.

It is wider than what ``MessageWriter`` writes: events, blocks and deltas of kinds that we do not
know yet pass wherever a known one could stand.
"""

from typing import Any, Final

from translator.anthropic.types import Event
from translator.anthropic.writer import BLOCK_DELTAS
from translator.errors import IllegalMove

BEFORE: Final = "before message_start"
BETWEEN: Final = "between blocks"
INSIDE: Final = "inside a block"
ENDING: Final = "after message_delta"
AFTER: Final = "after the end"

MOVES: Final[dict[str, dict[str, str]]] = {
    BEFORE: {"message_start": BETWEEN, "error": AFTER},
    BETWEEN: {"content_block_start": INSIDE, "message_delta": ENDING, "error": AFTER},
    INSIDE: {"content_block_delta": INSIDE, "content_block_stop": BETWEEN},
    ENDING: {"message_delta": ENDING, "message_stop": AFTER, "error": AFTER},
    AFTER: {},
}

KINDS: Final = frozenset(
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

KNOWN_DELTAS: Final = frozenset().union(*BLOCK_DELTAS.values())


class Guard:
    """Follows one stream; ``check`` raises IllegalMove, and the state is as before it."""

    def __init__(self) -> None:
        self.phase = BEFORE
        self.index = -1  # of the open block, or of the last one
        self.block = ""  # the open block's type
        self._fitting: frozenset[str] = frozenset()  # deltas that it takes, where that is known
        self._whole = False  # message_start has it all: a call made inside a server's own tool

    def check(self, event: Event) -> None:
        kind = event["type"]
        if kind == "content_block_delta" and self.phase == INSIDE:  # nearly all of them
            if event["index"] != self.index or event["delta"]["type"] not in self._fitting:
                self._same_block(event)
                self._fits(event["delta"]["type"])
            return
        if kind not in KINDS and self.phase != AFTER:
            return  # pings, and what Anthropic will think of next
        after = MOVES[self.phase].get(kind)
        if self._whole and kind == "message_stop" and self.phase == BETWEEN:
            after = AFTER
        if after is None:
            raise IllegalMove(f"upstream sent {kind} {self.phase}")
        match kind:
            case "message_start":
                self._whole = event["message"].get("stop_reason") is not None
            case "content_block_start":
                self._start(event)
            case "content_block_stop":
                self._same_block(event)
        self.phase = after

    def _start(self, event: Event) -> None:
        if event["index"] != self.index + 1:
            raise IllegalMove(f"upstream started block {event['index']!r} after {self.index}")
        self.block = event["content_block"]["type"]
        self._fitting = BLOCK_DELTAS.get(self.block, frozenset())
        self.index += 1

    def _same_block(self, event: Event) -> None:
        if event["index"] != self.index:
            raise IllegalMove(f"upstream spoke of block {event['index']!r} inside {self.index}")

    def _fits(self, delta: Any) -> None:
        if self.block in BLOCK_DELTAS and delta in KNOWN_DELTAS and delta not in self._fitting:
            raise IllegalMove(f"upstream sent {delta!r} into a block of type {self.block!r}")
