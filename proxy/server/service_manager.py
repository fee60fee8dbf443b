"""Tell systemd that the gateway is ready, that it stops, and that it still runs.

Nothing is sent without ``NOTIFY_SOCKET``, which systemd sets for a unit with ``Type=notify``.
Source: sd_notify(3), sd_watchdog_enabled(3).
"""

import contextlib
import os
import socket
from typing import Final

READY: Final = b"READY=1"
STOPPING: Final = b"STOPPING=1"
WATCHDOG: Final = b"WATCHDOG=1"


def notify(state: bytes) -> None:
    """Send a state to the service manager. An unavailable service manager is ignored."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in {"/", "@"}:
        return
    path = address.replace("@", "\0", 1) if address[0] == "@" else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(state, path)


def watchdog_interval_s() -> float | None:
    """Return the seconds between two watchdog messages, or None if the watchdog is off.

    It is half of systemd's limit, as sd_watchdog_enabled(3) advises.
    """
    limit_us = os.environ.get("WATCHDOG_USEC", "")
    own = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(limit_us) / 2e6 if own and limit_us.isdecimal() and int(limit_us) else None
