"""Move closed months of the ledger to Parquet files and back, each row exactly once, in steps.

A kill at any point loses and doubles nothing: an incomplete file is written again from the start,
a file is verified before its month is marked as archived, each transaction that deletes rows
stores how far the deletion has come, and a row that is back is not inserted again. Links of the
hash chain and rollups stay in the database.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, Self

import zstandard
from django.db import transaction
from django.db.models import Count, Max, Min, QuerySet, Sum

from proxy.conf import conf
from proxy.encryption.bodies import MissingBodyKey
from proxy.ledger.database.access import advisory_lock
from proxy.ledger.database.bulk_sql import select, write
from proxy.ledger.posting.hash_chain import differing, lock_ledger, newest_links
from proxy.ledger.search import indexer
from proxy.ledger.transcripts import storage
from proxy.ledger.transcripts.encoding import Conversation
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
from .files import ArchiveError
from .reading import ONLY_ARCHIVED, bounds, rows_path, transcripts_path

BATCH: Final = 1000
LOCK: Final = 0x6D62_6172  # "mbar"; id of the advisory lock, different from all other ids
VERIFIED_TOGETHER: Final = 2000
TRANSCRIPTS_TOGETHER: Final = 100
"""Transcripts that are in memory at a time, with their parts."""
RESTORED_TOGETHER: Final = 200
"""Rows that one transaction inserts, during which no gateway can post."""


def rows_of(month: date) -> QuerySet[Exchange]:
    start, end = bounds(month)
    return Exchange.objects.filter(created__gte=start, created__lt=end)


def transcripts_of(month: date) -> QuerySet[Transcript]:
    start, end = bounds(month)
    return Transcript.objects.filter(exchange__created__gte=start, exchange__created__lt=end)


def closed_months(before: date) -> list[date]:
    """Return the months before ``before`` that have rows and no complete files, oldest first.

    Version 1.0 archived only rows, so the file of transcripts may be missing.

    Raise ConfigError if a request of these months is still open, or may be in a journal only.
    """
    oldest = Exchange.objects.aggregate(oldest=Min("created"))["oldest"]
    if oldest is None:
        return []
    rows_only = ArchivedMonth.objects.filter(state=ArchiveState.ARCHIVED, transcripts_sha256="")
    for entry in rows_only.filter(month__lt=before):
        if transcripts_of(entry.month).exists():
            ArchivedMonth.objects.filter(pk=entry.pk).update(state=ArchiveState.WRITING)
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
        with advisory_lock(LOCK, wait=False):
            yield folder
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        raise ConfigError("another archivemonths is running") from None
    finally:
        os.close(handle)


def archive(month: date, location: str, folder: Path) -> Iterator[int]:
    """Write the files of a month, verify and store them; yield numbers of rows as the progress.

    Raise ArchiveError if the ledger, the files and the hash chain do not agree, and ConfigError if
    transcripts are encrypted with a key that this gateway does not have.
    """
    entry, is_new = ArchivedMonth.objects.get_or_create(
        month=month, defaults={"location": location}
    )
    if is_new and files.stored_sha256(location, entry.file):
        ArchivedMonth.objects.filter(pk=month).delete()
        raise ArchiveError(f"{location} already has {entry.file}, which this ledger did not write")
    head = LedgerHead.objects.filter(pk=1).first() or LedgerHead()
    path, transcripts = folder / entry.file, folder / entry.transcripts_file
    yield from parquet.write(rows_of(month).order_by("pk").iterator(chunk_size=BATCH), path)
    stored = Totals()
    for rows in verified_rows(path):
        stored.add(rows)
        yield len(rows)
    if transcripts_of(month).exists():
        try:
            yield from parquet.write_transcripts(transcripts_of(month).order_by("pk"), transcripts)
        except MissingBodyKey as missing:
            raise ConfigError(f"a transcript of {month:%Y-%m} is {missing}") from None
        except (zstandard.ZstdError, ValueError) as exc:
            raise ArchiveError(f"a transcript of {month:%Y-%m} cannot be read: {exc}") from exc
        ids = (one.id for one in parquet.list_transcripts(transcripts))
        while some := list(islice(ids, TRANSCRIPTS_TOGETHER)):
            stored.transcripts += len(verified_transcripts(transcripts, some))
            yield len(some)
    elif entry.transcripts_sha256:
        files.remove(entry.location, entry.transcripts_file)
    if stored != Totals.of_database(month):
        raise ArchiveError(f"the requests of {month:%Y-%m} changed while they were archived")
    ArchivedMonth.objects.filter(pk=month, state=ArchiveState.WRITING).update(
        state=ArchiveState.ARCHIVED,
        location=location,
        sha256=put(location, path),
        file_bytes=path.stat().st_size,
        transcripts_sha256=put(location, transcripts) if stored.transcripts else "",
        **asdict(stored),
        head_sequence=head.sequence,
        head_digest=bytes(head.digest),
        archived=datetime.now(UTC),
    )


@dataclass(slots=True)
class Totals:
    """The totals of a month: of its files, or of the database."""

    rows: int = 0
    cost_nanousd: int = 0
    first_id: str = ""
    last_id: str = ""
    transcripts: int = 0

    def add(self, rows: Sequence[Exchange]) -> None:
        self.rows += len(rows)
        self.cost_nanousd += sum(row.cost_nanousd or 0 for row in rows)
        self.first_id = self.first_id or rows[0].pk
        self.last_id = rows[-1].pk

    @classmethod
    def of_database(cls, month: date) -> Self:
        found = rows_of(month).aggregate(
            rows=Count("pk"), cost=Sum("cost_nanousd"), first=Min("pk"), last=Max("pk")
        )
        transcripts = transcripts_of(month).count()
        return cls(found["rows"], found["cost"] or 0, found["first"], found["last"], transcripts)

    @classmethod
    def of_entry(cls, entry: ArchivedMonth) -> Self:
        return cls(**{each.name: getattr(entry, each.name) for each in fields(cls)})


def put(location: str, path: Path) -> str:
    """Store a file, read it back, and return its digest. Raise ArchiveError if it differs."""
    sha256 = files.sha256_of(path)
    files.put(location, path)
    if files.stored_sha256(location, path.name) != sha256:
        raise ArchiveError(f"{location}/{path.name} is not what was written")
    return sha256


def verified_rows(path: Path, batch: int = VERIFIED_TOGETHER) -> Iterator[list[Exchange]]:
    """Yield the rows of a file. Raise ArchiveError if one is not as the hash chain says."""
    rows = parquet.read(path)
    while some := list(islice(rows, batch)):
        if changed := differing(some):
            raise ArchiveError(f"{changed[0].pk} differs from its link of the hash chain")
        yield some


def verified_transcripts(path: Path, ids: Collection[str]) -> list[Conversation]:
    """Return those of these requests' transcripts that a file has.

    Raise ArchiveError if one is not as the hash chain says, and ConfigError if one is encrypted
    with an unknown key.
    """
    newest, found = newest_links(ids), []
    for row, parts in parquet.read_transcripts(path, ids):
        try:
            one = storage.load(row, parts).conversation
        except storage.EncryptedTranscript as exc:
            raise ConfigError(f"{row.pk}: {exc}") from None
        except storage.BrokenTranscript as exc:
            raise ArchiveError(f"{row.pk}: {exc}") from exc
        link = newest.get(row.pk)
        if link is None or one.digest() != bytes(link.body_digest or b""):
            raise ArchiveError(f"the transcript of {row.pk} differs from the hash chain")
        found.append(one)
    return found


def removable_months() -> list[date]:
    """Return the archived months with rows in the database, oldest first."""
    waiting = ArchivedMonth.objects.filter(
        state__in=(ArchiveState.ARCHIVED, ArchiveState.REMOVING, ArchiveState.RESTORED)
    )
    return list(waiting.order_by("month").values_list("month", flat=True))


def remove(month: date, batch: int = BATCH) -> Iterator[int]:
    """Delete the rows of an archived month from the database; yield the size of each batch.

    Raise ArchiveError if a file is damaged, or if a row changed after it was archived: then the
    next run archives the month again.
    """
    entry = ArchivedMonth.objects.get(pk=month)
    check_files(entry)
    if entry.state != ArchiveState.REMOVING:
        _begin_removal(entry)
    lines = parquet.read_columns(rows_path(entry), ("id",), ("id", ">", entry.removed_to))
    while ids := [line["id"] for line in islice(lines, batch)]:
        _remove_batch(entry, ids)
        yield len(ids)
    ArchivedMonth.objects.filter(pk=month).update(state=ArchiveState.REMOVED)


def check_files(entry: ArchivedMonth) -> None:
    """Raise ArchiveError if a file of the month does not have its SHA-256."""
    expected = {entry.file: entry.sha256, entry.transcripts_file: entry.transcripts_sha256}
    for name, sha256 in expected.items():
        if sha256 and files.stored_sha256(entry.location, name) != sha256:
            raise ArchiveError(f"{files.address(entry.location, name)} is missing or damaged")


def _begin_removal(entry: ArchivedMonth) -> None:
    """Mark the month, after which none of its rows can change, unless a row has changed before."""
    path = transcripts_path(entry) if entry.transcripts_sha256 else None
    archived = {one.id for one in parquet.list_transcripts(path)} if path else set()
    with transaction.atomic():
        lock_ledger()
        ids = rows_of(entry.month).values("pk")
        newer = HashChainLink.objects.filter(sequence__gt=entry.head_sequence, exchange_id__in=ids)
        changed = newer.values_list("exchange_id", flat=True).first()
        if changed is None:
            stored = transcripts_of(entry.month).values_list("pk", flat=True).iterator()
            changed = next((pk for pk in stored if pk not in archived), None)
        state = ArchiveState.REMOVING if changed is None else ArchiveState.WRITING
        ArchivedMonth.objects.filter(pk=entry.pk).update(state=state)
    if changed is not None:
        raise ArchiveError(f"{changed} was changed after it was archived; archive the month again")


def _remove_batch(entry: ArchivedMonth, ids: list[str]) -> None:
    """Delete rows and store the last id, in one transaction."""
    with transaction.atomic():
        lock_ledger()
        indexer.forget_exchanges(ids)
        Transcript.objects.filter(pk__in=ids).delete()  # a cascade would load them first
        Exchange.objects.filter(pk__in=ids).delete()
        entry.removed_to = ids[-1]
        entry.save(update_fields=["removed_to"])


class Restored(NamedTuple):
    """What a batch had, and how much of it was inserted; a dry run counts what would be."""

    rows: int = 0
    inserted: int = 0
    transcripts: int = 0
    inserted_transcripts: int = 0


def restore(
    month: date, *, batch: int = RESTORED_TOGETHER, is_dry_run: bool = False
) -> Iterator[Restored]:
    """Insert the rows and transcripts of an archived month as they were; yield each batch.

    Every row and every transcript is compared with its newest link of the hash chain first. What is
    in the database already is skipped, so a run continues one that was interrupted. A dry run
    compares, and changes nothing. Raises ArchiveError if a file is missing, damaged or differs from
    the chain, and ConfigError if transcripts are encrypted with an unknown key.
    """
    entry = ArchivedMonth.objects.get(pk=month)
    if entry.state not in ONLY_ARCHIVED:
        return
    check_files(entry)
    own = ArchivedMonth.objects.filter(pk=month)
    if not is_dry_run:  # rows that were removed already come back, so no removal may continue
        own.update(state=ArchiveState.REMOVED, removed_to="")
    totals = Totals()
    for rows in verified_rows(rows_path(entry), batch):
        ids = [row.pk for row in rows]
        bodies = (
            verified_transcripts(transcripts_path(entry), ids) if entry.transcripts_sha256 else []
        )
        totals.add(rows)
        totals.transcripts += len(bodies)
        yield _restore_batch(rows, bodies, is_dry_run=is_dry_run)
    if totals != Totals.of_entry(entry):
        raise ArchiveError(f"the files of {month:%Y-%m} have other totals than its entry")
    if not is_dry_run:
        own.update(state=ArchiveState.RESTORED)


def _restore_batch(
    rows: Sequence[Exchange], bodies: Sequence[Conversation], *, is_dry_run: bool
) -> Restored:
    """Insert and index what the database does not have, in one transaction."""
    by_id = {row.pk: row for row in rows}
    with transaction.atomic():
        if not is_dry_run:
            lock_ledger()
        stored = {pk for (pk,) in select(Exchange, ("id",), "id", list(by_id))}
        missing = [row for pk, row in by_id.items() if pk not in stored]
        stored = {pk for (pk,) in select(Transcript, ("exchange_id",), "exchange_id", list(by_id))}
        absent = [one for one in bodies if one.exchange_id not in stored]
        if not is_dry_run:
            write(Exchange, map(vars, missing))
            storage.store(absent, datetime.now(UTC))
            if conf.search:
                previous = {row.previous_id for row in rows} - {""}
                kept = Transcript.objects.filter(pk__in=previous).values_list("pk", flat=True)
                has_previous = set(kept)
                indexer.index_conversations(
                    # Without the previous transcript, no other one has the messages of both.
                    (one, row.team, row.new_from if row.previous_id in has_previous else 0)
                    for one in absent
                    for row in (by_id[one.exchange_id],)
                )
    return Restored(len(rows), len(missing), len(bodies), len(absent))
