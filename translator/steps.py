"""One step of an upstream's stream: it says what it says, and stumbles in one way."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, Protocol, TypeVar

from translator.anthropic.composer import MessageComposer
from translator.anthropic.types import Event
from translator.dialect import UpstreamError
from translator.errors import BadUpstream, TranslatorError

STUMBLES: Final = (
    TranslatorError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    RecursionError,
)
"""What code that trusts the wire raises where the wire is not what it should be."""


class Stepping(Protocol):
    """What a step needs of its stream."""

    bad: ClassVar[str]  # what is said of an upstream's event that makes no sense
    finished: bool
    flowing: Any  # the text that the last step said into; no step but one of text goes on with it
    fault: Exception | None
    composer: MessageComposer

    def broken(self, error: UpstreamError) -> None: ...


P = ParamSpec("P")
S = TypeVar("S", bound=Stepping)


def step(
    taken: Callable[Concatenate[S, P], None],
) -> Callable[Concatenate[S, P], list[Event]]:
    """What the step said is returned, also where it stumbled in the middle.

    Whatever it stumbles over is the upstream's fault and ends the stream.
    """

    @functools.wraps(taken)
    def guarded(stream: S, /, *args: P.args, **named: P.kwargs) -> list[Event]:
        if stream.finished:
            return []
        stream.flowing = None
        written = stream.composer.writer.written = []
        try:
            taken(stream, *args, **named)
        except STUMBLES as exc:
            stream.fault = exc
            shown = str(exc) if isinstance(exc, BadUpstream) else stream.bad
            stream.broken(UpstreamError(status=502, error_type="api_error", message=shown))
        return written

    return guarded
