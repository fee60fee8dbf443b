"""Notes: typed facts about what a translation could not carry over unchanged.

Nothing disappears silently: whatever a dialect drops, clamps, renames, emulates or repairs is
told as a note beside the translated request or answer. The record keeps them, strict mode
refuses the lossy ones, the ``bridge.metadata`` event shows them.
"""

from dataclasses import dataclass
from typing import Final, Literal

Fate = Literal["dropped", "clamped", "renamed", "emulated", "repaired", "ignored"]

LOSSY: Final[frozenset[Fate]] = frozenset({"dropped", "clamped"})


@dataclass(frozen=True, slots=True)
class Note:
    """One fact: ``path`` in the client's request (or in the answer), what became of it, and why."""

    path: str
    fate: Fate
    reason: str

    @property
    def lossy(self) -> bool:
        """Whether strict mode refuses the request because of this note."""
        return self.fate in LOSSY


EMPTY: Final = Note("content", "ignored", "empty_output: the upstream ended well and said nothing")
