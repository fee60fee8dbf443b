"""The public functions of the package: they choose an upstream API and run its translation."""

from collections.abc import AsyncIterator
from typing import Any

from translator.anthropic import Event, Message, MessagesRequest
from translator.message_stream.events_to_message import fold
from translator.stream.sse import format_sse
from translator.stream.surrogates import SurrogateJoiner

from . import openai_chat, openai_responses
from .anthropic.request_validation import check_for_translation
from .capabilities import PROFILES
from .dialect import (
    Dialect,
    ResponseContext,
    Stream,
    TranslationTarget,
    UpstreamError,
    UpstreamRequest,
)
from .errors import BadUpstream


def translate_openai_events(
    events: AsyncIterator[dict[str, Any]],
    *,
    finished_blocks: bool = True,
    context: ResponseContext | None = None,
) -> AsyncIterator[str]:
    """Convert the events of one Responses API stream to Anthropic events as SSE text.

    ``content_block_stop`` contains the finished block unless ``finished_blocks`` is false; if
    ``context`` is given, its ``finished_blocks`` applies instead. If the upstream's stream breaks
    or ends early, the last event is ``error``.
    """
    context = context or ResponseContext(finished_blocks=finished_blocks)
    return _sse_frames(openai_responses.DIALECT.stream(context), events)


def translate_openai_chat_events(
    events: AsyncIterator[dict[str, Any]],
    *,
    finished_blocks: bool = True,
    context: ResponseContext | None = None,
) -> AsyncIterator[str]:
    """Convert Chat Completions chunks to Anthropic SSE text; see ``translate_openai_events``."""
    context = context or ResponseContext(finished_blocks=finished_blocks)
    return _sse_frames(openai_chat.DIALECT.stream(context), events)


def map_openai_response_to_anthropic(
    response: dict[str, Any], *, context: ResponseContext | None = None
) -> Message:
    """Convert a complete response of the Responses API to an Anthropic message.

    Raises BadUpstream if the response failed or is malformed.
    """
    return _response_to_message(
        openai_responses.DIALECT.stream(context or ResponseContext()), response
    )


def map_openai_chat_to_anthropic(
    completion: dict[str, Any], *, context: ResponseContext | None = None
) -> Message:
    """Convert a complete chat completion to an Anthropic message.

    Raises BadUpstream if the completion is an error or malformed.
    """
    return _response_to_message(
        openai_chat.DIALECT.stream(context or ResponseContext()), completion
    )


def map_anthropic_to_openai_response(
    request: MessagesRequest, *, target: TranslationTarget | None = None
) -> UpstreamRequest:
    """Convert a Messages request to a body for ``/responses``, with notes about every change.

    Without ``target``, the upstream is OpenAI. Raises BadRequest with the path of an invalid field.
    """
    return _build_upstream_request(openai_responses.DIALECT, request, target, "openai")


def map_anthropic_to_openai_chat(
    request: MessagesRequest, *, target: TranslationTarget | None = None
) -> UpstreamRequest:
    """Convert a Messages request to a body for ``/chat/completions``, with notes.

    Without ``target``, the capability profile is ``generic``, the least capable server.
    """
    return _build_upstream_request(openai_chat.DIALECT, request, target, "generic")


async def _sse_frames(stream: Stream, events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    joiner = SurrogateJoiner()
    try:
        async for upstream_event in events:
            for output in stream.feed(*joiner.join(upstream_event)):
                yield _sse_frame(output)
            if stream.finished:
                break
    except Exception:  # noqa: BLE001 - the client gets a valid end after any exception
        error = UpstreamError(status=502, error_type="api_error", message="upstream stream broke")
        for output in stream.fail(error):
            yield _sse_frame(output)
    finally:
        close = getattr(events, "aclose", None)  # generators have aclose, other iterators may not
        if close is not None:
            await close()
    for output in (*stream.feed(*joiner.flush()), *stream.end()):
        yield _sse_frame(output)


def _response_to_message(stream: Stream, body: dict[str, Any]) -> Message:
    events = stream.feed_body(body)
    if stream.error is not None:
        raise BadUpstream(stream.error.message)
    return fold(events)


def _build_upstream_request(
    dialect: Dialect, request: MessagesRequest, target: TranslationTarget | None, profile: str
) -> UpstreamRequest:
    check_for_translation(request)
    if target is None:
        target = TranslationTarget(model=request.get("model") or "", profile=PROFILES[profile])
    return dialect.build_request({"model": target.model, **request}, target)


def _sse_frame(event: Event) -> str:
    return format_sse(event["type"], event)
