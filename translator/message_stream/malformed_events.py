"""Decorator for handlers of upstream events: malformed data ends the stream in an error."""

import functools
from collections.abc import Callable
from typing import ClassVar, Concatenate, Final, ParamSpec, Protocol, TypeVar

from translator.anthropic.types import Event
from translator.dialect import UpstreamError
from translator.errors import BadUpstream, IllegalMove, TranslatorError

from .message_composer import MessageComposer

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
