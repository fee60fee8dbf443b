"""Erase the requests of a person in archived months: write the file again, then name it in the row.

The new file has a new name, and the transaction that names it also appends the links of the hash
chain. So a kill leaves a month whose row names one complete file. The old file is deleted last.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from django.db import transaction

from proxy.ledger.archive import files, outbox, parquet
from proxy.ledger.archive.duckdb_backend import ArchivedFile
from proxy.ledger.archive.files import ArchiveError
from proxy.ledger.archive.reading import ARCHIVE, reading
from proxy.ledger.posting import hash_chain
from proxy.ledger.posting.audit_links import Cause
from proxy.ledger.posting.exchange_columns import set_columns
from proxy.models import ArchivedMonth, ArchiveState, Exchange, HashChainLink, LinkKind

from .person import Person

BATCH: Final = 1000


def removed_months() -> list[ArchivedMonth]:
    """Return the months whose rows are only in their files, oldest first."""
    return list(ArchivedMonth.objects.filter(state=ArchiveState.REMOVED).order_by("month"))


def count_rows(month: ArchivedMonth, person: Person) -> int:
    with reading([_file(month)]):
        rows = Exchange.objects.using(ARCHIVE).filter(person.is_of_person)
        return rows.filter(created__lte=person.until).count()


def erase_month(month: ArchivedMonth, person: Person, folder: Path, cause: Cause) -> Iterator[int]:
    """Write the month's file without the person's data; yield numbers of rows as the progress.

    ``folder``: an empty folder for incomplete files. Raises ArchiveError if a file is damaged.
    """
    if files.stored_sha256(month.location, month.file) != month.sha256:
        raise ArchiveError(f"{files.address(month.location, month.file)} is missing or damaged")
    path = folder / month.file_of(month.version + 1)
    yield from parquet.write(_changed_rows(month, person), path)
    files.put(month.location, path)
    yield from adopt(month, month.version + 1, {person.pseudonym}, cause)


def _changed_rows(month: ArchivedMonth, person: Person) -> Iterator[Exchange]:
    with reading([_file(month)]):
        for row in Exchange.objects.using(ARCHIVE).order_by("pk").iterator():
            if person.is_owner(row.user, row.key_id) and row.created <= person.until:
                set_columns(row, person.columns(row))
            yield row


def adopt(month: ArchivedMonth, version: int, pseudonyms: set[str], cause: Cause) -> Iterator[int]:
    """Let the month's row name the file of a version; yield numbers of rows as the progress.

    The file has the rows of the month, but rows of these pseudonyms may differ from their links of
    the hash chain, and get new ones. Raises ArchiveError for any other difference.
    """
    name = month.file_of(version)
    sha256 = files.stored_sha256(month.location, name)
    file = ArchivedFile(str(files.local_path(month.location, name, sha256)))
    changed: list[str] = []
    rows = cost = 0
    with reading([file]):
        batch: list[Exchange] = []
        for row in Exchange.objects.using(ARCHIVE).order_by("pk").iterator():
            batch.append(row)
            cost += row.cost_nanousd or 0
            rows += 1
            if len(batch) == BATCH:
                changed += _differing(batch, pseudonyms)
                yield len(batch)
                batch = []
        changed += _differing(batch, pseudonyms)
        yield len(batch)
        if (rows, cost) != (month.rows, month.cost_nanousd):
            address = files.address(month.location, name)
            raise ArchiveError(f"{address} has other totals than {month.month:%Y-%m}")
        with transaction.atomic():
            head = hash_chain.lock_ledger()
            for at in range(0, len(changed), BATCH):
                ids = changed[at : at + BATCH]
                some = Exchange.objects.using(ARCHIVE).filter(pk__in=ids).order_by("pk")
                # Without the digests before the change: a killed run may have deleted that file.
                notes = dict.fromkeys(ids, hash_chain.note_of(cause.link(head)))
                links = [(row, None) for row in some]
                hash_chain.append_links(head, links, datetime.now(UTC), LinkKind.ERASED, notes)
            month.version, month.sha256 = version, sha256
            month.file_bytes = Path(file.path).stat().st_size
            month.head_sequence, month.head_digest = head.sequence, bytes(head.digest)
            month.archived = datetime.now(UTC)
            month.save()


def _differing(rows: list[Exchange], pseudonyms: set[str]) -> list[str]:
    """Return the ids of the rows that differ from their newest link."""
    found = hash_chain.differing(rows)
    if others := [row.pk for row in found if row.user not in pseudonyms]:
        raise ArchiveError(f"{others[0]} differs from its link of the hash chain")
    return [row.pk for row in found]


def remove_old_files() -> None:
    """Delete the files of earlier versions, and local copies that no month names."""
    months = ArchivedMonth.objects.all()
    for month in months.filter(version__gt=1):
        for version in range(1, month.version):
            files.remove(month.location, month.file_of(version))
    files.remove_copies(set(months.values_list("sha256", flat=True)))


def write_stale_again(folder: Path) -> Iterator[int]:
    """Write the files of months again whose rows are in the database and were changed."""
    for month in ArchivedMonth.objects.filter(
        state__in=(ArchiveState.ARCHIVED, ArchiveState.WRITING), archived__isnull=False
    ):
        ids = outbox.rows_of(month.month).values("pk")
        newer = HashChainLink.objects.filter(sequence__gt=month.head_sequence, exchange_id__in=ids)
        if month.state == ArchiveState.ARCHIVED and not newer.exists():
            continue
        ArchivedMonth.objects.filter(pk=month.pk).update(state=ArchiveState.WRITING)
        yield from outbox.archive(month.month, month.location, folder)


def adopt_newer_versions(pseudonyms: set[str], cause: Cause) -> Iterator[int]:
    """After the restore of a backup, name the files from which users have been erased since."""
    for month in removed_months():
        if files.stored_sha256(month.location, month.file) == month.sha256:
            continue
        version = month.version + 1
        while files.stored_sha256(month.location, month.file_of(version + 1)):
            version += 1
        if files.stored_sha256(month.location, month.file_of(version)):
            yield from adopt(month, version, pseudonyms, cause)


def _file(month: ArchivedMonth) -> ArchivedFile:
    return ArchivedFile(str(files.local_path(month.location, month.file, month.sha256)))
