"""Write the records of requests to the database: rows, transcripts, rollups, hash chain links.

A batch is written in one transaction, under the ledger lock. Writing the same records again changes
nothing, because existing rows are found by the id of the request.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from django.db import connection, transaction

from proxy.conf import conf
from proxy.ledger.database.bulk_sql import write
from proxy.ledger.journal.records import Chunk, CloseRecord, OpenRecord, Record
from proxy.ledger.search import indexer
from proxy.ledger.transcripts import storage
from proxy.ledger.transcripts.encoding import (
    Conversation,
    StreamCompressor,
    failed_attempts_of,
    reads_of,
)
from proxy.ledger.usage.pricing import PriceList
from proxy.models import Exchange, LinkKind, State

from . import (
    budget_sync,
    drift,
    hash_chain,
    key_last_used,
    outcomes,
    rollups,
    sessions,
    upstream_errors,
)
from .exchange_columns import (
    FIELDS,
    Row,
    blank_row,
    columns_from_close,
    columns_from_open,
    existing_rows,
    set_columns,
    to_datetime,
)
from .hash_chain import changed_groups

logger = logging.getLogger(__name__)

underived: Final[Counter[str]] = Counter()
"""Requests of this process that were recorded without derived data, by its name."""

MUTABLE_COLUMNS = [name for name in FIELDS if name != "id"]


@dataclass(slots=True)
class ExchangeRecords:
    """The journal records of one request and its response."""

    opening: OpenRecord
    chunks: list[Chunk]
    closing: CloseRecord | None = None
    _conversation: Conversation | None = None

    def conversation(self) -> Conversation | None:
        """Return the transcript to store; None if the team stores metadata only.

        The result is cached.
        """
        if self._conversation is None and self.opening.body is not None:
            self._conversation = _conversation(self, self.opening.body)
        return self._conversation

    def pack(self, packing: StreamCompressor) -> None:
        """Compress the upstream's stream and drop the decoded chunks, to use less memory."""
        one = self.conversation()
        if one is not None:
            one.pack(packing)
        self.chunks = []
        if self.closing is not None:
            self.closing.reads.clear()  # ``group_records`` has copied them to a chunk


def group_records(records: Iterable[Record]) -> ExchangeRecords | None:
    """Group the records of one request; return None if the open record is missing.

    Of several close records the first is used, unless ``_prefer_real_close`` replaces it.
    """
    opening, closing, chunks = None, None, []
    for record in records:
        match record:
            case OpenRecord():
                opening = opening or record
            case Chunk():
                chunks.append(record)
            case _:
                closing = _prefer_real_close(closing, record)
    if closing is not None and closing.reads:
        chunks.append(_last_chunk(closing))
    return ExchangeRecords(opening, chunks, closing) if opening else None


def _last_chunk(closing: CloseRecord) -> Chunk:
    return Chunk(
        id=closing.id,
        reads=closing.reads,
        attempt=closing.attempt,
        target=closing.target,
        status=closing.upstream_status or 200,
    )


def _prefer_real_close(first: CloseRecord | None, second: CloseRecord) -> CloseRecord:
    """Return the first close record, unless it is an assumed ``interrupted`` and the second is not.

    Another process writes ``interrupted`` if it believes that the request's process has died.
    """
    if first is None or (first.outcome == "interrupted" != second.outcome):
        return second
    return first


