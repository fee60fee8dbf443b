"""Write the records of journals to the database, in batches ("posting").

This includes journals of dead processes, and posting again after a restore of the database.
"""

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from proxy.encryption.bodies import MissingBodyKey
from proxy.ledger.database import access
from proxy.ledger.journal import locks, segments
from proxy.ledger.journal.journal import append_durably
from proxy.ledger.journal.reader import JournalReader
from proxy.ledger.journal.records import OpenRecord, Record, decode
from proxy.ledger.transcripts.encoding import StreamCompressor
from proxy.models import DrainWatermark, Exchange, State

from . import ledger_writer, orphans
from .ledger_writer import ExchangeRecords, group_records

logger = logging.getLogger(__name__)

MAX_RECORDS: Final = 256  # number of records in one transaction
MAX_BYTES: Final = 2 * 2**20  # size of the records in one transaction
KEEP_POSTED_S: Final = 86_400.0
"""Seconds for which segments stay after their records are in the database. A database that is
restored from a backup may lack these records."""
Advance = Callable[[int], object]
"""Receives the number of requests of each batch, to show the progress."""


def no_progress(_: int) -> None:
    pass


# If these segments take more bytes, the oldest are removed earlier.
KEEP_POSTED_BYTES: Final = 512 * 2**20


def post_all(reader: JournalReader, open_delay_s: float = 0) -> Iterator[int]:
    """Write all waiting records to the database; yield the number of requests in each batch.

    A running request that was opened less than ``open_delay_s`` ago is left for a later call.
    """
    opened_before = time.time() - open_delay_s
    while True:
        reader.read(MAX_RECORDS)
        if not (ids := reader.ready_ids(MAX_RECORDS, opened_before)):
            break
        batch = _read_batch(reader, ids)
        access.check_present()  # the SQLite file may have been removed since the last batch
        reader.mark_posted(_post(reader, batch))
        yield len(batch)


def _read_batch(reader: JournalReader, ids: Sequence[str]) -> list[ExchangeRecords]:
    """Return the records of the first requests in ``ids``, up to ``MAX_BYTES``.

    A request whose records cannot be decoded is moved to the journal's quarantine.
    """
    batch: list[ExchangeRecords] = []
    size = 0
    packing = StreamCompressor()
    for request_id in ids:
        sizes: list[int] = []
        try:
            exchange = group_records(_decoded(reader, request_id, sizes))
        except ValueError as exc:  # msgspec's errors are ValueErrors
            exchange, fault = None, str(exc)
        else:
            fault = "there is no open record"
        if exchange is None:
            _set_aside(reader, request_id, fault)
            continue
        with contextlib.suppress(*access.POISON):  # _post gets the same error and handles it
            exchange.pack(packing)
        batch.append(exchange)
        size += sum(sizes)
        if size > MAX_BYTES:
            break
    return batch


def _decoded(reader: JournalReader, request_id: str, sizes: list[int]) -> Iterator[Record]:
    """Yield the decoded records of a request; append the size of each encoded record to ``sizes``.

    It decodes one record at a time, so that only one is in memory both encoded and decoded. Of a
    running request, only the open record is needed; its chunks may already have 32 MiB.
    """
    is_running = not reader.unfinished[request_id].closed
    for body in reader.bodies(request_id):
        sizes.append(len(body))
        yield (record := decode(body))
        if is_running and isinstance(record, OpenRecord):
            return


def _post(reader: JournalReader, batch: Sequence[ExchangeRecords]) -> list[str]:
    """Write all requests of the batch to the database in one transaction; return their ids.

    If the database rejects a request, write the requests one by one, and move the rejected request
    to the journal's quarantine; its id is not returned.
    """
    if not batch:
        return []
    try:
        ledger_writer.write_to_database(batch)
    except access.POISON as exc:
        if len(batch) == 1:
            _set_aside(reader, batch[0].opening.id, f"{type(exc).__name__}: {exc}")
            return []
        return [posted for exchange in batch for posted in _post(reader, [exchange])]
    return [exchange.opening.id for exchange in batch]


def _set_aside(reader: JournalReader, request_id: str, fault: str) -> None:
    logger.error("ledger: %s is set aside in the journal: %s", request_id, fault)
    reader.put_aside(request_id, fault)


def remove_posted_segments(reader: JournalReader, keep_bytes: int = KEEP_POSTED_BYTES) -> None:
    """Remove segments whose requests are in the database: those a day old, and more for space."""
    reader.remove_segments(time.time() - KEEP_POSTED_S, keep_bytes)


def watermark_key(journal: Path) -> str:
    """Return the primary key of a journal's ``DrainWatermark``."""
    return f"{socket.gethostname()}:{journal}"[-200:]


