"""The front door: pick a dialect's machine and run it. Nothing is translated here."""

from collections.abc import AsyncIterator
from typing import Any

from . import openai_chat, openai_responses
from .anthropic.fold import fold
from .anthropic.request import check_for_translation
from .anthropic.types import Event, Message, MessagesRequest
from .dialect import AnswerContext, Dialect, Stream, Target, UpstreamError, UpstreamRequest
from .errors import BadUpstream
from .halves import Halves
from .profiles import PROFILES
from .sse import format_sse


def translate_openai_events(
    events: AsyncIterator[dict[str, Any]],
    *,
    finished_blocks: bool = True,
    context: AnswerContext | None = None,
) -> AsyncIterator[str]:
    """Turn the events of one Responses stream into Anthropic SSE frames.

    ``content_block_stop`` carries the finished block unless ``finished_blocks`` is false; a
    given ``context`` decides for itself. A stream that ends or breaks early ends in ``error``.
    """
    context = context or AnswerContext(finished_blocks=finished_blocks)
    return _translated(openai_responses.DIALECT.stream(context), events)


def translate_openai_chat_events(
    events: AsyncIterator[dict[str, Any]],
    *,
    finished_blocks: bool = True,
    context: AnswerContext | None = None,
) -> AsyncIterator[str]:
    """Turn Chat Completions chunks into Anthropic SSE frames; as ``translate_openai_events``."""
    context = context or AnswerContext(finished_blocks=finished_blocks)
    return _translated(openai_chat.DIALECT.stream(context), events)


def map_openai_response_to_anthropic(
    response: dict[str, Any], *, context: AnswerContext | None = None
) -> Message:
    """Turn a whole Responses answer into an Anthropic message.

    Raises BadUpstream when the response failed, or is none.
    """
    return _mapped(openai_responses.DIALECT.stream(context or AnswerContext()), response)


def map_openai_chat_to_anthropic(
    completion: dict[str, Any], *, context: AnswerContext | None = None
) -> Message:
    """Turn a whole chat completion into an Anthropic message; raises as its Responses twin."""
    return _mapped(openai_chat.DIALECT.stream(context or AnswerContext()), completion)


def map_anthropic_to_openai_response(
    request: MessagesRequest, *, target: Target | None = None
) -> UpstreamRequest:
    """Turn a Messages request into the body for ``/responses``, with notes of what was bent.

    Without a ``target`` the upstream is OpenAI itself. Raises BadRequest, with the path.
    """
    return _built(openai_responses.DIALECT, request, target, "openai")


def map_anthropic_to_openai_chat(
    request: MessagesRequest, *, target: Target | None = None
) -> UpstreamRequest:
    """Turn a Messages request into the body for ``/chat/completions``, with notes.

    Without a ``target`` the upstream is the most careful server of all (profile ``generic``).
    """
    return _built(openai_chat.DIALECT, request, target, "generic")


async def _translated(stream: Stream, events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    halves = Halves()
    try:
        async for event in events:
            for said in stream.feed(*halves.joined(event)):
                yield _frame(said)
            if stream.finished:
                break
    except Exception:  # noqa: BLE001 - whatever broke the source, the client gets a legal ending
        broke = UpstreamError(status=502, error_type="api_error", message="upstream stream broke")
        for said in stream.fail(broke):
            yield _frame(said)
    finally:
        close = getattr(events, "aclose", None)  # a generator has it, a plain iterator may not
        if close is not None:
            await close()
    for said in (*stream.feed(*halves.rest()), *stream.end()):
        yield _frame(said)


def _mapped(stream: Stream, body: dict[str, Any]) -> Message:
    events = stream.feed_whole(body)
    if stream.error is not None:
        raise BadUpstream(stream.error.message)
    return fold(events)


def _built(
    dialect: Dialect, request: MessagesRequest, target: Target | None, profile: str
) -> UpstreamRequest:
    check_for_translation(request)
    if target is None:
        target = Target(model=request.get("model") or "", profile=PROFILES[profile])
    return dialect.build_request({"model": target.model, **request}, target)


def _frame(event: Event) -> str:
    return format_sse(event["type"], event)
