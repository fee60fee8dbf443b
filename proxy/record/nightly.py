"""Once a day, what is past its team's retention goes by itself.

Every process looks each hour; the row of the purge tells the others that one has begun it. So a
gateway that did not run at that hour makes up for it, and nothing goes in its first hour.
"""

import logging
import threading
from datetime import UTC, datetime
from typing import Final

from django.db import DatabaseError, connection

from proxy.models import Purge

from . import purging, retention
from .database import present
from .errors import LedgerAway

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 3600.0
STOP_WAIT_S: Final = 5.0


def look(at: datetime, hour: int) -> bool:
    """Begin the purge of this UTC day, if its hour has come and something is past its time.

    False: nothing was begun. Sign-ins that have ended are forgotten either way. Raises
    DatabaseError or LedgerAway.
    """
    present()
    retention.forget_sessions(at)
    since = at.replace(hour=hour, minute=0, second=0, microsecond=0)
    if at < since or Purge.objects.filter(created__gte=since).exists():
        return False
    due = purging.due(at)
    if not due:
        return False
    try:
        purging.begin(None, rewrite=False, expected=sum(one.transcripts for one in due))
    except purging.Running:
        return False
    return True


class Nightly:
    """The thread that looks."""

    def __init__(self, every_s: float = LOOK_EVERY_S) -> None:
        self._every_s = every_s
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    def start(self, hour: int | None) -> None:
        """Again is fine. None: an operator's timer does it (``pruneledger``)."""
        if self._thread is None and hour is not None:
            self._ending.clear()
            self._thread = threading.Thread(
                target=self._run, args=(hour,), name="nightly", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ending.set()
            thread.join(STOP_WAIT_S)

    def _run(self, hour: int) -> None:
        while not self._ending.wait(self._every_s):
            try:
                look(datetime.now(UTC), hour)
            except (DatabaseError, LedgerAway) as away:
                logger.warning("what is past its time stays for now: %s", away)
            except Exception:  # it must outlive a fault of ours, which must be told
                logger.exception("what is past its time stays for now")
            finally:
                connection.close()


nightly: Final = Nightly()
