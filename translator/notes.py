"""Notes: typed records of what a translation could not carry over unchanged.

The translator writes a note for everything that it drops, clamps, renames, emulates or repairs. The
ledger stores the notes, the gateway's strict mode rejects requests with lossy notes, and the
``bridge.metadata`` event returns the notes to the client.
"""

from dataclasses import dataclass
from typing import Final, Literal

Fate = Literal["dropped", "clamped", "renamed", "emulated", "repaired", "ignored"]

LOSSY: Final[frozenset[Fate]] = frozenset({"dropped", "clamped"})


@dataclass(frozen=True, slots=True)
class Note:
    """One note: a ``path`` in the request or response, what happened to that part, and why."""

    path: str
    fate: Fate
    reason: str

    @property
    def lossy(self) -> bool:
        """Return whether the gateway's strict mode rejects a request with this note."""
        return self.fate in LOSSY


EMPTY_OUTPUT: Final = Note(
    "content", "ignored", "empty_output: the upstream completed without any content"
)
