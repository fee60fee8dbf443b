"""Lenient parsing of upstreams' SSE events that deviate from the usual format."""

import re
from typing import Any, Final

from proxy.gateway.http.lenient_json import decode_event, decode_lenient, require_event
from translator.errors import BadUpstream
from translator.stream.sse import DONE
from translator.stream.surrogates import SurrogateJoiner

Event = dict[str, Any]

ESCAPED_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
ENDS: Final = (DONE, b"[done]", b'"[DONE]"')
"""The end markers that servers send as ``data``."""
EMPTY_DATA: Final = (b"null", b'""')
"""The ``data`` that some servers send as a keep-alive."""
PREFIX: Final = b"data:"


class LenientEventParser:
    """Parses the SSE frames of one stream that have an unusual format.

    ``surrogates`` is set at the first escaped surrogate. From then on, all events of the stream
    must pass through it.
    """

    def __init__(self) -> None:
        self.surrogates: SurrogateJoiner | None = None

    def parse(self, name: str, text: bytes) -> tuple[list[Event], bool]:
        """Return the events in the ``data`` of an SSE frame, and whether the response has ended.

        Raises BadUpstream.
        """
        text = text.strip()
        while text.startswith(PREFIX):  # a proxy has added a second ``data:``
            text = text.removeprefix(PREFIX).lstrip()
        if text in ENDS:
            return self.flush(), True
        if not text or text in EMPTY_DATA:
            return [], False
        if self.surrogates is None and ESCAPED_SURROGATE.search(text):
            self.surrogates = SurrogateJoiner()
        try:
            return [self._event(name, text)], False
        except BadUpstream:
            if b"\n" not in text:
                raise
        return self._parse_lines(name, text)

    def _parse_lines(self, name: str, text: bytes) -> tuple[list[Event], bool]:
        """Parse one event per line, as some servers end an event with a single line feed."""
        events: list[Event] = []
        for line in text.split(b"\n"):
            line_events, ended = self.parse(name, line)
            events += line_events
            if ended:
                return events, True
        return events, False

    def _event(self, name: str, text: bytes) -> Event:
        if self.surrogates is None:
            return decode_event(name, text)
        return require_event(name, decode_lenient(text))

    def flush(self) -> list[Event]:
        """Return the buffered events, which wait for the second half of a surrogate pair."""
        return self.surrogates.flush() if self.surrogates is not None else []


def join_surrogates(surrogates: SurrogateJoiner, events: list[Event]) -> list[Event]:
    """Return the events; join surrogate pairs that are split between events. Raises BadUpstream."""
    try:
        return [joined for event in events for joined in surrogates.join(event)]
    except RecursionError:
        raise BadUpstream("upstream sent JSON that is nested too deeply") from None
