"""The base of the streams of both OpenAI APIs: their state, their ends, errors in their data."""

import functools
import hashlib
from collections.abc import Callable
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, TypeVar

from translator.anthropic import Event
from translator.anthropic.stop_reason import choose_stop_reason, is_window_full
from translator.anthropic.usage import (
    DOUBTFUL_COUNTS,
    ESTIMATED_USAGE,
    NO_USAGE,
    estimated_usage,
    has_doubtful_counts,
    without_doubtful_counts,
)
from translator.dialect import ResponseContext, UnknownEvents, UpstreamCall, UpstreamError
from translator.errors import BadUpstream, IllegalMove, TranslatorError
from translator.notes import Note

from .message_composer import MessageComposer

SPLICED: Final = UpstreamError(
    status=529,
    error_type="overloaded_error",
    message="upstream began a second answer inside of the first one; ask again",
    code="spliced",
)
"""An error after which clients ask again, for a second generation in the stream of the first one.

Intermediaries that ask their server again after a broken connection send the new response into the
body of the old one; it was also reported of Anthropic's own streams (vercel/ai#18331). Merged, the
two are one message with the signed thinking of both, which the next request cannot send back, and
calls of which one is cut."""

FIRST_DROPPED: Final = Note(
    "content", "dropped", "the upstream began a second answer; this is the second one alone"
)


MAX_CITED_TEXT: Final = 1_000
"""Characters of a cited text that are sent. Anthropic sends at most 150; thousands of citations of
one long text would otherwise make a response of gigabytes. Source: Web search tool, "Citations"."""


def web_citation(url: Any, title: Any, cited_text: str) -> dict[str, Any]:
    """Return Anthropic's citation of a web search result. ``url`` and ``title`` may be any JSON."""
    return {
        "type": "web_search_result_location",
        "url": url if isinstance(url, str) else "",
        "title": title if isinstance(title, str) else None,
        "cited_text": cited_text[:MAX_CITED_TEXT],
        "encrypted_index": "",  # Anthropic's type requires the field; OpenAI has no such index
    }


def cite_annotation(annotation: dict[str, Any], text: str) -> dict[str, Any]:
    """Return Anthropic's citation for an ``url_citation`` annotation of ``text``."""
    start, end = annotation.get("start_index"), annotation.get("end_index")
    quoted = ""
    if isinstance(start, int) and isinstance(end, int):
        quoted = text[start:end] if start < 0 else text[start : min(end, start + MAX_CITED_TEXT)]
    return web_citation(annotation.get("url"), annotation.get("title"), quoted)


IMAGE: Final = "[an image was generated that cannot be shown here]"
"""This text is sent in place of an image."""
REPLACED_IMAGE: Final = Note("content", "emulated", "a generated image is replaced by text")


MALFORMED_DATA_ERRORS: Final = (
    TranslatorError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    RecursionError,
)
"""Exceptions in handlers that do not check upstream data, if that data is malformed."""

INTERNAL_ERROR: Final = UpstreamError(status=500, error_type="api_error", message="internal error")
"""The error sent after a bug of this package: an event that is invalid at this point."""


def message_id(upstream_id: str) -> str:
    """Return a message id in Anthropic's format, always the same for the same upstream id."""
    # surrogatepass, because JSON may contain an unpaired surrogate, which UTF-8 cannot encode.
    digest = hashlib.sha256(upstream_id.encode(errors="surrogatepass"))
    return f"msg_{digest.hexdigest()[:24]}"


