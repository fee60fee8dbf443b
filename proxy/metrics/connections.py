"""Connections of clients that the gateway refused or closed: counted, and logged now and then."""

import logging
import time
from collections import Counter
from typing import Final

log = logging.getLogger("proxy.connections")

LOG_EVERY_S: Final = 60.0

closed: Final[Counter[str]] = Counter()
"""By reason; the event loop adds, the thread of the metrics reads."""
_logged: Final[dict[str, tuple[float, int]]] = {}  # reason -> when, and the count then


def count_closed(reason: str, address: str | None) -> None:
    """Count it; at most one line in the log for each reason and minute: a flood is one line."""
    closed[reason] += 1
    at, before = _logged.get(reason, (0.0, 0))
    now = time.monotonic()
    if not before or now - at >= LOG_EVERY_S:
        _logged[reason] = now, closed[reason]
        log.warning(
            "client connections closed (%s): %d since the last such line, the newest from %s",
            reason, closed[reason] - before, address or "an unknown address",
        )  # fmt: skip
