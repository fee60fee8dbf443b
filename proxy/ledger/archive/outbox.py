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
from collections.abc import Iterator
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import zstandard
from django.db import connection, transaction
from django.db.models import Count, Min, QuerySet, Sum

from proxy.conf import conf
from proxy.encryption.bodies import MissingBodyKey
from proxy.ledger.database.bulk_sql import select, write
from proxy.ledger.posting.hash_chain import digest_of, lock_ledger
from proxy.ledger.search import indexer
from proxy.ledger.transcripts import part_codec, storage
from proxy.ledger.transcripts.encoding import StreamCompressor
from proxy.models import (
    ArchivedMonth,
    ArchiveState,
    DrainWatermark,
    Exchange,
    HashChainLink,
    LedgerHead,
    Part,
    State,
    Transcript,
)
from proxy.secrets import ConfigError

from . import files, parquet
from .files import ArchiveError
from .parquet import ArchivedPart, ArchivedTranscript
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
    path = folder / entry.file
    yield from parquet.write(rows_of(month).order_by("pk").iterator(chunk_size=BATCH), path)
    stored = _Totals()
    yield from stored.add_file(path)
    expected = rows_of(month).aggregate(rows=Count("pk"), cost=Sum("cost_nanousd"))
    if (stored.rows, stored.cost_nanousd) != (expected["rows"], expected["cost"] or 0):
        raise ArchiveError(f"the rows of {month:%Y-%m} changed while they were archived")
    transcripts = folder / entry.transcripts_file
    count = 0
    if transcripts_of(month).exists():
        try:
            yield from parquet.write_transcripts(transcripts_of(month).order_by("pk"), transcripts)
        except MissingBodyKey as missing:
            raise ConfigError(f"a transcript of {month:%Y-%m} is {missing}") from None
        except (zstandard.ZstdError, ValueError) as exc:
            raise ArchiveError(f"a transcript of {month:%Y-%m} cannot be read: {exc}") from exc
        for number in _compare_transcripts(transcripts):
            count += number
            yield number
        if count != transcripts_of(month).count():
            raise ArchiveError(f"the transcripts of {month:%Y-%m} changed meanwhile")
    elif entry.transcripts_sha256:
        files.remove(entry.location, entry.transcripts_file)
    ArchivedMonth.objects.filter(pk=month, state=ArchiveState.WRITING).update(
        state=ArchiveState.ARCHIVED,
        location=location,
        sha256=put(location, path),
        file_bytes=path.stat().st_size,
        transcripts_sha256=put(location, transcripts) if count else "",
        transcripts=count,
        rows=stored.rows,
        first_id=stored.first_id,
        last_id=stored.last_id,
        cost_nanousd=stored.cost_nanousd,
        head_sequence=head.sequence,
        head_digest=bytes(head.digest),
        archived=datetime.now(UTC),
    )


def put(location: str, path: Path) -> str:
    """Store a file, read it back, and return its digest. Raise ArchiveError if it differs."""
    sha256 = files.sha256_of(path)
    files.put(location, path)
    if files.stored_sha256(location, path.name) != sha256:
        raise ArchiveError(f"{location}/{path.name} is not what was written")
    return sha256


class _Totals:
    """The totals of a file, of which every row is compared with its newest link."""

    def __init__(self) -> None:
        self.rows = self.cost_nanousd = 0
        self.first_id = self.last_id = ""

    def add_file(self, path: Path) -> Iterator[int]:
        rows = parquet.read(path)
        while batch := list(islice(rows, VERIFIED_TOGETHER)):
            yield self.add(batch)

    def add(self, batch: list[Exchange]) -> int:
        ids = [row.pk for row in batch]
        links = HashChainLink.objects.filter(exchange_id__in=ids).order_by("sequence")
        newest = dict(links.values_list("exchange_id", "row_digest"))
        for row in batch:
            if bytes(newest.get(row.pk, b"")) != digest_of(row):
                raise ArchiveError(f"{row.pk} differs from its link of the hash chain")
            self.cost_nanousd += row.cost_nanousd or 0
        self.first_id = self.first_id or ids[0]
        self.last_id = ids[-1]
        self.rows += len(ids)
        return len(ids)


