"""Cuts of what was stored, small enough to show, and made printable without changing a letter."""

import json
from dataclasses import dataclass
from typing import Any, Final

BLOCK_CHARS: Final = 16 * 1024  # what one block may take on the page
PAGE_CHARS: Final = 256 * 1024  # what all blocks together may take (T27)
FOLD_CHARS: Final = 2 * 1024  # longer results start folded
JSON_NODES: Final = 4000  # a pretty print walks no more values than this


@dataclass(frozen=True, slots=True)
class Clip:
    """The beginning of a text. ``size`` counts the characters of the whole."""

    shown: str = ""
    size: int = 0

    @property
    def is_cut(self) -> bool:
        return len(self.shown) < self.size

    @property
    def is_long(self) -> bool:
        return self.size > FOLD_CHARS

    @property
    def size_text(self) -> str:
        return "1 character" if self.size == 1 else f"{self.size:,} characters"


def printable(text: str) -> str:
    """The text with lone surrogates (legal in JSON, not in UTF-8) and NULs made visible."""
    if "\x00" in text:
        text = text.replace("\x00", "\N{SYMBOL FOR NULL}")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def as_text(value: Any) -> str:
    """A value from the wire as text: strings as they are, nothing as nothing, the rest as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else dump(value)


def dump(value: Any, *, indent: int | None = None) -> str:
    """JSON for a reader. What nests too deep for the encoder is said so, not raised."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    except (RecursionError, ValueError):
        return "(nested too deep to be shown; download the body)"


def beginning(value: Any, room: int) -> tuple[str, bool]:
    """The first characters of a value's pretty JSON, and whether there is more.

    It is written only as far as it is shown: all of 30 MB would take half a second.
    """
    pieces: list[str] = []
    encoder = json.JSONEncoder(ensure_ascii=False, indent=2, default=str)
    try:
        for piece in encoder.iterencode(value):
            pieces.append(piece[: room + 1])
            room -= len(piece)
            if room < 0:
                return printable("".join(pieces)), True
    except (RecursionError, ValueError):
        pieces.append("\n(nested too deep to be shown; download the body)")
    return printable("".join(pieces)), False


def size_of_base64(encoded: str) -> int:
    """Bytes behind a base64 text, without decoding it."""
    return max(0, len(encoded) * 3 // 4 - encoded[-2:].count("="))


class Clipper:
    """Hands out clips until the page is full; after that, clips are empty and say their size."""

    def __init__(self, room: int = PAGE_CHARS) -> None:
        self.room = room

    def text(self, text: str) -> Clip:
        taken = text[: max(0, min(BLOCK_CHARS, self.room))]
        self.room -= len(taken)
        shown = printable(taken)
        return Clip(shown, len(shown) + len(text) - len(taken))

    def json(self, value: Any) -> Clip:
        """Pretty JSON; a very long value on one line, since laying it out costs a second."""
        pretty = dump(value, indent=2 if _is_small(value) else None)
        return self.text(pretty)


def _is_small(value: Any) -> bool:
    """Whether a value has few enough nodes to lay out over lines."""
    left = JSON_NODES
    waiting = [value]
    while waiting and left > 0:
        node = waiting.pop()
        left -= 1
        if isinstance(node, dict):
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node[: left + 1])
    return left > 0
