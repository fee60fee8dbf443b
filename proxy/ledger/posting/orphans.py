"""Write the missing close records of orphans: requests whose process died while they ran.

The received part of the response is rebuilt from the chunk records in the journal.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from proxy.ledger.journal.reader import JournalReader
from proxy.ledger.journal.records import CloseRecord, Record, decode
from proxy.ledger.transcripts.encoding import reads_of
from proxy.ledger.transcripts.stream_replay import DIALECTS, Replayed, replay
from proxy.ledger.usage.unreported_usage import fill_unreported
from translator.anthropic.token_estimate import content_tokens, estimate_tokens
from translator.anthropic.usage import Usage

from .ledger_writer import ExchangeRecords, group_records

logger = logging.getLogger(__name__)

USAGE_FIELDS: Final = tuple(Usage.__dataclass_fields__)


def _usage(request: dict[str, Any], replayed: Replayed) -> dict[str, Any]:
    """Return the usage that the upstream reported; if it reported none, an estimate."""
    reported = replayed.stream.usage
    if reported.source == "reported" and reported.output:
        return {name: getattr(reported, name) for name in USAGE_FIELDS}
    content = (replayed.answer or {}).get("content") or []
    return {
        "input": estimate_tokens(request),
        "output": content_tokens(content),
        "source": "estimated",
    }


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
        records.append(interrupted(exchange, reader.last_at(request_id)))
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


def interrupted(records: ExchangeRecords, finished: float) -> CloseRecord:
    """Return the close record of a request whose process died, with the part that was received.

    ``finished``: Unix seconds. With a hard budget, unknown token counts are set to the reserved
    worst case.
    """
    opening, target = records.opening, records.last_target
    reads = reads_of(records.chunks)
    answer, unknown = None, {}
    usage: dict[str, Any] = {}
    if reads and opening.body is not None and target.get("dialect") in DIALECTS:
        try:
            request = msgspec.json.decode(opening.body)
            replayed = replay(request, target, reads, ended=False)
            usage = _usage(request, replayed)
            answer, unknown = replayed.answer, dict(replayed.stream.unknown)
        except Exception:  # the request's row must be closed in spite of a bug in the translator
            logger.exception("recovery: the answer of %s cannot be rebuilt", opening.id)
    if opening.worst_case:
        reported = {name: usage[name] for name in USAGE_FIELDS if name in usage}
        answered = bool((answer or {}).get("content"))
        filled = fill_unreported(Usage(**reported), opening.worst_case, answered=answered)
        usage = {name: getattr(filled, name) for name in USAGE_FIELDS}
    return CloseRecord(
        id=opening.id,
        finished=finished,
        outcome="interrupted",
        status=200 if reads else 0,
        error_type="api_error",
        error_message="the gateway's process ended before the answer did",
        error_source="gateway",
        detail="interrupted",
        usage=usage,
        answer=answer,
        unknown_events=unknown,
        model_upstream=target.get("model") or opening.model_upstream,
        upstream=target.get("upstream") or opening.upstream,
        dialect=target.get("dialect") or opening.dialect,
        target=dict(target),
        delivered=False,
    )
