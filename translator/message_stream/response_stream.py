"""Decorator for handlers of upstream events: malformed data ends the stream in an error.

A second generation in the stream of the first one.

Intermediaries that ask their server again after a broken connection send the new response into the
body of the old one; it was also reported of Anthropic's own streams (vercel/ai#18331). Merged, the
two are one message with the signed thinking of both, which the next request cannot send back, and
calls of which one is cut.

Citations of web pages in text blocks.

What stands for a generated image: Anthropic's assistant messages have none.
"""

import functools
from collections.abc import Callable
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, Protocol, TypeVar

from translator.anthropic import Event
from translator.dialect import UpstreamError
from translator.errors import BadUpstream, IllegalMove, TranslatorError
from translator.notes import Note

from .message_composer import MessageComposer

SPLICED: Final = UpstreamError(
    status=529,
    error_type="overloaded_error",
    message="upstream began a second answer inside of the first one; ask again",
    code="spliced",
)
"""An error after which clients ask again."""

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


class StepStream(Protocol):
    """The members of a stream that the decorator ``end_on_malformed_data`` uses."""

    bad_event_message: ClassVar[str]  # the error text for the client if upstream data is malformed
    error: UpstreamError | None
    finished: bool
    fault: Exception | None
    composer: MessageComposer

    def end_with_error(self, error: UpstreamError) -> None: ...


P = ParamSpec("P")
S = TypeVar("S", bound=StepStream)


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
            message = str(exc) if isinstance(exc, BadUpstream) else stream.bad_event_message
            stream.end_with_error(
                UpstreamError(status=502, error_type="api_error", message=message)
            )
        return events

    return run_step
