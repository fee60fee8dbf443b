"""Once a day delete expired transcripts of archived months, and archive old months."""

import logging
from collections.abc import Callable
from datetime import UTC, date, datetime

from proxy.audit_log import Action
from proxy.conf import conf
from proxy.ledger.archive.files import ArchiveError, check_location
from proxy.ledger.archive.parquet import load_arrow
from proxy.ledger.posting.audit_links import Cause
from proxy.secrets import ConfigError

from .archive_run import archive_months, first_of_month, prune_archived, remove_months

logger = logging.getLogger(__name__)


class DailyArchive:
    """Archives and removes the months that are due; several processes take turns.

    Months that ``restoremonth`` brought back stay until ``archivemonths --remove``.
    """

    def __init__(self) -> None:
        self._checked_on: date | None = None

    def run_if_due(self, at: datetime, hour: int) -> bool:
        """Run once a day of this process from ``hour`` on; return whether it archived.

        A failure is logged and repeated on the next day. Raises DatabaseError.
        """
        today = at.astimezone(UTC).date()
        if at.hour < hour or self._checked_on == today:
            return False
        self._checked_on = today
        months = conf.archive_after_months
        try:
            prune_archived(at, Cause(Action.PURGE, "deletes archived transcripts past retention"))
            if months is None:
                return False
            load_arrow()
            before = first_of_month(at, months)
            archive_months(before, check_location(conf.archive_to), _log_step)
            remove_months(before, _log_step, is_scheduled=True)
        except (ConfigError, ArchiveError, OSError) as error:
            logger.warning("daily archive: %s", error)
            return False
        return True


def _log_step(text: str) -> Callable[[int], object]:
    logger.info("daily archive: %s", text)
    return lambda _rows: None
