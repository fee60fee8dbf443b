"""Reads what an upstream still sends after its client has the whole answer."""

import asyncio
from collections.abc import Iterator
from typing import Any, Final

from translator.anthropic.usage import Usage
from translator.dialect import AnswerContext, Dialect
from translator.errors import BadUpstream
from translator.sse import SSEDecoder

from .decoding import decode_event
from .refusals import UpstreamFailed
from .upstream import Call
from .watch import Stop, Watch

DRAIN_S: Final = 0.1
"""How long the upstream may take to end its body after its last event, to keep the connection."""


async def drain(call: Call) -> None:
    """Its body has more than was wanted; at its end, the connection can serve again."""
    try:
        async with asyncio.timeout(DRAIN_S):
            while not call.ended and await call.read():
                pass
    except (TimeoutError, UpstreamFailed):
        pass  # it is closed instead


async def reported_usage(call: Call, dialect: Dialect, last: bytes, watch: Watch) -> Usage | None:
    """Read to the end for the usage that the upstream reports there; None: it reports none.

    For an answer that the gateway ended itself, at a stop sequence. ``last`` is the read in which
    it ended. Only events that have a usage count: others follow what this stream never saw.
    """
    stream, decoder = dialect.stream(AnswerContext()), SSEDecoder()
    raw = last
    try:
        while raw and not stream.finished:
            for event in _events_with_usage(decoder, raw):
                stream.feed(event)
            watch.expect(Stop.IDLE)
            raw = await call.read()
    except (BadUpstream, UpstreamFailed):
        pass  # cut: the estimate stays
    return stream.usage if stream.usage.source == "reported" else None


def _events_with_usage(decoder: SSEDecoder, raw: bytes) -> Iterator[dict[str, Any]]:
    for name, text in decoder.feed(raw):
        if b'"usage"' in text:
            event = decode_event(name, text)
            response = event.get("response")
            if event.get("usage") or (isinstance(response, dict) and response.get("usage")):
                yield event
