"""Find where the JSON object of a call's arguments ends, in text that arrives in pieces.

Each character is looked at once, however many pieces there are. Only braces outside of strings are
counted, so the end is that of valid JSON; invalid text may seem to end anywhere.
"""

import re
from typing import Final

MAX_DEPTH: Final = 200
"""More deeply nested arguments are not parsed, because parsers and clients could overflow their
stacks: they remain a raw string."""

_IN_STRING: Final = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_OUTSIDE: Final = re.compile(r'["{}]')


class ObjectScanner:
    """Takes the text in pieces; ``ended`` tells whether the object is complete."""

    __slots__ = ("_depth", "_in_string", "_is_escaped", "_is_object", "ended", "started")

    def __init__(self) -> None:
        self.ended = False
        self.started = False  # whether the text has more than white space
        self._is_object = False
        self._depth = 0
        self._in_string = False
        self._is_escaped = False  # the last piece ended with a backslash in a string

    def feed(self, piece: str) -> int:
        """Return how many characters of ``piece`` belong to the object; all while it is open."""
        if self.ended:
            return 0
        if not self.started and (start := piece.lstrip()):
            self.started, self._is_object = True, start[0] == "{"
        if not (self._is_object and piece):
            return len(piece)
        at, self._is_escaped = int(self._is_escaped), False
        while at < len(piece) and not self.ended:
            at = self._end_of_string(piece, at) if self._in_string else self._next_mark(piece, at)
        return at

    def _next_mark(self, piece: str, at: int) -> int:
        """Return the position behind the next quote or brace; else the end of the piece."""
        mark = _OUTSIDE.search(piece, at)
        if mark is None:
            return len(piece)
        match mark[0]:
            case '"':
                self._in_string = True
            case "{":
                self._depth += 1
                self._is_object = self._depth <= MAX_DEPTH
            case _:
                self._depth -= 1
                self.ended = not self._depth
        return mark.end() if self._is_object else len(piece)

    def _end_of_string(self, piece: str, at: int) -> int:
        """Return where the rest of a string ends: after its quote, or at the end of the piece."""
        inside = _IN_STRING.match(piece, at)
        end = inside.end() if inside is not None else at
        if end == len(piece):
            return end
        self._in_string = piece[end] != '"'
        self._is_escaped = self._in_string  # only a backslash at the end of the piece is left
        return end + 1