def _compare_transcripts(path: Path) -> Iterator[int]:
    """Compare the transcripts of a file and their parts with the database, byte by byte."""
    ids = parquet.transcript_ids(path)
    while some := list(islice(ids, TRANSCRIPTS_TOGETHER)):
        stored = Transcript.objects.in_bulk(some)
        wanted: set[int] = set()
        for row, part_ids in parquet.transcripts_by_id(path, some):
            if row.pk not in stored or _bytes_of(row) != _bytes_of(stored[row.pk]):
                raise ArchiveError(f"the transcript of {row.pk} changed while it was archived")
            wanted.update(part_ids)
        parts = {part.id: part for part in parquet.parts_by_id(path, wanted)}
        for pk, digest, data in storage.part_rows(wanted):
            part = parts.pop(pk, None)
            if part is None or (part.digest, part.data) != (bytes(digest), bytes(data)):
                raise ArchiveError(f"part {pk} changed while it was archived")
            wanted.discard(pk)
        if parts or wanted:
            raise ArchiveError(f"parts of the transcripts from {some[0]} on are missing")
        yield len(some)


def _bytes_of(row: Transcript) -> tuple[bytes, bytes, bytes | None]:
    stream = None if row.stream is None else bytes(row.stream)
    return bytes(row.prefix), bytes(row.manifest), stream


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
    path = rows_path(entry)
    while deleted := _remove_batch(entry, path, batch):
        yield deleted
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
    archived = set(parquet.transcript_ids(path)) if path else set()
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


def _remove_batch(entry: ArchivedMonth, path: Path, batch: int) -> int:
    """Delete the next rows and store the last id, in one transaction; return how many rows."""
    ids = [row.pk for row in islice(parquet.read(path, "id > ?", entry.removed_to), batch)]
    if not ids:
        return 0
    with transaction.atomic():
        lock_ledger()
        indexer.forget_exchanges(ids)
        Transcript.objects.filter(pk__in=ids).delete()  # a cascade would load them first
        Exchange.objects.filter(pk__in=ids).delete()
        entry.removed_to = ids[-1]
        entry.save(update_fields=["removed_to"])
    return len(ids)


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
    if not is_dry_run:
        ArchivedMonth.objects.filter(pk=month).update(state=ArchiveState.RESTORING)
    totals, transcripts = _Totals(), 0
    rows = parquet.read(rows_path(entry))
    while some := list(islice(rows, batch)):
        totals.add(some)
        done = _restore_batch(entry, some, is_dry_run=is_dry_run)
        transcripts += done.transcripts
        yield done
    found = (totals.rows, totals.cost_nanousd, transcripts)
    if found != (entry.rows, entry.cost_nanousd, entry.transcripts):
        raise ArchiveError(f"the files of {month:%Y-%m} have other totals than its entry")
    if not is_dry_run:
        ArchivedMonth.objects.filter(pk=month).update(state=ArchiveState.RESTORED, removed_to="")


def _restore_batch(entry: ArchivedMonth, rows: list[Exchange], *, is_dry_run: bool) -> Restored:
    ids = [row.pk for row in rows]
    done = Restored()
    with contextlib.nullcontext() if is_dry_run else transaction.atomic():
        if not is_dry_run:
            lock_ledger()
        stored = {pk for (pk,) in select(Exchange, ("id",), "id", ids)}
        missing = [row for row in rows if row.pk not in stored]
        if not is_dry_run:
            write(Exchange, [vars(row) for row in missing])
        done = done._replace(rows=len(rows), inserted=len(missing))
        if entry.transcripts_sha256:
            path = transcripts_path(entry)
            bounds = "exchange_id BETWEEN ? AND ?"
            archived = sorted(set(parquet.transcript_ids(path, bounds, ids[0], ids[-1])) & set(ids))
            stored = {pk for (pk,) in select(Transcript, ("exchange_id",), "exchange_id", archived)}
            absent = [pk for pk in archived if pk not in stored]
            for at in range(0, len(absent), TRANSCRIPTS_TOGETHER):
                some = absent[at : at + TRANSCRIPTS_TOGETHER]
                _restore_transcripts(path, some, {row.pk: row for row in rows}, is_dry_run)
            done = done._replace(transcripts=len(archived), inserted_transcripts=len(absent))
    return done


