"""Erase the requests of a person in archived months: write a file again, then name it in the row.

The new file has a new name, and the transaction that names it also appends the links of the hash
chain. So a kill leaves a month whose row names one complete file. The old file is deleted last.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final

from django.db import transaction

from proxy.ledger.archive import files, outbox, parquet
from proxy.ledger.archive.files import ArchiveError
from proxy.ledger.archive.reading import rows_path, transcripts_path
from proxy.ledger.maintenance import archive_run
from proxy.ledger.maintenance.retention import FIRST
from proxy.ledger.posting import hash_chain
from proxy.ledger.posting.exchange_columns import set_columns
from proxy.ledger.posting.hash_chain import digest_of
from proxy.models import ArchivedMonth, ArchiveState, Exchange, HashChainLink, LinkKind, Part

from .person import Person
from .requests import slices

BATCH: Final = 1000
MAX_VERSIONS: Final = 100
"""Versions of a file that are looked for: one a day while the transcripts of a month expire."""


def removed_months() -> list[ArchivedMonth]:
    """Return the months whose rows are only in their files, oldest first."""
    return list(ArchivedMonth.objects.filter(state=ArchiveState.REMOVED).order_by("month"))


def ids_of(month: ArchivedMonth, person: Person) -> list[str]:
    """Return the ids of the person's requests in the month's file."""
    is_own = '"user" = ? OR ("user" = \'\' AND key_id IN (SELECT unnest(?::BIGINT[])))'
    until = person.until.astimezone(UTC).replace(tzinfo=None)
    rows = parquet.read(
        rows_path(month), f"({is_own}) AND created <= ?", person.name, list(person.keys), until
    )
    return [row.pk for row in rows]


def count_transcripts(month: ArchivedMonth, ids: list[str]) -> int:
    """Return how many of these requests have a transcript in the month's files."""
    if not month.transcripts_sha256:
        return 0
    return len(set(ids).intersection(parquet.transcript_ids(transcripts_path(month))))


def erase_month(
    month: ArchivedMonth, person: Person, ids: list[str], folder: Path
) -> Iterator[int]:
    """Write the month's files without the person's data; yield numbers of rows as the progress.

    ``ids``: the person's requests in it. ``folder``: an empty folder for incomplete files. Raises
    ArchiveError if a file is damaged.
    """
    outbox.check_files(month)
    if month.transcripts_sha256:
        _expire_parts(transcripts_path(month), ids)
        archive_run.drop_transcripts(month, ids, folder)
    path = folder / month.file_of(month.version + 1)
    yield from parquet.write(_changed_rows(month, person), path)
    files.put(month.location, path)
    yield from adopt(month, month.version + 1, {person.pseudonym})


def _expire_parts(path: Path, ids: list[str]) -> None:
    """Let the next pruning delete those parts of these transcripts that the database still has."""
    wanted = {pk for _, parts in parquet.transcripts_by_id(path, ids) for pk in parts}
    digests = [part.digest for part in parquet.parts_by_id(path, wanted)]
    for some in slices(digests):
        Part.objects.filter(digest__in=some).update(used=FIRST)


def _changed_rows(month: ArchivedMonth, person: Person) -> Iterator[Exchange]:
    for row in parquet.read(rows_path(month)):
        if person.is_owner(row.user, row.key_id) and row.created <= person.until:
            set_columns(row, person.columns(row))
        yield row


def adopt(month: ArchivedMonth, version: int, pseudonyms: set[str]) -> Iterator[int]:
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
        changed += _differing(batch, pseudonyms)
        rows += len(batch)
        cost += sum(row.cost_nanousd or 0 for row in batch)
        yield len(batch)
    if (rows, cost) != (month.rows, month.cost_nanousd):
        address = files.address(month.location, name)
        raise ArchiveError(f"{address} has other totals than {month.month:%Y-%m}")
    with transaction.atomic():
        head = hash_chain.lock_ledger()
        for at in range(0, len(changed), BATCH):
            some = parquet.read_by_id(path, changed[at : at + BATCH])
            hash_chain.append_links(
                head, [(row, None) for row in some], datetime.now(UTC), LinkKind.ERASED
            )
        month.version, month.sha256 = version, sha256
        month.file_bytes = path.stat().st_size
        month.head_sequence, month.head_digest = head.sequence, bytes(head.digest)
        month.archived = datetime.now(UTC)
        month.save()


def _differing(rows: list[Exchange], pseudonyms: set[str]) -> list[str]:
    """Return the ids of the rows that differ from their newest link."""
    links = HashChainLink.objects.filter(exchange_id__in=[row.pk for row in rows])
    newest = dict(links.order_by("sequence").values_list("exchange_id", "row_digest"))
    found = []
    for row in rows:
        if bytes(newest.get(row.pk, b"")) != digest_of(row):
            if row.user not in pseudonyms:
                raise ArchiveError(f"{row.pk} differs from its link of the hash chain")
            found.append(row.pk)
    return found


def remove_old_files() -> None:
    """Delete the files of earlier versions, and local copies that no month names."""
    for month in ArchivedMonth.objects.filter(version__gt=1):
        for version in range(1, month.version):
            files.remove(month.location, month.file_of(version))
    archive_run.remove_old_transcripts()


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


def adopt_newer_versions(pseudonyms: set[str]) -> Iterator[int]:
    """After the restore of a backup, name the files from which users have been erased since."""
    for month in removed_months():
        if month.transcripts_sha256:
            _adopt_newer_transcripts(month)
        if files.stored_sha256(month.location, month.file) == month.sha256:
            continue
        if version := _newest(month.location, month.file_of, month.version):
            yield from adopt(month, version, pseudonyms)


def _adopt_newer_transcripts(month: ArchivedMonth) -> None:
    """Name the newest file of transcripts: users were erased from it, or transcripts expired."""
    name, expected = month.transcripts_file, month.transcripts_sha256
    if files.stored_sha256(month.location, name) == expected:
        return
    version = _newest(month.location, month.transcripts_file_of, month.transcripts_version)
    if version:
        month.transcripts_version = version
        sha256 = files.stored_sha256(month.location, month.transcripts_file)
        path = files.local_path(month.location, month.transcripts_file, sha256)
        month.transcripts = sum(1 for _ in parquet.transcript_ids(path))
        month.transcripts_sha256 = sha256
        month.save(update_fields=["transcripts_version", "transcripts_sha256", "transcripts"])


def _newest(location: str, name_of: Callable[[int], str], after: int) -> int:
    """Return the newest version of a file after one; 0: there is none. Earlier ones are deleted."""
    versions = range(after + MAX_VERSIONS, after, -1)
    return next((each for each in versions if files.stored_sha256(location, name_of(each))), 0)
