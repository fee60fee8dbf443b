"""How many values a JSON text may hold, counted in its bytes before it is decoded.

A body of 30 MB of ``{}`` is ten million objects: 1.5 GB and seconds of the event loop. So values
are counted first, by what begins or separates them.
"""

from typing import Final

MOST_VALUES: Final = 2**19
"""Of one text. Measured: a value takes at most 190 bytes decoded and 0.25 µs, so all of them 100 MB
and 0.13 s. A conversation of a million tokens holds some 30,000; 10,000 messages beside 5,000 tools
of ten parameters 260,000. No text of fewer bytes can hold more."""
VALUE_BYTES: Final = 190
MARKS: Final = b"{[,"
"""Each value is the first of its container, or stands behind a comma; so is each container."""
SLICE_BYTES: Final = 2**18


def count_values(text: bytes) -> int:
    """Return how many values ``text`` holds: an upper bound, exact where that is above the limit.

    0.5 ns a byte. Marks inside of strings count as well, until there are too many of them: code
    quoted in a conversation has 11 in 1,000 bytes.
    """
    count = len(text) - len(text.translate(None, MARKS))
    return count if count <= MOST_VALUES else _count_outside_strings(text)


def _count_outside_strings(text: bytes) -> int:
    """Count marks that no string holds, slice by slice, until there are too many.

    Without escapes every second piece between quotes is a string. What is no JSON at all may be
    counted wrong, but only behind the place where a decoder stops.
    """
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    values = strings = inside = 0
    for start in range(0, len(plain), SLICE_BYTES):
        pieces = plain[start : start + SLICE_BYTES].split(b'"')
        values += sum(len(each) - len(each.translate(None, MARKS)) for each in pieces[inside::2])
        strings += len(pieces) // 2
        if values > MOST_VALUES or strings > 2 * MOST_VALUES:  # of a pair, the key is one as well
            return max(values, MOST_VALUES + 1)
        inside = (inside + len(pieces) - 1) % 2
    return values