def _restore_transcripts(
    path: Path, ids: list[str], rows: dict[str, Exchange], is_dry_run: bool
) -> None:
    """Compare transcripts with the hash chain, and insert and index them."""
    found = list(parquet.transcripts_by_id(path, ids))
    parts = {part.id: part for part in parquet.parts_by_id(path, {i for t in found for i in t[1]})}
    links = HashChainLink.objects.filter(exchange_id__in=ids).order_by("sequence")
    newest = dict(links.values_list("exchange_id", "body_digest"))
    indexed = []
    for row, part_ids in found:
        own = [(part.id, part.digest, part.data) for part in map(parts.__getitem__, part_ids)]
        try:
            one = storage.load(row, own).conversation
        except storage.EncryptedTranscript as exc:
            raise ConfigError(f"{row.pk}: {exc}") from None
        except storage.BrokenTranscript as exc:
            raise ArchiveError(f"{row.pk}: {exc}") from exc
        if one.digest() != bytes(newest.get(row.pk) or b""):
            raise ArchiveError(f"the transcript of {row.pk} differs from the hash chain")
        indexed.append((one, rows[row.pk]))
    if is_dry_run:
        return
    new_ids = _restore_parts(list(parts.values()))
    write(Transcript, [_with_new_parts(one, new_ids) for one in found])
    if not conf.search:
        return
    previous = {row.previous_id for _, row in indexed} - {""}
    kept = set(Transcript.objects.filter(pk__in=previous).values_list("pk", flat=True))
    indexer.index_conversations(
        # Without the previous transcript, no other one has the messages that both contain.
        (one, row.team, row.new_from if row.previous_id in kept else 0)
        for one, row in indexed
    )


def _restore_parts(parts: list[ArchivedPart]) -> dict[int, int]:
    """Insert the parts that are missing; return the ids of all, by the ids in the file.

    A part keeps its id, unless its text has been stored under another one since, or another part
    has its id, as in a restored backup.
    """
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    digests = [part.digest for part in parts]
    known = {bytes(d): pk for d, pk in select(Part, ("digest", "id"), "digest", digests)}
    missing = [part for part in parts if part.digest not in known]
    taken = {pk for (pk,) in select(Part, ("id",), "id", [part.id for part in missing])}
    Part.objects.bulk_create(
        Part(
            pk=None if part.id in taken else part.id,
            digest=part.digest, size=part.size, data=part.data, used=hour,
        )
        for part in missing
    )  # fmt: skip
    known |= {bytes(d): pk for d, pk in select(Part, ("digest", "id"), "digest", digests)}
    if missing and connection.vendor == "postgresql":
        with connection.cursor() as cursor:  # an explicit id does not advance the sequence
            cursor.execute(
                "SELECT setval(s, GREATEST(%s, nextval(s))) "
                "FROM (SELECT pg_get_serial_sequence('proxy_part', 'id') AS s) AS sequences",
                [max(known.values())],
            )
    # A purge that has read the transcripts before this commit must not delete the parts.
    for at in range(0, len(digests), BATCH):
        some = digests[at : at + BATCH]
        Part.objects.filter(digest__in=some, used__lt=hour).update(used=hour)
    return {part.id: known[part.digest] for part in parts}


def _with_new_parts(archived: ArchivedTranscript, new_ids: dict[int, int]) -> dict[str, object]:
    row, part_ids = archived
    columns = {
        "exchange_id": row.pk, "created": row.created, "prefix": row.prefix,
        "manifest": row.manifest, "stream": row.stream,
    }  # fmt: skip
    if any(new_ids[pk] != pk for pk in part_ids):
        manifest = part_codec.decode_manifest(row.pk, row.manifest)
        columns["manifest"] = part_codec.encode_manifest(
            StreamCompressor().small, row.pk, storage.with_part_ids(manifest, new_ids)
        )
    return columns
