"""Count the client connections that the gateway rejects or closes, and log them at a low rate."""

import logging
import time
from collections import Counter
from typing import Final

from .definitions import CONNECTIONS_CLOSED

log = logging.getLogger("proxy.connections")

LOG_INTERVAL_S: Final = 60.0

_logged_at: Final[dict[str, float]] = {}
_not_logged: Final[Counter[str]] = Counter()
"""Connections since the last log line, by reason."""


def count_closed(reason: str, address: str | None, at: float | None = None) -> None:
    """Count a closed client connection; log at most one line a minute for each reason.

    ``at``: when it was closed, on the monotonic clock; None: now.
    """
    CONNECTIONS_CLOSED.labels(reason).inc()
    _not_logged[reason] += 1
    now = time.monotonic() if at is None else at
    if reason not in _logged_at or now - _logged_at[reason] >= LOG_INTERVAL_S:
        _logged_at[reason] = now
        log.warning(
            "client connections closed (%s): %d since the last such line, the newest from %s",
            reason, _not_logged.pop(reason), address or "an unknown address",
        )  # fmt: skip
