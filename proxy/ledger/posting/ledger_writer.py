"""Write the records of requests to the database: rows, transcripts, rollups, hash chain links.

A batch is written in one transaction, under the ledger lock. Writing the same records again changes
nothing, because existing rows are found by the id of the request.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import connection, transaction
from django.db.models import Q

from proxy.conf import conf
from proxy.ledger.database.bulk_sql import padded_keys, write
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
from proxy.models import ApiKey, Exchange, LinkKind, State

from . import (
    budget_sync,
    drift,
    hash_chain,
    outcomes,
    rollups,
    sessions,
    upstream_errors,
)
from .exchange_columns import (
    FIELDS,
    AnyRow,
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

MINUTE: Final = timedelta(minutes=1)
"""The ``last_used`` time of a key is updated at most once in this time."""
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
        opening, closing = self.opening, self.closing
        if self._conversation is None and opening.body is not None:
            make = Conversation.from_raw_body if opening.faulty else Conversation.from_body
            one = make(opening.id, to_datetime(opening.created), opening.body)
            one.target = opening.target
            if closing:
                one.set_answer(closing.answer)
                one.reads = reads_of(self.chunks, closing.attempt)
                one.failed = failed_attempts_of(self.chunks, opening.target, closing.attempt)
                one.target = closing.target or self.last_target
                one.upstream_request_sha256 = closing.upstream_request_sha256
            self._conversation = one
        return self._conversation

    @property
    def last_target(self) -> Mapping[str, Any]:
        """The target of the last attempt of which there are bytes."""
        targets = [chunk.target for chunk in self.chunks if chunk.target]
        return targets[-1] if targets else self.opening.target

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
        last = Chunk(
            id=closing.id,
            reads=closing.reads,
            attempt=closing.attempt,
            target=closing.target,
            status=closing.upstream_status or 200,
        )
        chunks.append(last)
    return ExchangeRecords(opening, chunks, closing) if opening else None


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
        # Usually the gateway has set the price.
        needs_prices = any(one.closing and one.closing.price is None for one in due)
        prices = PriceList.load() if needs_prices else PriceList(())
        pairs = ((one.opening.id, one.conversation()) for one in due)
        conversations = {pk: one for pk, one in pairs if one is not None}
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

            def index(some: Sequence[Row]) -> None:
                indexer.index_conversations(
                    (one, row.team, row.new_from)
                    for row in some
                    if (one := conversations.get(row.id))
                )

            write_derived("search index", index, rows)
        done = [row for row in rows if row.state == State.CLOSED]
        rollups.add(done)
        created = [row for row in rows if row.id in new]
        write_derived("outcomes", lambda some: outcomes.add(some, conversations), created)
        hash_chain.append_links(head, [(row, bodies.get(row.id)) for row in done], now, notes=notes)
        update_last_used(rows)
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


def _is_due(records: ExchangeRecords, row: Row | None) -> bool:
    if row is None:
        return True
    if records.closing is None:
        return False
    assumed = row.outcome == "interrupted" and records.closing.outcome != "interrupted"
    return row.state == State.OPEN or assumed


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


def update_last_used(rows: Iterable[AnyRow]) -> None:
    """Set ``last_used`` of the rows' keys; an older time never replaces a newer one.

    It is written here, not while the request is served.
    """
    newest: dict[int, datetime] = {}
    for row in rows:
        if row.key_id is not None:
            newest[row.key_id] = max(newest.get(row.key_id, row.created), row.created)
    known = ApiKey.objects.filter(pk__in=padded_keys([*newest])).values_list("pk", "last_used")
    for key_id, before in known:
        at = newest[key_id]
        if before is None or at - before >= MINUTE:
            older = Q(last_used=None) | Q(last_used__lt=at)
            # update() sends no post_save signal, so the gateway does not reload its configuration.
            ApiKey.objects.filter(older, pk=key_id).update(last_used=at)