def adopt(directory: Path, advance: Advance = no_progress) -> int:
    """Write the journals of dead workers to the database; return how many were written completely.

    Such a journal is removed a day after its last record.
    """
    adopted = 0
    for lock in locks.take_abandoned(directory):
        with lock:
            adopted += _adopt_one(lock, advance)
    return adopted


class AdoptedHost(NamedTuple):
    """The names of the journals of a host that is gone, by what became of them."""

    adopted: list[str]
    in_use: list[str]
    """Journals that a process has open."""
    incomplete: list[str]
    """Journals with damaged records, or with records that the database rejected."""


def adopt_host(path: Path, advance: Advance = no_progress) -> AdoptedHost:
    """Write the journals of a host that is gone to the database, where they are.

    ``path``: the host's data directory (or a copy), or one of its journals. Nothing is deleted:
    the journals stay, marked as posted, so an interrupted adoption is repeated without effect on
    the rows that exist. Raises FileNotFoundError if there is no journal.
    """
    only = path.name if path.name.startswith("journal-") else None
    directory = path.parent if only else path
    names = {each.name for each in directory.glob("journal-*/") if only in (None, each.name)}
    if not names:
        raise FileNotFoundError(f"{path} contains no journal (a folder journal-0, journal-1 ...)")
    found = AdoptedHost([], [], [])
    for lock in locks.take_abandoned(directory):
        with lock:
            if lock.path.name in names:
                is_complete = _adopt_one(lock, advance, remove=False)
                (found.adopted if is_complete else found.incomplete).append(lock.path.name)
    found.in_use.extend(sorted(names - {*found.adopted, *found.incomplete}))
    return found


def _adopt_one(lock: locks.JournalLock, advance: Advance, *, remove: bool = True) -> bool:
    """Write one journal of a dead worker to the database.

    ``remove``: delete its old records. Returns False if the journal still has waiting or
    quarantined records.
    """
    with contextlib.closing(JournalReader(lock.path)) as reader:
        _exhaust(post_all(reader), advance)
        write = partial(append_durably, lock.path)
        _exhaust(orphans.close_orphans(reader, reader.unclosed_ids(), write))
        _exhaust(post_all(reader), advance)
        reader.save_watermark()
        if remove:
            remove_posted_segments(reader)
        if reader.backlog().records or reader.set_aside:
            return False
        is_recent = reader.newest_at() > time.time() - KEEP_POSTED_S
    DrainWatermark.objects.filter(pk=watermark_key(lock.path)).delete()
    if remove and not is_recent:
        lock.discard()
    return True


def _exhaust(batches: Iterator[int], advance: Advance = no_progress) -> None:
    for requests in batches:
        advance(requests)


class RestoredJournal(NamedTuple):
    """What a journal could add to a restored database. Times are Unix seconds."""

    name: str
    records: int
    since: float
    """All records from this time on are kept; 0: all of the journal."""
    until: float
    """When its last record was written."""
    lacking: int
    """Requests that have a record in the journal and still no closed row."""
    damaged_bytes: int


def post_again(directory: Path, advance: Advance = no_progress) -> list[RestoredJournal]:
    """Write all records of all journals to the database again, after its restore from a backup.

    The journals contain the records of about a day, or fewer: ``KEEP_POSTED_BYTES``. Rows that the
    database has do not change.
    """
    restored = []
    for path in sorted(directory.glob("journal-*/")):
        with contextlib.closing(JournalReader(path, from_start=True)) as reader:
            records = reader.backlog().records
            _exhaust(post_all(reader), advance)
            since, until = reader.kept_since(), reader.newest_at()
            refused, damaged_bytes = reader.refused, reader.damaged_bytes
        records += _post_set_aside(path)
        closed = Exchange.objects.filter(pk__in=refused, state=State.CLOSED).count()
        lacking = max(len(refused) - closed, len([*(path / "quarantine").glob("*.frames")]))
        restored.append(
            RestoredJournal(path.name, records, since or 0.0, until, lacking, damaged_bytes)
        )
    return restored


def _post_set_aside(directory: Path) -> int:
    """Try again to write a journal's quarantined requests to the database.

    Returns the number of records that were written.
    """
    records = 0
    for path in sorted((directory / "quarantine").glob("*.frames")):
        bodies = [segments.body_of(frame) for frame in segments.frames_in(path)]
        with contextlib.suppress(*access.POISON, MissingBodyKey):
            exchange = group_records(map(decode, bodies))
            if exchange is not None:
                ledger_writer.write_to_database([exchange])
                records += len(bodies)
                path.unlink(missing_ok=True)
                path.with_suffix(".txt").unlink(missing_ok=True)
    return records
