"""Runs a stored upstream stream through the translator.

For replay, and for answers that a crash cut off: what a dead process had heard is rebuilt from
its checkpoints, never from a guess.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from proxy.secrets import carrier_keys
from translator import anthropic_upstream, openai_chat, openai_responses
from translator.anthropic.fold import MessageFold
from translator.anthropic.usage import Usage
from translator.dialect import AnswerContext, Dialect, Stream, Target
from translator.estimate import estimate_tokens
from translator.profiles import profile_with
from translator.sse import ServerSentEvent, SSEDecoder

from .conversation import Read, reads_of
from .posting import Story
from .unreported_usage import fill_unreported

logger = logging.getLogger(__name__)

DIALECTS: Final[Mapping[str, Dialect]] = {
    module.DIALECT.name: module.DIALECT
    for module in (openai_responses, openai_chat, anthropic_upstream)
}
USAGE_FIELDS: Final = tuple(Usage.__dataclass_fields__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What today's translator makes of a stored stream."""

    told: list[tuple[float, list[dict[str, Any]]]]
    """For each read of the upstream: its milliseconds, and the events it amounts to."""
    answer: dict[str, Any] | None
    """The folded message; None when the stream never began one."""
    stream: Stream
    body: dict[str, Any]
    """The upstream request as it would be built today."""

    @property
    def events(self) -> list[dict[str, Any]]:
        return [event for _, events in self.told for event in events]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """What is known of an exchange whose process died."""

    reads: list[Read] = field(default_factory=list)
    answer: dict[str, Any] | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    target: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    upstream: str = ""
    dialect: str = ""


def dialect_of(name: str) -> Dialect:
    """Raises LookupError for a name that this version does not know."""
    return DIALECTS[name]


def target_of(stored: Mapping[str, Any]) -> Target:
    """Raises TranslatorError for a profile or capability that this version does not know."""
    return Target(
        upstream=stored.get("upstream", ""),
        model=stored.get("model", ""),
        profile=profile_with(stored.get("profile") or "generic", stored.get("capabilities") or {}),
        carrier_keys=carrier_keys(),
    )


def replay(
    request: dict[str, Any],
    target: Mapping[str, Any],
    reads: Iterable[Read],
    *,
    message_id: str = "",
    input_estimate: int = 0,
    ended: bool = True,
) -> Replayed:
    """Translate a stored exchange again. ``ended`` says whether the bytes ended by themselves.

    ``input_estimate``: tokens, for a stream that tells none.

    Raises LookupError for a dialect and TranslatorError for a request that cannot be translated.
    """
    dialect = dialect_of(str(target.get("dialect")))
    built = dialect.build_request(request, target_of(target))
    stream = dialect.stream(_context(built.answer, message_id, input_estimate))
    told = _told(stream, list(reads), ended=ended)
    answer = _folded([event for _, events in told for event in events])
    return Replayed(told=told, answer=answer, stream=stream, body=built.body)


def _context(context: AnswerContext, message_id: str, input_estimate: int) -> AnswerContext:
    return replace(
        context,
        message_id=message_id or context.message_id,
        input_estimate=context.input_estimate or input_estimate,
    )


def _told(
    stream: Stream, reads: list[Read], *, ended: bool
) -> list[tuple[float, list[dict[str, Any]]]]:
    """The events of an SSE stream; of a whole JSON answer where the upstream sent that instead."""
    last = reads[-1][0] if reads else 0.0
    beginning = next((body.lstrip() for _, body in reads if body.strip()), b"")
    if beginning[:1] == b"{":
        whole = b"".join(body for _, body in reads)
        return [(last, stream.feed_whole(msgspec.json.decode(whole)))]
    decoder = SSEDecoder()
    told = [(ms, _fed(stream, decoder.feed(body))) for ms, body in reads]
    if ended:
        events = _fed(stream, decoder.end())
        told.append((last, events if stream.finished else [*events, *stream.end()]))
    return told


def _fed(stream: Stream, heard: Iterable[ServerSentEvent]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for event in heard:
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
        return None  # "[DONE]", or what the gateway skipped as well
    return decoded if isinstance(decoded, dict) else None


def _folded(events: list[dict[str, Any]]) -> dict[str, Any] | None:
    fold = MessageFold()
    for event in events:
        fold.feed(event)
    return fold.message if any(event["type"] == "message_start" for event in events) else None


def partial(story: Story) -> Partial:
    """Rebuild what a dead process had heard. Whatever fails, its row is closed all the same.

    Under a hard budget, what nobody knows of the usage is the worst case that was reserved.
    """
    known = _partial(story)
    worst_case = story.opening.worst_case
    if not worst_case:
        return known
    told = {name: known.usage[name] for name in USAGE_FIELDS if name in known.usage}
    answered = bool((known.answer or {}).get("content"))
    usage = fill_unreported(Usage(**told), worst_case, answered=answered)
    return replace(known, usage={name: getattr(usage, name) for name in USAGE_FIELDS})


def _partial(story: Story) -> Partial:
    reads = reads_of(story.chunks)
    named = [chunk.target for chunk in story.chunks if chunk.target]
    target = named[-1] if named else story.opening.target
    known = Partial(
        reads=reads,
        target=target,
        model=target.get("model") or story.opening.model_upstream,
        upstream=target.get("upstream") or story.opening.upstream,
        dialect=target.get("dialect") or story.opening.dialect,
    )
    if not reads or story.opening.body is None or target.get("dialect") not in DIALECTS:
        return known
    try:
        return _translated(story.opening.body, known)
    except Exception:  # the record must not hang on a translator's fault
        logger.exception("recovery: the answer of %s cannot be rebuilt", story.opening.id)
        return known


def _translated(body: bytes, known: Partial) -> Partial:
    request = msgspec.json.decode(body)
    replayed = replay(request, known.target, known.reads, ended=False)
    return replace(
        known,
        answer=replayed.answer,
        usage=_usage(request, replayed),
        unknown=dict(replayed.stream.unknown),
    )


def _usage(request: dict[str, Any], replayed: Replayed) -> dict[str, Any]:
    """What the upstream reported before the end, else estimates, marked as such."""
    said = replayed.stream.usage
    if said.source == "reported" and said.output:
        return {name: getattr(said, name) for name in USAGE_FIELDS}
    content = (replayed.answer or {}).get("content") or []
    message = {"role": "user", "content": [{"type": "text", "text": _said(content)}]}
    return {
        "input": estimate_tokens(request),
        "output": estimate_tokens({"messages": [message]}) if content else 0,
        "source": "estimated",
    }


def _said(content: list[Any]) -> str:
    return msgspec.json.encode(content).decode()
