"""Times outside the gateway: RFC 3339 in UTC, with ``Z``."""

from datetime import UTC, datetime
from typing import overload


@overload
def rfc3339(at: datetime, timespec: str = "auto") -> str: ...
@overload
def rfc3339(at: None, timespec: str = "auto") -> None: ...
@overload
def rfc3339(at: datetime | None, timespec: str = "auto") -> str | None: ...
def rfc3339(at: datetime | None, timespec: str = "auto") -> str | None:
    """Return ``2026-11-28T09:30:00.250000Z``; None for an unknown time.

    ``timespec`` is that of ``datetime.isoformat``; Anthropic's Admin API has ``seconds``.
    """
    if at is None:
        return None
    return at.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")
