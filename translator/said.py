"""Text that comes in pieces, kept as one string that grows: for each text of an answer.

A list of the pieces would take sixty bytes for each, and an answer may be a million of them. What
is longer than any answer of a model is not kept: an upstream that never ends must not fill the
memory. It still reaches the client, piece by piece.
"""

import io
from typing import Final

MOST_CHARACTERS: Final = 16 * 2**20
"""As much as one event may hold: what is longer cannot be told as a whole by any upstream."""


class Said(io.StringIO):
    """``append`` pieces; ``getvalue()`` is all that was kept of them, ``tell()`` how much it is."""

    __slots__ = ()

    def append(self, piece: str) -> None:
        if self.tell() < MOST_CHARACTERS:
            self.write(piece)

    @property
    def full(self) -> bool:
        """Something may be missing at its end."""
        return self.tell() >= MOST_CHARACTERS