class ResponseStream:
    """Translates one upstream response; ``translator.dialect.Stream`` documents the members."""

    BAD_EVENT: ClassVar[str]
    """The error text for the client if upstream data is malformed."""

    def __init__(self, context: ResponseContext) -> None:
        self.context = context
        self.notes: list[Note] = []
        self.call_records: dict[str, UpstreamCall] = {}
        self.unknown = UnknownEvents()
        self.fault: Exception | None = None
        self.error: UpstreamError | None = None
        self.finished = False
        self._begin()

    def _begin(self) -> None:
        """Set the state of a generation that has just begun."""
        self.composer = MessageComposer(self.context, self.notes, self.call_records)
        self.usage = NO_USAGE
        self.stop_reason: str | None = None
        self.upstream_id = self.upstream_model = ""

    def _begin_again(self) -> None:
        """Forget the first generation; a client that does not stream has not seen it."""
        written = self.composer.writer.events
        self.call_records.clear()
        self.notes.append(FIRST_DROPPED)
        self._begin()
        self.composer.writer.events = written

    def _flush(self) -> None:
        """Send the content that still waits, because the response breaks off here."""
        raise NotImplementedError

    @property
    def started(self) -> bool:
        return self.composer.started

    def fail(self, error: UpstreamError) -> list[Event]:
        events = self.composer.writer.events = []
        self.end_with_error(error)
        return events

    def end_with_error(self, error: UpstreamError) -> None:
        """End the stream with an error, unless it has already ended."""
        if not self.finished:
            self.error = error
            self.finished = True
            self._flush()
            self.composer.fail(error_type=error.error_type, message=error.message)

    def _start_message(self) -> None:
        """Write ``message_start``, unless it was written; called at the first content."""
        if not self.composer.started:
            self.composer.start(
                message_id=self.context.message_id or message_id(self.upstream_id),
                model=self.context.model or self.upstream_model,
                usage=self.usage,
            )

    def _end_as_failed(self, error: UpstreamError) -> None:
        """End the message as refused if the upstream's content policy rejected the prompt.

        Agents handle a message with the stop reason ``refusal``; a retry would be useless. Any
        other failure ends the stream with an error.
        """
        if not error.is_refusal:
            self.end_with_error(error)
            return
        self._start_message()
        self._finish_message("refusal", category=error.refusal_category, explanation=error.message)

    def _choose_reason(self, cause: str | None, *, refused: bool) -> str:
        """Return the stop reason; ``cause`` is the upstream's reason as an Anthropic value."""
        window, limit = self.context.target.profile.context_window, self.context.max_tokens
        return choose_stop_reason(
            cause,
            called_tool=self.composer.tool_calls > 0,
            refused=refused,
            window_full=cause == "max_tokens" and is_window_full(self.usage, window, limit),
        )

    def _drop_doubtful_counts(self, characters: int) -> None:
        if has_doubtful_counts(self.usage, characters):
            self.usage = without_doubtful_counts(self.usage, characters)
            self.notes.append(DOUBTFUL_COUNTS)

    def _estimate_usage(self, characters: int, *, is_partial: bool = False) -> None:
        """Estimate the counts that were not reported for content of so many characters."""
        characters -= self.composer.characters_after_stop
        estimate = self.context.input_estimate
        self.usage = estimated_usage(self.usage, estimate, characters, is_partial=is_partial)
        self.notes.append(ESTIMATED_USAGE)

    def _finish_message(
        self,
        reason: str,
        *,
        stop_sequence: str | None = None,
        category: str | None = None,
        explanation: str | None = None,
    ) -> None:
        """End the message; ``category`` and ``explanation`` are those of a refusal."""
        details = None
        if reason == "refusal":
            details = {"type": "refusal", "category": category, "explanation": explanation}
        self.composer.finish(
            stop_reason=reason,
            usage=self.usage.to_delta(),
            stop_sequence=stop_sequence or self.composer.matched_stop,
            stop_details=details,
        )
        # This is set last, because invalid arguments raise an error instead.
        self.stop_reason = reason
        self.finished = True


P = ParamSpec("P")
S = TypeVar("S", bound=ResponseStream)


def end_on_malformed_data(
    handler: Callable[Concatenate[S, P], None],
) -> Callable[Concatenate[S, P], list[Event]]:
    """Make a handler of an upstream event return the Anthropic events that it wrote.

    An exception from malformed upstream data ends the stream with an ``error`` event. So does
    IllegalMove, a bug of this package, with INTERNAL_ERROR: no invalid event is sent.
    """

    @functools.wraps(handler)
    def run_step(stream: S, /, *args: P.args, **kwargs: P.kwargs) -> list[Event]:
        if stream.finished:
            return []
        events = stream.composer.writer.events = []
        try:
            handler(stream, *args, **kwargs)
        except IllegalMove as exc:
            stream.fault, stream.error, stream.finished = exc, INTERNAL_ERROR, True
            stream.composer.abort(
                error_type=INTERNAL_ERROR.error_type, message=INTERNAL_ERROR.message
            )
        except MALFORMED_DATA_ERRORS as exc:
            stream.fault = exc
            message = str(exc) if isinstance(exc, BadUpstream) else stream.BAD_EVENT
            stream.end_with_error(
                UpstreamError(status=502, error_type="api_error", message=message)
            )
        return events

    return run_step
