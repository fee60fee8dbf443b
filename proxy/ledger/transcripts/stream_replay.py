"""Translate a stored request and upstream stream again, with the current translator."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from proxy.secrets import reasoning_signing_keys
from translator import anthropic_upstream, openai_chat, openai_responses
from translator.anthropic.token_estimate import estimate_tokens
from translator.capabilities import profile_with
from translator.dialect import Dialect, Stream, TranslationTarget
from translator.message_stream.events_to_message import fold
from translator.stream.sse import ServerSentEvent, SSEDecoder

from .encoding import Read

DIALECTS: Final[Mapping[str, Dialect]] = {
    module.DIALECT.name: module.DIALECT
    for module in (openai_responses, openai_chat, anthropic_upstream)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The result of translating a stored stream with the current translator."""

    events_by_read: list[tuple[float, list[dict[str, Any]]]]
    """For each read from the upstream: its time in milliseconds and the resulting events."""
    answer: dict[str, Any] | None
    """The message that the resulting events describe; None without ``message_start``."""
    stream: Stream
    body: dict[str, Any]
    """The body of the upstream request, as the current translator builds it."""

    @property
    def events(self) -> list[dict[str, Any]]:
        return [event for _, events in self.events_by_read for event in events]


def target_of(stored: Mapping[str, Any]) -> TranslationTarget:
    """Decode a stored target. Raises TranslatorError for an unknown profile or capability."""
    return TranslationTarget(
        upstream=stored.get("upstream", ""),
        model=stored.get("model", ""),
        profile=profile_with(stored.get("profile") or "generic", stored.get("capabilities") or {}),
        signing_keys=reasoning_signing_keys(),
    )


def replay(
    request: dict[str, Any],
    target: Mapping[str, Any],
    reads: Iterable[Read],
    *,
    message_id: str = "",
    ended: bool = True,
) -> Replayed:
    """Translate a stored request and the reads of its upstream stream again.

    ``ended``: whether the upstream ended the stream.

    Raises LookupError for an unknown dialect, and TranslatorError for a request that cannot be
    translated.
    """
    dialect = DIALECTS[str(target.get("dialect"))]
    built = dialect.build_request(request, target_of(target))
    context = built.response_context
    stream = dialect.stream(
        replace(
            context,
            message_id=message_id or context.message_id,
            input_estimate=context.input_estimate or estimate_tokens(request),
        )
    )
    events_by_read = _decode_events(stream, list(reads), ended=ended)
    answer = fold(each for _, events in events_by_read for each in events) or None
    return Replayed(events_by_read=events_by_read, answer=answer, stream=stream, body=built.body)


def _decode_events(
    stream: Stream, reads: list[Read], *, ended: bool
) -> list[tuple[float, list[dict[str, Any]]]]:
    """Return the resulting events by read; the upstream sent an SSE stream or a JSON response."""
    last = reads[-1][0] if reads else 0.0
    beginning = next((body.lstrip() for _, body in reads if body.strip()), b"")
    if beginning[:1] == b"{":
        response = b"".join(body for _, body in reads)
        return [(last, stream.feed_body(msgspec.json.decode(response)))]
    decoder = SSEDecoder()
    events_by_read = [(ms, _feed(stream, decoder.feed(body))) for ms, body in reads]
    if ended:
        events = _feed(stream, decoder.end())
        events_by_read.append((last, events if stream.finished else [*events, *stream.end()]))
    return events_by_read


def _feed(stream: Stream, received: Iterable[ServerSentEvent]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for event in received:
        if stream.finished:
            break
        decoded = _decoded(event.data)
        if decoded is not None:
            events += stream.feed(decoded)
    return events


def _decoded(body: bytes) -> dict[str, Any] | None:
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError):
        return None  # the text is "[DONE]", or invalid JSON, which the gateway had skipped too
    return decoded if isinstance(decoded, dict) else None
