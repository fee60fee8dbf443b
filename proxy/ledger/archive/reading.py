"""Which months of ledger rows are in files, and what the maintenance of the ledger reads of them.

Lists, reports and pages read the database only; they name the archived months of their time.
"""

from collections.abc import Collection, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

from django.db.models import Q, QuerySet

from proxy.ledger.transcripts.storage import StoredPart
from proxy.models import ArchivedMonth, ArchiveState, Exchange, Transcript

from . import files, parquet

ONLY_ARCHIVED: Final = (ArchiveState.REMOVING, ArchiveState.REMOVED)
"""The states in which rows of the month are in its file only."""
NEARBY: Final = timedelta(days=31)
"""How long before and after its known requests a session may have archived ones."""


def archived_months(since: datetime | None, until: datetime | None) -> list[str]:
    """Return the months that overlap a time range and whose rows are in files, as ``2026-06``.

    None: no bound.
    """
    months = ArchivedMonth.objects.filter(state__in=ONLY_ARCHIVED)
    if since is not None:
        months = months.filter(month__gte=since.astimezone(UTC).date().replace(day=1))
    if until is not None:
        months = months.filter(month__lt=until)
    return [f"{month:%Y-%m}" for month in months.order_by("month").values_list("month", flat=True)]


def archived_months_near(first: datetime, last: datetime) -> list[str]:
    """Return the archived months in which a session with these requests may have other ones."""
    return archived_months(first - NEARBY, last + NEARBY)


def archived_month_of(request_id: str) -> str:
    """Return the archived month whose ids this one is between; "" if there is none.

    It says nothing about whether the request exists.
    """
    month = _months_with([request_id]).first()
    return f"{month.month:%Y-%m}" if month else ""


def restore_hint(months: Collection[str]) -> str:
    """Return the sentence that says where the requests of these months are; "" for no month."""
    if not months:
        return ""
    return (
        f"Requests of {', '.join(months)} are archived; "
        f"manage.py restoremonth {next(iter(months))} brings them back."
    )


def rows_by_id(ids: Collection[str]) -> Iterator[Exchange]:
    """Yield the rows of archived months with these ids. Raises ArchiveError."""
    for month in _months_with(ids):
        yield from parquet.read(rows_path(month), *parquet.with_keys("id", ids))


def rows_between(since: datetime, until: datetime) -> Iterator[Exchange]:
    """Yield the rows of archived months in this time, sorted by id. Raises ArchiveError.

    While a month is removed or restored, some of these rows are in the database too.
    """
    for month in ArchivedMonth.objects.filter(
        state__in=ONLY_ARCHIVED, month__gte=since.date().replace(day=1), month__lt=until
    ).order_by("month"):
        first, end = map(parquet.without_zone, (since, until))
        yield from parquet.read(rows_path(month), ("created", ">=", first), ("created", "<", end))


def transcripts_by_id(ids: Collection[str]) -> Iterator[tuple[Transcript, list[StoredPart]]]:
    """Yield the transcripts of archived months with these ids, and their parts."""
    for month in _months_with(ids).exclude(transcripts_sha256=""):
        yield from parquet.read_transcripts(transcripts_path(month), ids)


def _months_with(ids: Collection[str]) -> QuerySet[ArchivedMonth]:
    if not ids:
        return ArchivedMonth.objects.none()
    months = ArchivedMonth.objects.filter(state__in=ONLY_ARCHIVED).order_by("month")
    return months.filter(last_id__gte=min(ids), first_id__lte=max(ids))


def rows_path(month: ArchivedMonth) -> Path:
    """Return the path of the month's file, or of its local copy. Raises ArchiveError."""
    return files.local_path(month.location, month.file, month.sha256)


def transcripts_path(month: ArchivedMonth) -> Path:
    """Return the path of the month's file of transcripts, or of its local copy."""
    return files.local_path(month.location, month.transcripts_file, month.transcripts_sha256)


def changeable_rows() -> Q:
    """Match the rows of the database that may be changed: those of no month that is removed."""
    condition = Q()
    for month in removed_months():
        start, end = bounds(month)
        condition &= ~Q(created__gte=start, created__lt=end)
    return condition


def removed_months() -> list[date]:
    """Return the months whose rows are only in their files, or will soon be, oldest first."""
    removed = ArchivedMonth.objects.filter(state__in=ONLY_ARCHIVED)
    return list(removed.order_by("month").values_list("month", flat=True))


def bounds(month: date) -> tuple[datetime, datetime]:
    """Return the start of a month and the start of the next one."""
    start = datetime(month.year, month.month, 1, tzinfo=UTC)
    end = datetime(month.year + month.month // 12, month.month % 12 + 1, 1, tzinfo=UTC)
    return start, end
