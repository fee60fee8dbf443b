"""Once an hour publish the ledger's head; once a day purge transcripts and archive old months.

Each process checks once an hour whether the purge of the day is due, and sees in the database if
another process has started it. So a gateway that did not run at the configured hour purges later,
but not in the first hour after its start.
"""

import logging
import threading
from datetime import UTC, datetime
from typing import Final

from django.db import DatabaseError, connection

from proxy.conf import conf
from proxy.ledger.database.availability import database_file
from proxy.ledger.errors import LedgerUnavailable
from proxy.ledger.webhooks.outbox import prune_events
from proxy.models import Purge
from proxy.secrets import ConfigError

from . import published_heads, purge_jobs, retention
from .archive_schedule import DailyArchive

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 3600.0
FIRST_HEAD_S: Final = 60.0
STOP_WAIT_S: Final = 5.0


def start_if_due(at: datetime, hour: int) -> bool:
    """Start the purge of this UTC day if ``hour`` is reached and transcripts are expired.

    Returns whether a purge was started. Expired sign-in sessions, expired idempotency keys and old
    events of webhooks are deleted in any case. Raises DatabaseError or LedgerUnavailable.
    """
    database_file()
    retention.delete_expired_sessions(at)
    retention.delete_expired_writes(at)
    prune_events(at)
    since = at.replace(hour=hour, minute=0, second=0, microsecond=0)
    if at < since or Purge.objects.filter(created__gte=since).exists():
        return False
    due = purge_jobs.expired_by_team(at)
    if not due:
        return False
    try:
        purge_jobs.start_purge(None, rewrite=False, expected=sum(one.transcripts for one in due))
    except purge_jobs.PurgeAlreadyRunning:
        return False
    return True


class Nightly:
    """The thread that checks once an hour whether the daily purge is due."""

    def __init__(self, every_s: float = CHECK_INTERVAL_S) -> None:
        self._every_s = every_s
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    def start(self, hour: int | None) -> None:
        """Start the thread if it is not running.

        ``hour``: UTC hour of the daily purge; None: no purge, as the operator schedules the command
        ``pruneledger``.
        """
        if self._thread is None:
            self._ending.clear()
            self._thread = threading.Thread(
                target=self._run, args=(hour,), name="nightly", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread; a running purge continues in its own thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ending.set()
            thread.join(STOP_WAIT_S)

    def _run(self, hour: int | None) -> None:
        archive = DailyArchive()
        if not self._ending.wait(min(FIRST_HEAD_S, self._every_s)):
            self._publish_head()  # a gateway may be restarted more often than hourly
        while not self._ending.wait(self._every_s):
            self._publish_head()
            if hour is None:
                continue
            try:
                start_if_due(datetime.now(UTC), hour)
                archive.run_if_due(datetime.now(UTC), hour)
            except (DatabaseError, LedgerUnavailable) as away:
                logger.warning("daily purge and archive: not started: %s", away)
            except Exception:  # the thread must survive an internal error
                logger.exception("daily purge and archive: failed")
            finally:
                connection.close()

    @staticmethod
    def _publish_head() -> None:
        try:
            database_file()
            published_heads.publish(conf.data_dir / published_heads.FILE)
        except (DatabaseError, LedgerUnavailable, ConfigError, OSError) as error:
            logger.warning("the head of the ledger is not published: %s", error)
        except Exception:  # the thread must survive an internal error
            logger.exception("the head of the ledger is not published")
        finally:
            connection.close()


nightly: Final = Nightly()
