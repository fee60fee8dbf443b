"""Read the rest of an upstream's body after the response to the client is complete."""

import asyncio
from collections.abc import Iterator
from typing import Any, Final

from proxy.gateway.http.deadlines import CancelReason, Deadlines
from proxy.gateway.http.errors import UpstreamFailed
from proxy.gateway.http.lenient_json import decode_event
from translator.anthropic.usage import Usage
from translator.dialect import Dialect, ResponseContext
from translator.errors import BadUpstream
from translator.stream.sse import SSEDecoder

from .client import UpstreamResponse

DRAIN_S: Final = 0.1
"""How long to wait for the end of the body after the last event, so that the connection can be
reused."""


async def drain(call: UpstreamResponse) -> None:
    """Read and discard the rest of the upstream's body, so that the connection can be reused."""
    try:
        async with asyncio.timeout(DRAIN_S):
            while not call.ended and await call.read():
                pass
    except (TimeoutError, UpstreamFailed):
        pass  # the caller closes the connection


async def reported_usage(
    call: UpstreamResponse, dialect: Dialect, last: bytes, watch: Deadlines
) -> Usage | None:
    """Read the upstream's body to its end; return the usage reported there, or None.

    This is for a response that the gateway ended early at a stop sequence. ``last`` is the read
    with the stop sequence. Only events with usage are translated, by a new stream that has not seen
    the earlier events.
    """
    stream, decoder = dialect.stream(ResponseContext()), SSEDecoder()
    raw = last
    try:
        while raw and not stream.finished:
            for event in _events_with_usage(decoder, raw):
                stream.feed(event)
            watch.start_wait(CancelReason.IDLE)
            raw = await call.read()
    except (BadUpstream, UpstreamFailed):
        pass  # the stream broke off, so the estimated usage stays
    return stream.usage if stream.usage.source == "reported" else None


def _events_with_usage(decoder: SSEDecoder, raw: bytes) -> Iterator[dict[str, Any]]:
    for name, text in decoder.feed(raw):
        if b'"usage"' in text:
            event = decode_event(name, text)
            response = event.get("response")
            if event.get("usage") or (isinstance(response, dict) and response.get("usage")):
                yield event
