"""Anthropic events -> the bytes of a stream."""

from typing import Any, Final

import msgspec

from translator.anthropic_upstream.guard import KINDS

HEADS: Final = {kind: f"event: {kind}\ndata: ".encode() for kind in sorted(KINDS)}
"""What the frames of the usual events begin with."""

_encode: Final = msgspec.json.Encoder().encode

PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'


class TextRun(dict[str, Any]):
    """Many text deltas as one: an event for whoever reads it, a frame for each piece on the wire.

    ``event`` is the delta of the whole text; ``pieces`` are how the upstream cut it.
    """

    __slots__ = ("pieces",)

    def __init__(self, event: dict[str, Any], pieces: list[str]) -> None:
        super().__init__(event)
        self.pieces = pieces

    def frames(self) -> bytes:
        """Only the text differs from frame to frame: 0.2 µs each, where encoding costs 0.8."""
        before = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"text_delta","text":' % self["index"]
        )
        after = b"}}\n\n"
        return before + (after + before).join(map(_encode, self.pieces)) + after


def frame(event: dict[str, Any]) -> bytes:
    """One event as an SSE frame; clients dispatch on its ``event:`` line."""
    if type(event) is TextRun:
        return event.frames()
    kind = event["type"]
    head = HEADS[kind] if kind in HEADS else f"event: {kind}\ndata: ".encode()
    return head + _encode(event) + b"\n\n"


def frames(events: list[dict[str, Any]]) -> bytes:
    """All events of one upstream read, so that they leave in one write."""
    return frame(events[0]) if len(events) == 1 else b"".join(map(frame, events))
