"""Move closed months of ledger rows to Parquet files, each exactly once, in steps.

A kill at any point loses and doubles nothing: an incomplete file is written again from the start,
a file is verified before its month is marked as archived, and each transaction that deletes rows
stores how far the deletion has come. Links of the hash chain and rollups stay in the database.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

from django.db import connection, transaction
from django.db.models import Count, Min, QuerySet, Sum

from proxy.conf import conf
from proxy.ledger.posting.hash_chain import differing, lock_ledger
from proxy.models import (
    ArchivedMonth,
    ArchiveState,
    DrainWatermark,
    Exchange,
    HashChainLink,
    LedgerHead,
    State,
    Transcript,
)
from proxy.secrets import ConfigError

from . import files, parquet
from .duckdb_backend import ArchivedFile
from .files import ArchiveError
from .reading import ARCHIVE, bounds, reading

BATCH: Final = 1000
LOCK: Final = 0x6D62_6172  # "mbar"; id of the advisory lock, different from all other ids
VERIFIED_TOGETHER: Final = 2000


def rows_of(month: date) -> QuerySet[Exchange]:
    start, end = bounds(month)
    return Exchange.objects.filter(created__gte=start, created__lt=end)


def closed_months(before: date) -> list[date]:
    """Return the months before ``before`` that have rows and no complete file, oldest first.

    Raise ConfigError if a request of these months is still open, or may be in a journal only.
    """
    oldest = Exchange.objects.aggregate(oldest=Min("created"))["oldest"]
    if oldest is None:
        return []
    done = set(
        ArchivedMonth.objects.exclude(state=ArchiveState.WRITING).values_list("month", flat=True)
    )
    month, found = oldest.astimezone(UTC).date().replace(day=1), []
    while month < before:
        if month not in done and rows_of(month).exists():
            found.append(month)
        month = bounds(month)[1].date()
    if found:
        _check_closed(bounds(found[-1])[1])
    return found


def _check_closed(end: datetime) -> None:
    late = DrainWatermark.objects.filter(as_of__lt=end, backlog__gt=0).first()
    if late is not None:
        raise ConfigError(f"the journal {late.journal} has records that are not posted")
    running = Exchange.objects.filter(state=State.OPEN, created__lt=end).order_by("pk").first()
    if running is not None:
        raise ConfigError(f"{running.pk} is still open; see manage.py settleorphans")


@contextlib.contextmanager
def work_folder() -> Iterator[Path]:
    """Yield an empty folder for incomplete files; only one process of the gateway gets it."""
    folder = conf.data_dir / "archive-work"
    handle = os.open(conf.data_dir / "archive-work.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
        folder.mkdir(mode=0o700)
        with _lock_of_database():
            yield folder
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        raise ConfigError("another archivemonths is running") from None
    finally:
        os.close(handle)


@contextlib.contextmanager
def _lock_of_database() -> Iterator[None]:
    """Exclude the processes of other hosts, which share a PostgreSQL. Raise BlockingIOError."""
    if connection.vendor != "postgresql":
        yield
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [LOCK])
        if not cursor.fetchone()[0]:
            raise BlockingIOError
        try:
            yield
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [LOCK])


def archive(month: date, location: str, folder: Path) -> Iterator[int]:
    """Write the file of a month, verify and store it; yield numbers of rows as the progress.

    Raise ArchiveError if the ledger, the file and the hash chain do not agree.
    """
    entry, is_new = ArchivedMonth.objects.get_or_create(
        month=month, defaults={"location": location}
    )
    if is_new and files.stored_sha256(location, entry.file):
        ArchivedMonth.objects.filter(pk=month).delete()
        raise ArchiveError(f"{location} already has {entry.file}, which this ledger did not write")
    head = LedgerHead.objects.filter(pk=1).first() or LedgerHead()
    path = folder / entry.file
    yield from parquet.write(rows_of(month).order_by("pk").iterator(chunk_size=BATCH), path)
    stored = _Totals()
    yield from stored.add_file(path)
    expected = rows_of(month).aggregate(rows=Count("pk"), cost=Sum("cost_nanousd"))
    if (stored.rows, stored.cost_nanousd) != (expected["rows"], expected["cost"] or 0):
        raise ArchiveError(f"the rows of {month:%Y-%m} changed while they were archived")
    sha256 = files.sha256_of(path)
    files.put(location, path)
    if files.stored_sha256(location, entry.file) != sha256:
        raise ArchiveError(f"{location}/{entry.file} is not what was written")
    ArchivedMonth.objects.filter(pk=month, state=ArchiveState.WRITING).update(
        state=ArchiveState.ARCHIVED,
        location=location,
        sha256=sha256,
        file_bytes=path.stat().st_size,
        rows=stored.rows,
        first_id=stored.first_id,
        last_id=stored.last_id,
        cost_nanousd=stored.cost_nanousd,
        head_sequence=head.sequence,
        head_digest=bytes(head.digest),
        archived=datetime.now(UTC),
    )


class _Totals:
    """The totals of a file, of which every row is compared with its newest link."""

    def __init__(self) -> None:
        self.rows = self.cost_nanousd = 0
        self.first_id = self.last_id = ""

    def add_file(self, path: Path) -> Iterator[int]:
        with reading([ArchivedFile(str(path))]):
            rows = Exchange.objects.using(ARCHIVE).order_by("pk").iterator()
        batch: list[Exchange] = []
        for row in rows:
            batch.append(row)
            if len(batch) == VERIFIED_TOGETHER:
                yield self._add(batch)
                batch = []
        yield self._add(batch)

    def _add(self, batch: list[Exchange]) -> int:
        ids = [row.pk for row in batch]
        if changed := differing(batch):
            raise ArchiveError(f"{changed[0].pk} differs from its link of the hash chain")
        for row in batch:
            self.cost_nanousd += row.cost_nanousd or 0
        if ids:
            self.first_id = self.first_id or ids[0]
            self.last_id = ids[-1]
        self.rows += len(ids)
        return len(ids)


def removable_months() -> Iterator[tuple[date, str]]:
    """Yield the archived months with rows in the database, and why they must stay; "": they go."""
    waiting = ArchivedMonth.objects.filter(state__in=(ArchiveState.ARCHIVED, ArchiveState.REMOVING))
    for month in waiting.values_list("month", flat=True):
        start, end = bounds(month)
        transcripts = Transcript.objects.filter(created__gte=start, created__lt=end)
        yield month, "transcripts are stored" if transcripts.exists() else ""


def remove(month: date, batch: int = BATCH) -> Iterator[int]:
    """Delete the rows of an archived month from the database; yield the size of each batch.

    Raise ArchiveError if the file is damaged, or if a row changed after it was archived: then the
    next run archives the month again.
    """
    entry = ArchivedMonth.objects.get(pk=month)
    if files.stored_sha256(entry.location, entry.file) != entry.sha256:
        raise ArchiveError(f"{files.address(entry.location, entry.file)} is missing or damaged")
    if entry.state == ArchiveState.ARCHIVED:
        _begin_removal(entry)
    path = files.local_path(entry.location, entry.file, entry.sha256)
    while deleted := _remove_batch(entry, ArchivedFile(str(path)), batch):
        yield deleted
    ArchivedMonth.objects.filter(pk=month).update(state=ArchiveState.REMOVED)


def _begin_removal(entry: ArchivedMonth) -> None:
    """Mark the month, after which none of its rows can change, unless a row has changed before."""
    with transaction.atomic():
        lock_ledger()
        ids = rows_of(entry.month).values("pk")
        newer = HashChainLink.objects.filter(sequence__gt=entry.head_sequence, exchange_id__in=ids)
        changed = newer.values_list("exchange_id", flat=True).first()
        state = ArchiveState.REMOVING if changed is None else ArchiveState.WRITING
        ArchivedMonth.objects.filter(pk=entry.pk).update(state=state)
    if changed is not None:
        raise ArchiveError(f"{changed} was changed after it was archived; archive the month again")


def _remove_batch(entry: ArchivedMonth, file: ArchivedFile, batch: int) -> int:
    """Delete the next rows and store the last id, in one transaction; return how many rows."""
    with reading([file]):
        archived = Exchange.objects.using(ARCHIVE).filter(pk__gt=entry.removed_to).order_by("pk")
        ids = list(archived.values_list("pk", flat=True)[:batch])
    if not ids:
        return 0
    with transaction.atomic():
        lock_ledger()
        Exchange.objects.filter(pk__in=ids).delete()
        entry.removed_to = ids[-1]
        entry.save(update_fields=["removed_to"])
    return len(ids)
