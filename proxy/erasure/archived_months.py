"""Erase the requests of a person in archived months: write a file again, then name it in the row.

The new file has a new name, and the transaction that names it also appends the links of the hash
chain. So a kill leaves a month whose row names one complete file. The old file is deleted last.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final

from django.db import transaction

from proxy.ledger.archive import files, outbox, parquet
from proxy.ledger.archive.files import ArchiveError
from proxy.ledger.archive.reading import rows_path, transcripts_path
from proxy.ledger.database.bulk_sql import slices
from proxy.ledger.maintenance import archive_run
from proxy.ledger.maintenance.retention import FIRST
from proxy.ledger.posting import hash_chain
from proxy.ledger.posting.audit_links import Cause
from proxy.ledger.posting.exchange_columns import set_columns
from proxy.models import ArchivedMonth, ArchiveState, Exchange, HashChainLink, LinkKind, Part

from .person import Person

BATCH: Final = 1000


def removed_months() -> list[ArchivedMonth]:
    """Return the months whose rows are only in their files, oldest first."""
    return list(ArchivedMonth.objects.filter(state=ArchiveState.REMOVED).order_by("month"))


def ids_of(month: ArchivedMonth, person: Person) -> list[str]:
    """Return the ids of the person's requests in the month's file."""
    until = ("created", "<=", parquet.without_zone(person.until))
    rows = parquet.read_columns(rows_path(month), ("id", "user", "key_id"), until)
    return [row["id"] for row in rows if person.is_owner(row["user"], row["key_id"])]


def count_transcripts(month: ArchivedMonth, ids: list[str]) -> int:
    """Return how many of these requests have a transcript in the month's files."""
    if not month.transcripts_sha256:
        return 0
    stored = parquet.list_transcripts(transcripts_path(month))
    return len(set(ids).intersection(one.id for one in stored))


def erase_month(
    month: ArchivedMonth, person: Person, ids: list[str], folder: Path, cause: Cause
) -> Iterator[int]:
    """Write the month's files without the person's data; yield numbers of rows as the progress.

    ``ids``: the person's requests in it. ``folder``: an empty folder for incomplete files. Raises
    ArchiveError if a file is damaged.
    """
    outbox.check_files(month)
    if month.transcripts_sha256:
        _expire_parts(transcripts_path(month), ids)
        archive_run.drop_transcripts(month, ids, folder)

    def changed_rows() -> Iterator[Exchange]:
        for row in parquet.read(rows_path(month)):
            if person.is_owner(row.user, row.key_id) and row.created <= person.until:
                set_columns(row, person.columns(row))
            yield row

    path = folder / month.file_of(month.version + 1)
    yield from parquet.write(changed_rows(), path)
    files.put(month.location, path)
    yield from adopt(month, month.version + 1, {person.pseudonym}, cause)


def _expire_parts(path: Path, ids: list[str]) -> None:
    """Let the next pruning delete those parts of these transcripts that the database still has."""
    for _, parts in parquet.read_transcripts(path, ids):
        for some in slices([digest for _, digest, _ in parts]):
            Part.objects.filter(digest__in=some).update(used=FIRST)


def adopt(month: ArchivedMonth, version: int, pseudonyms: set[str], cause: Cause) -> Iterator[int]:
    """Let the month's row name the file of a version; yield numbers of rows as the progress.

    The file has the rows of the month, but rows of these pseudonyms may differ from their links of
    the hash chain, and get new ones. Raises ArchiveError for any other difference.
    """
    name = month.file_of(version)
    sha256 = files.stored_sha256(month.location, name)
    path = files.local_path(month.location, name, sha256)
    changed: list[str] = []
    rows = cost = 0
    found = parquet.read(path)
    while batch := list(islice(found, BATCH)):
        for row in hash_chain.differing(batch):
            if row.user not in pseudonyms:
                raise ArchiveError(f"{row.pk} differs from its link of the hash chain")
            changed.append(row.pk)
        rows += len(batch)
        cost += sum(row.cost_nanousd or 0 for row in batch)
        yield len(batch)
    if (rows, cost) != (month.rows, month.cost_nanousd):
        address = files.address(month.location, name)
        raise ArchiveError(f"{address} has other totals than {month.month:%Y-%m}")
    with transaction.atomic():
        head = hash_chain.lock_ledger()
        for ids in slices(changed):
            some = list(parquet.read(path, *parquet.with_keys("id", ids)))
            # Without the digests before the change: a killed run may have deleted that file.
            note = hash_chain.note_of(cause.link(head))
            notes = {row.pk: note for row in some}
            links = [(row, None) for row in some]
            hash_chain.append_links(head, links, datetime.now(UTC), LinkKind.ERASED, notes)
        month.version, month.sha256 = version, sha256
        month.file_bytes = path.stat().st_size
        month.head_sequence, month.head_digest = head.sequence, bytes(head.digest)
        month.archived = datetime.now(UTC)
        month.save()


def write_stale_again(folder: Path) -> Iterator[int]:
    """Write the files of months again whose rows are in the database and were changed."""
    for month in ArchivedMonth.objects.filter(
        state__in=(ArchiveState.ARCHIVED, ArchiveState.RESTORED, ArchiveState.WRITING),
        archived__isnull=False,
    ):
        ids = outbox.rows_of(month.month).values("pk")
        newer = HashChainLink.objects.filter(sequence__gt=month.head_sequence, exchange_id__in=ids)
        if month.state != ArchiveState.WRITING and not newer.exists():
            continue
        row = ArchivedMonth.objects.filter(pk=month.pk)
        row.update(state=ArchiveState.WRITING)
        yield from outbox.archive(month.month, month.location, folder)
        if month.state == ArchiveState.RESTORED:
            row.update(state=ArchiveState.RESTORED)


def adopt_newer_versions(pseudonyms: set[str], cause: Cause) -> Iterator[int]:
    """After the restore of a backup, name the files from which users have been erased since."""
    for month in removed_months():
        archive_run.adopt_newer_transcripts(month)
        if files.stored_sha256(month.location, month.file) == month.sha256:
            continue
        if version := archive_run.newest_version(month.location, month.file_of, month.version):
            yield from adopt(month, version, pseudonyms, cause)
