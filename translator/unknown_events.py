"""Counts of upstream events that this version does not know, by kind.

An upstream may invent a kind for each event, of any length; so few and short ones are counted.
"""

from typing import Final

MOST_KINDS: Final = 50
LONGEST: Final = 100
OTHERS: Final = "(others)"


class UnknownEvents(dict[str, int]):
    """Of one stream. ``add`` is the only way in."""

    def add(self, kind: str) -> None:
        kind = kind[:LONGEST]
        if kind not in self and len(self) >= MOST_KINDS:
            kind = OTHERS
        self[kind] = self.get(kind, 0) + 1
