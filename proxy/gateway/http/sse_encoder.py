"""Encode Anthropic events as SSE frames."""

from typing import Any, Final

import msgspec

from translator.message_stream.stream_grammar import EVENT_TYPES

FRAME_PREFIXES: Final = {kind: f"event: {kind}\ndata: ".encode() for kind in sorted(EVENT_TYPES)}
"""The start of an SSE frame, by event type."""

_encode: Final = msgspec.json.Encoder().encode

STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)

PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'


class BatchedTextDelta(dict[str, Any]):
    """Several text deltas in one event. The client receives one SSE frame for each delta.

    ``event`` is a delta with the joined text. ``pieces`` are the texts as the upstream sent them.
    """

    __slots__ = ("pieces",)

    def __init__(self, event: dict[str, Any], pieces: list[str]) -> None:
        super().__init__(event)
        self.pieces = pieces

    def frames(self) -> bytes:
        """Return the SSE frames.

        Only the text is encoded again for each: 0.2 µs a frame instead of 0.8.
        """
        before = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"text_delta","text":' % self["index"]
        )
        after = b"}}\n\n"
        return before + (after + before).join(map(_encode, self.pieces)) + after


def encode_event(event: dict[str, Any]) -> bytes:
    """Return one event as an SSE frame. Clients dispatch on its ``event`` field."""
    if type(event) is BatchedTextDelta:
        return event.frames()
    kind = event["type"]
    head = FRAME_PREFIXES[kind] if kind in FRAME_PREFIXES else f"event: {kind}\ndata: ".encode()
    return head + _encode(event) + b"\n\n"


def encode_events(events: list[dict[str, Any]]) -> bytes:
    """Return the SSE frames of all events of one upstream read, to send in a single write."""
    return encode_event(events[0]) if len(events) == 1 else b"".join(map(encode_event, events))
