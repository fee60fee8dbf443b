"""Archive closed months and delete archived ones, for ``archivemonths`` and for the schedule."""

from collections.abc import Callable
from datetime import UTC, date, datetime

from proxy.audit_log import Action, record
from proxy.ledger.archive import outbox
from proxy.ledger.archive.reading import bounds
from proxy.secrets import ConfigError

from . import verifier

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


def remove_months(before: date, start_step: StartStep, batch: int = outbox.BATCH) -> list[str]:
    """Delete the rows of archived months before ``before``; return why months stay.

    ``batch``: how many rows one transaction deletes.

    Raise ConfigError, ArchiveError or OSError.
    """
    staying = []
    with outbox.work_folder():
        for month, obstacle in outbox.removable_months():
            if month >= before:
                continue
            if obstacle:
                staying.append(f"{month:%Y-%m} stays in the database: {obstacle}")
                continue
            advance = start_step(f"removing {month:%Y-%m}")
            for rows in outbox.remove(month, batch):
                advance(rows)
            record(Action.PURGE, detail=f"{month:%Y-%m} removed, it is archived")
    return staying


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
    for checked in verifier.verify(bodies=False, days=verifier.DayRange(month, end.date())):
        findings += checked.findings
    if findings:
        count = f"{len(findings):,} finding{'' if len(findings) == 1 else 's'}"
        raise ConfigError(
            f"{month:%Y-%m} has {count} of manage.py verifyledger, "
            f"such as {findings[0].where}: {findings[0].why}"
        )
