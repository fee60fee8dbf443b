"""Anthropic events -> the bytes of a stream."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

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
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encode(event))


def frames(events: Iterable[dict[str, Any]]) -> bytes:
    """All events of one upstream read, so that they leave in one write."""
    return b"".join([frame(event) for event in events])
