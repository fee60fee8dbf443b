"""The grammar of the streams that Anthropic-like servers send: what is legal passes, unchanged.

It is wider than what ``MessageWriter`` writes: events, blocks and deltas of kinds that we do not
know yet pass wherever a known one could stand.
"""

from typing import Final

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

NOT_KNOWN: Final[frozenset[str]] = frozenset()
KNOWN_DELTAS: Final = frozenset().union(*BLOCK_DELTAS.values())


class Guard:
    """Follows one stream; ``check`` raises IllegalMove, and the state is as before it."""

    def __init__(self) -> None:
        self.phase = BEFORE
        self.index = -1  # of the open block, or of the last one
        self.block = ""  # the open block's type
        self.passed = 0  # of the events that are checked, or were checked last
        self._fitting: frozenset[str] = NOT_KNOWN  # deltas that it takes, where that is known
        self._whole = False  # message_start has it all: a call made inside a server's own tool

    def check(self, *events: Event) -> None:
        """Raises at the first that may not come here; ``passed`` tells how many came before it."""
        self.passed = 0
        for event in events:
            kind = event["type"]
            if kind == "content_block_delta" and self.phase == INSIDE:  # nearly all of them
                if event["index"] != self.index or event["delta"]["type"] not in self._fitting:
                    self._fits(event)
            elif kind in KINDS or self.phase == AFTER:  # else a ping, or what will be thought of
                moves = MOVES[self.phase]
                after = moves[kind] if kind in moves else self._end_of_whole(kind)
                if kind == "content_block_start":
                    self._start(event)
                elif kind == "content_block_stop":
                    self._same_block(event)
                elif kind == "message_start":
                    self._whole = event["message"].get("stop_reason") is not None
                self.phase = after
            self.passed += 1

    def _end_of_whole(self, kind: str) -> str:
        if self._whole and kind == "message_stop" and self.phase == BETWEEN:
            return AFTER
        raise IllegalMove(f"upstream sent {kind} {self.phase}")

    def _start(self, event: Event) -> None:
        if event["index"] != self.index + 1:
            raise IllegalMove(f"upstream started block {event['index']!r} after {self.index}")
        self.block = event["content_block"]["type"]
        self._fitting = BLOCK_DELTAS.get(self.block, NOT_KNOWN)
        self.index += 1

    def _same_block(self, event: Event) -> None:
        if event["index"] != self.index:
            raise IllegalMove(f"upstream spoke of block {event['index']!r} inside {self.index}")

    def _fits(self, event: Event) -> None:
        self._same_block(event)
        delta = event["delta"]["type"]
        if self.block in BLOCK_DELTAS and delta in KNOWN_DELTAS and delta not in self._fitting:
            raise IllegalMove(f"upstream sent {delta!r} into a block of type {self.block!r}")