def write_to_database(batch: Sequence[ExchangeRecords], now: datetime | None = None) -> int:
    """Write the records of these requests to the database; return how many rows were closed."""
    now = now or datetime.now(UTC)
    with transaction.atomic():
        head = hash_chain.lock_ledger()
        known = existing_rows(records.opening.id for records in batch)
        due = [records for records in batch if _is_due(records, known.get(records.opening.id))]
        fresh = [records for records in due if records.opening.id not in known]
        prices = prices_of(due)
        conversations = conversations_of(due)
        new = {records.opening.id for records in fresh}
        linker = sessions.SessionLinker(one for key, one in conversations.items() if key in new)
        rows: list[Row] = []
        notes: dict[str, hash_chain.Note] = {}
        for records in due:
            row = known.get(records.opening.id) or _new_row(records, conversations, linker)
            if records.closing:
                # The row was closed as interrupted, but its process was alive.
                if row.state == State.CLOSED:
                    notes[row.id] = hash_chain.note_of(0, changed_groups(row, LinkKind.CLOSED))
                    rollups.add([row], -1)
                set_columns(row, columns_from_close(records.closing, row, prices))
            rows.append(row)
        write(Exchange, map(vars, rows), replaced=MUTABLE_COLUMNS)
        bodies = storage.store(list(conversations.values()), now)
        if conf.search:
            write_derived("search index", lambda some: _index(some, conversations), rows)
        done = [row for row in rows if row.state == State.CLOSED]
        rollups.add(done)
        created = [row for row in rows if row.id in new]
        write_derived("outcomes", lambda some: outcomes.add(some, conversations), created)
        hash_chain.append_links(head, [(row, bodies.get(row.id)) for row in done], now, notes=notes)
        key_last_used.update_last_used(rows)
        budget_sync.apply_closed_rows(done)
        if failed := [row for row in done if upstream_errors.has_failed(row)]:
            write_derived("new upstream errors", upstream_errors.record_new_errors, failed)
    drift.new_name_recorder.note(
        (records.opening for records in fresh), (s.closing for s in due if s.closing is not None)
    )
    return len(done)


def write_derived(name: str, derive: Callable[[Sequence[Row]], None], rows: Sequence[Row]) -> None:
    """Write data that is derived from these rows; an error does not prevent writing the rows.

    If the derivation fails for all rows, it is done for each row by itself. A row for which it
    fails again stays without this data, which is logged and counted. Raises the error if the
    savepoint cannot be restored, for example without a connection: the batch is written later.
    """
    try:
        with transaction.atomic():
            derive(rows)
    except Exception:
        if connection.needs_rollback:
            raise
        if len(rows) > 1:
            for row in rows:
                write_derived(name, derive, [row])
            return
        for row in rows:
            logger.exception("ledger: %s is recorded without its %s", row.id, name)
        underived[name] += len(rows)


def _index(rows: Iterable[Row], conversations: Mapping[str, Conversation]) -> None:
    """Add the texts of the stored transcripts to the search index."""
    indexer.index_conversations(
        (one, row.team, row.new_from) for row in rows if (one := conversations.get(row.id))
    )


def prices_of(batch: Iterable[ExchangeRecords]) -> PriceList:
    """Load all prices if a close record lacks its price; usually the gateway has set it."""
    is_needed = any(one.closing and one.closing.price is None for one in batch)
    return PriceList.load() if is_needed else PriceList(())


def _is_due(records: ExchangeRecords, row: Row | None) -> bool:
    if row is None:
        return True
    if records.closing is None:
        return False
    assumed = row.outcome == "interrupted" and records.closing.outcome != "interrupted"
    return row.state == State.OPEN or assumed


def conversations_of(batch: Iterable[ExchangeRecords]) -> dict[str, Conversation]:
    """Return the transcripts to store, by exchange id."""
    pairs = ((one.opening.id, one.conversation()) for one in batch)
    return {exchange_id: one for exchange_id, one in pairs if one is not None}


def _conversation(records: ExchangeRecords, body: bytes) -> Conversation:
    opening, closing = records.opening, records.closing
    make = Conversation.from_raw_body if opening.faulty else Conversation.from_body
    one = make(opening.id, to_datetime(opening.created), body)
    one.target = opening.target
    if closing:
        one.set_answer(closing.answer)
        one.reads = reads_of(records.chunks, closing.attempt)
        one.failed = failed_attempts_of(records.chunks, opening.target, closing.attempt)
        one.target = closing.target or _last_target(records)
        one.upstream_request_sha256 = closing.upstream_request_sha256
    return one


def _last_target(records: ExchangeRecords) -> Mapping[str, object]:
    targets = [chunk.target for chunk in records.chunks if chunk.target]
    return targets[-1] if targets else records.opening.target


def _new_row(
    records: ExchangeRecords,
    conversations: Mapping[str, Conversation],
    linker: "sessions.SessionLinker",
) -> Row:
    row = blank_row(records.opening.id)
    set_columns(row, columns_from_open(records.opening))
    if one := conversations.get(row.id):
        set_columns(row, sessions.request_columns(one, row))
        set_columns(row, linker.find_previous(one, row))
    return row
