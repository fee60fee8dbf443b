"""Orphans: exchanges whose process died. Each gets the close record that it could not write."""

import logging
import sqlite3
import time
from collections.abc import Callable, Iterable

from . import rebuild, spool_file
from .posting import story_of
from .records import CloseRecord, Record, decode

logger = logging.getLogger(__name__)

Write = Callable[[Record], object]


def close_orphans(link: sqlite3.Connection, ids: Iterable[str], write: Write) -> int:
    """Close each as ``interrupted``, with the part of the answer that its checkpoints hold."""
    closed = 0
    for exchange_id in ids:
        story = story_of(decode(body) for _, body in spool_file.bodies_of(link, exchange_id))
        if story is None:
            logger.warning("spool: %s has no open record", exchange_id)
            continue
        write(
            interrupted(
                story.opening.id, rebuild.partial(story), last_sign_of_life(link, exchange_id)
            )
        )
        closed += 1
    if closed:
        logger.warning("spool: %d requests were interrupted by the end of their process", closed)
    return closed


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
