"""Orphans: exchanges whose process died. Each gets the close record that it could not write."""

import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from . import rebuild, spool_file
from .posting import story_of
from .records import CloseRecord, Record, decode

logger = logging.getLogger(__name__)

MOST_TOGETHER: Final = 256
"""Share a commit: ten thousand that had one each took some ten seconds of waiting for the disk."""
MOST_BYTES: Final = 2 * 2**20  # of what was read for one commit: an answer is no longer than that

Write = Callable[[*tuple[Record, ...]], object]
"""Returns when all of them are on the disk, or raises."""


def close_orphans(link: sqlite3.Connection, ids: list[str], write: Write) -> Iterator[int]:
    """Close each as ``interrupted``, with the part of the answer that its checkpoints hold.

    Some share a commit; yields their number after each, when they are no longer in ``ids``.
    """
    closed = 0
    while ids:
        looked_at, records = _closing(link, ids)
        if records:
            write(*records)
        del ids[:looked_at]
        closed += len(records)
        yield len(records)
    if closed:
        logger.warning("spool: %d requests were interrupted by the end of their process", closed)


def _closing(link: sqlite3.Connection, ids: Sequence[str]) -> tuple[int, list[CloseRecord]]:
    """How many of the first ones go together, and their close records."""
    records: list[CloseRecord] = []
    looked_at = size = 0
    for exchange_id in ids[:MOST_TOGETHER]:
        bodies = [body for _, body in spool_file.bodies_of(link, exchange_id)]
        looked_at += 1
        size += sum(map(len, bodies))
        story = story_of(_readable(exchange_id, bodies))
        if story is None:
            logger.warning("spool: %s has no open record", exchange_id)
            continue
        seen = last_sign_of_life(link, exchange_id)
        records.append(interrupted(story.opening.id, rebuild.partial(story), seen))
        if size > MOST_BYTES:
            break
    return looked_at, records


def _readable(exchange_id: str, bodies: Iterable[bytes]) -> Iterator[Record]:
    """What is broken is passed over here: it must hold nobody up. The drainer sets it aside."""
    for body in bodies:
        try:
            yield decode(body)
        except ValueError as exc:  # msgspec's errors are ValueErrors
            logger.warning("spool: a record of %s cannot be read: %s", exchange_id, exc)


def interrupted(exchange_id: str, part: "rebuild.Partial", seen: float) -> CloseRecord:
    return CloseRecord(
        id=exchange_id,
        finished=max(seen, 0.0) or time.time(),
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


def last_sign_of_life(link: sqlite3.Connection, exchange_id: str) -> float:
    """When the last record of the exchange was written (Unix seconds)."""
    (at,) = link.execute("SELECT max(at) FROM records WHERE id = ?", (exchange_id,)).fetchone()
    return float(at or 0)
