"""Response writers: send the response to the client as an SSE stream or as one JSON message.

Both writers take the same Anthropic events. Until a writer is ``committed``, the client has
received nothing, so after a failure the client can still get an HTTP error or the response of
another target.
"""

import asyncio
from typing import Any, Final

import msgspec

from proxy.conf import conf
from proxy.gateway.request.request import Request
from translator.anthropic.usage import NAMES
from translator.errors import BadUpstream
from translator.message_stream.stream_grammar import EVENT_TYPES

_encode: Final = msgspec.json.Encoder().encode

FRAME_PREFIXES: Final = {kind: f"event: {kind}\ndata: ".encode() for kind in sorted(EVENT_TYPES)}
"""The start of an SSE frame, by event type."""

STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)

PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
ENDINGS: Final = frozenset({"message_stop", "error"})
CONTENT: Final = frozenset({"content_block_start", "message_delta"})
"""At the first event of these types, status 200 is sent. ``message_start`` alone is buffered."""


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


def metadata_event(request: Request, ending: dict[str, Any]) -> dict[str, Any]:
    """Return the event to send just before ``ending``, which is ``message_stop`` or ``error``."""
    attempts, usage = request.attempts, request.usage()
    began, now = request.response.started, request.response.deadlines.now()
    first, stream = attempts.first_content, attempts.stream
    failed = ending["type"] == "error"
    notes = [*attempts.notes, *(stream.notes if stream else ())]
    return {
        "type": "bridge.metadata",
        "trace_id": request.head.request_id,
        "route": request.route_name,
        "upstream": attempts.target_record.get("upstream", ""),
        "model": attempts.target_record.get("model", ""),
        "success": not failed,
        "attempts": len(attempts.records),
        "tokens": {
            "input": usage.input,
            "output": usage.output,
            "source": usage.source,
            # which price applies: the service tier, speed and region, as far as reported
            **{name: value for name in NAMES if (value := getattr(usage, name))},
        },
        "latency_ms": round((now - began) * 1000, 1),
        "ttft_ms": None if first is None else round((first - began) * 1000, 1),
        "terminal_reason": "error" if failed else "stop",
        "error": ending["error"] if failed else None,
        "notes": [{"path": n.path, "fate": n.fate, "reason": n.reason} for n in notes],
    }


class ResponseWriter:
    """Writes one JSON message at the end of the response.

    After a failure, the client gets an HTTP error.
    """

    def __init__(self, request: Request) -> None:
        self.committed = False
        self.request = request

    async def write_events(
        self, events: list[dict[str, Any]], *, last: bool, raw: bytes | None = None
    ) -> None:
        """Send the next events to the client. ``last``: the response ends with these events.

        ``raw``: the upstream's own bytes, to send in place of encoded events.
        """
        attempts = self.request.attempts
        attempts.fold.feed(*events)
        if not raw and attempts.fold.is_truncated:
            raise BadUpstream("upstream's answer is too large")
        if last:
            self.request.first_content_sent()
            self.committed = True
            message = attempts.message = attempts.fold.message
            if not raw:
                # The types of Anthropic's SDKs demand ``citations``; the schema of Vercel's AI SDK
                # for messages (not for streams) refuses null: @ai-sdk/anthropic 3.0.
                content = [
                    {**block, "citations": []} if block.get("citations", ()) is None else block
                    for block in message.get("content", ())
                ]
                raw = _encode({**message, "content": content})
            await self.request.response.send_response(200, raw)

    def metadata_before(self, events: list[dict[str, Any]]) -> bytes:
        """Return the ``bridge.metadata`` frames to send just before these events of a stream."""
        return b""

    def discard_start(self) -> None:
        """Forget the buffered start of a response that the upstream then refused."""

    def tick(self, now: float) -> None:
        """Send a ping if one is due. The deadline timer calls this a few times a second."""


class StreamingResponseWriter(ResponseWriter):
    """Writes to a streaming client once for each upstream read.

    Sends pings while no events come.
    """

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._response = request.response
        self._metadata = request.options.metadata
        self._buffered = b""
        self._wrote_at = self._response.deadlines.now()
        self._writing = False
        # the running task that sends a ping; it first sends status 200 if that is not sent yet
        self._ping_task: asyncio.Task[None] | None = None

    async def write_events(
        self, events: list[dict[str, Any]], *, last: bool, raw: bytes | None = None
    ) -> None:
        self.request.attempts.fold.feed(*events)
        if raw is None:
            raw = self._last_frames(events) if last else encode_events(events)
        if not self.committed and not last and not any(e["type"] in CONTENT for e in events):
            self._buffered += raw
            return
        if not raw and not self._buffered and not last:
            return
        self._writing = True
        if self._ping_task is not None:  # the task also sends the buffered bytes
            await self._ping_task
        if self._buffered:
            raw, self._buffered = self._buffered + raw, b""
        if self.request.attempts.first_content is None:
            self.request.first_content_sent()
        if not self.committed:
            await self._commit()
        await self._response.send_body(raw, more=not last)
        self._wrote_at = self._response.deadlines.now()
        self._writing = False

    def metadata_before(self, events: list[dict[str, Any]]) -> bytes:
        if not self._metadata:
            return b""
        if any(event["type"] == "message_stop" for event in events):
            # The whole response came in one read: its first content is sent now, too.
            self.request.first_content_sent()
        return b"".join(
            encode_event(metadata_event(self.request, event))
            for event in events
            if event["type"] in ENDINGS
        )

    def _last_frames(self, events: list[dict[str, Any]]) -> bytes:
        """Encode the last events. Add the request id to errors and insert the metadata event."""
        for event in events:
            if event["type"] == "error":
                event["request_id"] = self.request.head.request_id
        if not self._metadata:
            return encode_events(events)
        return b"".join([self.metadata_before([event]) + encode_event(event) for event in events])

    def discard_start(self) -> None:
        self._buffered = b""

    def tick(self, now: float) -> None:
        if self._writing or self._ping_task is not None or self._response.complete:
            return
        if not self.committed:
            if now - self.request.response.started < conf.first_event_wait_s:
                return
        elif now - self._wrote_at < conf.ping_interval_s:
            return
        self._ping_task = asyncio.create_task(self._ping())

    async def _commit(self) -> None:
        self.committed = True
        await self._response.send_headers(200, STREAM_HEADERS)

    async def _ping(self) -> None:
        try:
            if self._response.headers_sent and not self.committed:
                return  # an error response is being sent already
            buffered, self._buffered = self._buffered, b""
            if not self.committed:
                await self._commit()
            await self._response.send_body(buffered + PING, more=True)
            self._wrote_at = self._response.deadlines.now()
        finally:
            self._ping_task = None
