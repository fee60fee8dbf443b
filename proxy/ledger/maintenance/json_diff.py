"""The differences of two JSON values as lines. No I/O.

On pages it runs in a child process (``proxy.limited_work``): the time of difflib is quadratic in
the number of lines, and indented JSON can be a thousand times as long as the value.
"""

import difflib
from collections.abc import Sequence
from typing import Any

import msgspec


def pretty(value: Any) -> str:
    """Return indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def diff_lines(stored: Any, replayed: Any) -> Sequence[str]:
    """Return a unified diff of the indented JSON of the two values; empty if they are equal."""
    before, after = pretty(stored).split("\n"), pretty(replayed).split("\n")
    return list(difflib.unified_diff(before, after, "stored", "today", lineterm=""))


def diff_of_pair(pair: bytes) -> bytes:
    """Return the lines, as a JSON array, for a JSON array of the two values."""
    return msgspec.json.encode(diff_lines(*msgspec.json.decode(pair, type=tuple[Any, Any])))
