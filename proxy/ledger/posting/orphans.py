"""Write the missing close records of orphans: requests whose process died while they ran."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from proxy.ledger.journal.reader import JournalReader
from proxy.ledger.journal.records import CloseRecord, Record, decode

from .interrupted_response import InterruptedResponse, rebuild_interrupted
from .ledger_writer import group_records

logger = logging.getLogger(__name__)

MAX_RECORDS: Final = 256  # close records in one commit; 10,000 single commits would take about 10 s
MAX_BYTES: Final = 2 * 2**20  # size of the records that are read for one commit

Write = Callable[[*tuple[Record, ...]], object]
"""A function that returns when the given records are on the disk, or raises an error."""


def close_orphans(reader: JournalReader, ids: list[str], write: Write) -> Iterator[int]:
    """Close each request in ``ids`` as ``interrupted``, with the received part of its response.

    Several close records share a commit. After each commit, the ids of the closed requests are
    removed from ``ids``, and their number is yielded.
    """
    closed = 0
    while ids:
        looked_at, records = _next_records(reader, ids)
        if records:
            write(*records)
        del ids[:looked_at]
        closed += len(records)
        yield len(records)
    if closed:
        logger.warning("journal: %d requests were interrupted by the end of their process", closed)


def _next_records(reader: JournalReader, ids: Sequence[str]) -> tuple[int, list[CloseRecord]]:
    """Return the number of ids for which one commit is enough, and their close records."""
    records: list[CloseRecord] = []
    looked_at = size = 0
    for request_id in ids[:MAX_RECORDS]:
        bodies = list(reader.bodies(request_id))
        looked_at += 1
        size += sum(map(len, bodies))
        exchange = group_records(_decodable(request_id, bodies))
        if exchange is None:
            logger.warning("journal: %s has no open record", request_id)
            reader.put_aside(request_id, "there is no open record that can be decoded")
            continue
        response = rebuild_interrupted(exchange)
        records.append(interrupted(request_id, response, reader.last_at(request_id)))
        if size > MAX_BYTES:
            break
    return looked_at, records


def _decodable(request_id: str, bodies: Iterable[bytes]) -> Iterator[Record]:
    """Yield the records that can be decoded; log the others.

    A request with an undecodable record is moved to the quarantine later, when its records are
    written to the database.
    """
    for body in bodies:
        try:
            yield decode(body)
        except ValueError as exc:  # msgspec's errors are ValueErrors
            logger.warning("journal: a record of %s cannot be decoded: %s", request_id, exc)


def interrupted(request_id: str, part: InterruptedResponse, finished: float) -> CloseRecord:
    """Return the close record of a request whose process died.

    ``part``: the received part of its response. ``finished``: Unix seconds.
    """
    return CloseRecord(
        id=request_id,
        finished=finished,
        outcome="interrupted",
        status=200 if part.reads else 0,
        error_type="api_error",
        error_message="the gateway's process ended before the answer did",
        error_source="gateway",
        detail="interrupted",
        usage=part.usage,
        answer=part.answer,
        unknown_events=part.unknown,
        model_upstream=part.model,
        upstream=part.upstream,
        dialect=part.dialect,
        target=part.target,
        delivered=False,
    )
