"""Make invisible characters of untrusted text visible, for readers of pages and terminals.

A name with U+202E (right-to-left override) shows another file type than it has, and text in zero
width characters or Unicode tags is read by a model but not by a person (Unicode TR 36 and 39).
"""

import json
import re
from functools import cache
from typing import Final

EMOJI: Final = "\u2190-\u2bff\U0001f000-\U0001faff"
JOINED_LETTERS: Final = "\u0600-\u0dff"  # Arabic to Sinhala: their spelling needs joiners
INVISIBLE: Final = re.compile(
    "["
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # control characters except tab and line ends
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e"
    "\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"  # zero width, directions, invisible operators
    "\u3164\ufeff\uffa0\ufff9-\ufffb"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"  # music, tags, variation selectors
    "]+"
    # A joiner is right inside an emoji, and between letters of scripts that need it.
    f"|\u200d(?!(?<=[{EMOJI}\ufe0f]\u200d)[{EMOJI}])(?!(?<=[{JOINED_LETTERS}]\u200d)[{JOINED_LETTERS}])"
    f"|\u200c(?!(?<=[{JOINED_LETTERS}]\u200c)[{JOINED_LETTERS}])"
)
"""One or more characters that no font shows, or that change the order of those around them."""

SLICE_CHARS: Final = 2**16
"""Characters searched at once: a search holds the interpreter, for a second in a text of 30 MB."""


def show_invisible(text: str) -> str:
    """Return the text with each invisible character as its code point, such as ``[U+202E]``.

    Tabs and line ends remain, and so do joiners inside emoji and between letters that need them.
    """
    pieces: list[str] = []
    done = 0
    for start in range(0, len(text), SLICE_CHARS):
        end = start + SLICE_CHARS
        # One character more, because a joiner depends on the next character.
        for found in INVISIBLE.finditer(text, max(start, done), end + 1):
            if found.start() >= end:
                break
            pieces += text[done : found.start()], *map(_code_point, found[0])
            done = found.end()
    return "".join([*pieces, text[done:]]) if pieces else text


@cache
def _code_point(character: str) -> str:
    return f"[U+{ord(character):04X}]"


def escape_invisible_json(text: str) -> str:
    r"""Return the JSON text with its invisible characters as JSON escapes, such as ``\u202e``.

    The decoded values are the same.
    """
    return INVISIBLE.sub(lambda found: json.dumps(found[0])[1:-1], text)
