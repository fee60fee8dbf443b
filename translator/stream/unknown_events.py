"""Count upstream events of unknown types.

An upstream could send a different type with each event, of any length, so the number of types and
their length are limited.
"""

from typing import Final

MAX_KINDS: Final = 50
MAX_KIND_CHARACTERS: Final = 100
OTHERS: Final = "(others)"


class UnknownEvents(dict[str, int]):
    """Number of events by unknown type, for one stream; change it only with ``add``."""

    def add(self, kind: str) -> None:
        kind = kind[:MAX_KIND_CHARACTERS]
        if kind not in self and len(self) >= MAX_KINDS:
            kind = OTHERS
        self[kind] = self.get(kind, 0) + 1
