"""Archive closed months, delete archived ones and bring them back, for commands and the schedule.

Transcripts in files are deleted at the same age as those in the database.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

from proxy.audit_log import Action, record
from proxy.conf import conf
from proxy.ledger.archive import files, outbox, parquet
from proxy.ledger.archive.files import ArchiveError, check_location
from proxy.ledger.archive.outbox import Restored
from proxy.ledger.archive.parquet import load_arrow
from proxy.ledger.archive.reading import bounds, transcripts_path
from proxy.ledger.posting.audit_links import Cause
from proxy.models import ArchivedMonth, ArchiveState
from proxy.secrets import ConfigError

from . import retention, verifier

MAX_VERSIONS: Final = 100
"""Versions of a file that are looked for: one a day while the transcripts of a month expire."""

StartStep = Callable[[str], Callable[[int], object]]
"""Starts a step with this text; returns a function that receives the number of rows done."""


def archive_months(before: date, location: str, start_step: StartStep) -> None:
    """Archive the months before ``before`` that are not archived yet.

    Raise ConfigError, ArchiveError or OSError.
    """
    with outbox.work_folder() as folder:
        for month in outbox.closed_months(before):
            _verify(month)
            advance = start_step(f"archiving {month:%Y-%m}")
            for rows in outbox.archive(month, location, folder):
                advance(rows)
            record(Action.EXPORT, detail=f"{month:%Y-%m} archived to {location}")


def remove_months(
    before: date,
    start_step: StartStep,
    batch: int = outbox.BATCH,
    *,
    is_scheduled: bool = False,
) -> None:
    """Delete the rows of archived months before ``before``.

    ``batch``: how many rows one transaction deletes. ``is_scheduled``: leave restored months.

    Raise ConfigError, ArchiveError or OSError.
    """
    with outbox.work_folder():
        for month in outbox.removable_months():
            restored = ArchivedMonth.objects.filter(pk=month, state=ArchiveState.RESTORED)
            if month >= before or (is_scheduled and restored.exists()):
                continue
            advance = start_step(f"removing {month:%Y-%m}")
            for rows in outbox.remove(month, batch):
                advance(rows)
            record(Action.PURGE, detail=f"{month:%Y-%m} removed, it is archived")


def restore_month(
    month: date, advance: Callable[[int], object], *, is_dry_run: bool = False
) -> Restored:
    """Bring the rows and transcripts of an archived month back; return what was inserted.

    ``advance`` receives the number of rows of each batch. Raise ConfigError or ArchiveError.
    """
    if not ArchivedMonth.objects.filter(pk=month).exists():
        months = [f"{each:%Y-%m}" for each in ArchivedMonth.objects.values_list("pk", flat=True)]
        known = f"archived are {', '.join(months)}" if months else "no month is archived"
        raise ConfigError(f"{month:%Y-%m} is not archived; {known}")
    done = Restored()
    with outbox.work_folder():
        adopt_newer_transcripts(ArchivedMonth.objects.get(pk=month))
        for some in outbox.restore(month, is_dry_run=is_dry_run):
            done = Restored(*map(sum, zip(done, some, strict=True)))
            advance(some.rows)
    if not is_dry_run and done.rows:
        record(Action.ADD, detail=f"{month:%Y-%m} restored from the archive")
    return done


def prune_archived(now: datetime, cause: Cause) -> int:
    """Delete the transcripts past their team's retention from the files; return how many.

    A file is written again without them, under a new name. Raise ConfigError, ArchiveError or
    OSError.
    """
    months = ArchivedMonth.objects.exclude(transcripts_sha256="").order_by("month")
    if not months.exists():
        return 0
    count = 0
    before = defaultdict(lambda: now - retention.DELETED_TEAM_AGE, retention.expired(now))
    with outbox.work_folder() as folder:
        for month in months:
            adopt_newer_transcripts(month)
            gone = [
                one
                for one in parquet.list_transcripts(transcripts_path(month))
                if one.created < parquet.without_zone(before[one.team])
            ]
            for team in sorted({one.team for one in gone}):
                retention.record_deletion(team, before[team], cause)
            if gone:
                count += drop_transcripts(month, {one.id for one in gone}, folder)
        remove_old_files()
    return count


def drop_transcripts(month: ArchivedMonth, gone: Collection[str], folder: Path) -> int:
    """Write the month's file of transcripts again without these; return how many it had.

    The new file has a new name, and the row names one complete file at any time.
    """
    source = transcripts_path(month)
    ids = {one.id for one in parquet.list_transcripts(source)}
    if not (found := ids.intersection(gone)):
        return 0
    version = month.transcripts_version + 1
    path = folder / month.transcripts_file_of(version)
    if ids == found:
        month.transcripts_sha256 = ""
    else:
        parquet.copy_transcripts(source, path, found)
        if {one.id for one in parquet.list_transcripts(path)} != ids - found:
            raise files.ArchiveError(f"{path.name} does not have the remaining transcripts")
        month.transcripts_sha256 = outbox.put(month.location, path)
    month.transcripts_version, month.transcripts = version, len(ids) - len(found)
    month.save(update_fields=["transcripts_version", "transcripts_sha256", "transcripts"])
    return len(found)


def adopt_newer_transcripts(month: ArchivedMonth) -> None:
    """Name the newest file of transcripts if a restored backup of the database names an older one.

    Since the backup, transcripts have expired or users were erased, so the older file is gone.
    """
    name, sha256 = month.transcripts_file, month.transcripts_sha256
    if not sha256 or files.stored_sha256(month.location, name) == sha256:
        return
    version = newest_version(month.location, month.transcripts_file_of, month.transcripts_version)
    if version:
        month.transcripts_version = version
        month.transcripts_sha256 = files.stored_sha256(month.location, month.transcripts_file)
        month.transcripts = sum(1 for _ in parquet.list_transcripts(transcripts_path(month)))
        month.save(update_fields=["transcripts_version", "transcripts_sha256", "transcripts"])


def newest_version(location: str, name_of: Callable[[int], str], after: int) -> int:
    """Return the newest version of a file after one; 0: there is none. Earlier ones are deleted."""
    versions = range(after + MAX_VERSIONS, after, -1)
    return next((each for each in versions if files.stored_sha256(location, name_of(each))), 0)


def remove_old_files() -> None:
    """Delete the files of earlier versions, and local copies that no month names."""
    kept: set[str] = set()
    for month in ArchivedMonth.objects.all():
        kept |= {month.sha256, month.transcripts_sha256}
        for version in range(1, month.version):
            files.remove(month.location, month.file_of(version))
        for version in range(1, month.transcripts_version):
            files.remove(month.location, month.transcripts_file_of(version))
    files.remove_copies(kept)


def first_of_month(at: datetime, months_ago: int = 0) -> date:
    """Return the first day of the UTC month of ``at``, or of an earlier month."""
    day = at.astimezone(UTC).date()
    month = day.year * 12 + day.month - 1 - months_ago
    return date(month // 12, month % 12 + 1, 1)


def _verify(month: date) -> None:
    """Verify the month's links of the hash chain, and that each closed row has a link.

    Raises ConfigError if anything is wrong.
    """
    start, end = bounds(month)
    findings = verifier.verify_links_of_rows(start, end)
    for checked in verifier.verify(days=verifier.DayRange(month, end.date())):
        findings += checked.findings
    if findings:
        count = f"{len(findings):,} finding{'' if len(findings) == 1 else 's'}"
        raise ConfigError(
            f"{month:%Y-%m} has {count} of manage.py verifyledger, "
            f"such as {findings[0].where}: {findings[0].why}"
        )


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
