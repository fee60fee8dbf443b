"""The state of the credentials that expire, in this process, for the pages and the health probe.

The gateway writes it and the admin reads it; neither imports the other.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialState:
    """What is known about the credential of one upstream. It contains no secret."""

    kind: str
    origin: str = ""
    """Where the credential was found; empty if none was fetched yet."""
    expires_at: float | None = None
    """Seconds since 1970; None if it does not expire."""
    fault: str = ""
    """Why the last refresh failed; empty if it succeeded."""
    usable: bool = False
    """Whether requests can be sent now, with the last credential."""


STATES: Final[dict[str, CredentialState]] = {}
"""The states by upstream. Assigning one entry is atomic."""
