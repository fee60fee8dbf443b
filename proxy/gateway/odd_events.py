"""Events of a stream that are not written as nearly all are: what they say all the same."""

import re
from typing import Any, Final

from translator.errors import BadUpstream
from translator.halves import Halves
from translator.sse import DONE

from .decoding import decode_event, decode_loosely, event_in

Event = dict[str, Any]

ESCAPED_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")
ENDS: Final = (DONE, b"[done]", b'"[DONE]"')
"""How servers spell that they said it all."""
NOTHING: Final = (b"null", b'""')
"""What some send in place of an event, as a sign of life."""
PREFIX: Final = b"data:"


class OddEvents:
    """Reads odd frames of one stream. ``halves``: it cuts characters in two, so all pass there."""

    def __init__(self) -> None:
        self.halves: Halves | None = None

    def read(self, name: str, text: bytes) -> tuple[list[Event], bool]:
        """The events in the data of a frame, and whether they say that the answer has ended.

        Raises BadUpstream.
        """
        text = text.strip()
        while text.startswith(PREFIX):  # a proxy that wraps what is wrapped
            text = text.removeprefix(PREFIX).lstrip()
        if text in ENDS:
            return self.rest(), True
        if not text or text in NOTHING:
            return [], False
        if self.halves is None and ESCAPED_HALF.search(text):
            self.halves = Halves()
        try:
            return [self._event(name, text)], False
        except BadUpstream:
            if b"\n" not in text:
                raise
        return self._read_lines(name, text)

    def _read_lines(self, name: str, text: bytes) -> tuple[list[Event], bool]:
        """An event in each line: some servers end them by one line feed, where two belong."""
        events: list[Event] = []
        for line in text.split(b"\n"):
            told, ended = self.read(name, line)
            events += told
            if ended:
                return events, True
        return events, False

    def _event(self, name: str, text: bytes) -> Event:
        if self.halves is None:
            return decode_event(name, text)
        return event_in(name, decode_loosely(text))

    def rest(self) -> list[Event]:
        """What still waits for its other half, now that none comes."""
        return self.halves.rest() if self.halves is not None else []


def joined(halves: Halves, events: list[Event]) -> list[Event]:
    """Events that can be sent on as they are. Raises BadUpstream."""
    try:
        return [each for event in events for each in halves.joined(event)]
    except RecursionError:
        raise BadUpstream("upstream sent JSON that is nested too deeply") from None
