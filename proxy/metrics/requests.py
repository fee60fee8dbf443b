"""What one ended request adds to the numbers."""

import re
from dataclasses import dataclass
from typing import Any, Final

from proxy.record.pricing import SOURCE_OF, charge_of, source_of
from proxy.record.records import CloseRecord

from . import catalogue as c
from .tally import Tally

NANO: Final = 1_000_000_000
PLACES: Final = re.compile(r"\.\d+|\[\d+\]")
TOKEN_CLASSES: Final = tuple(SOURCE_OF)


@dataclass(slots=True)  # a named tuple takes a third longer to make
class Ended:
    """A request that is over. ``closing`` is None where the ledger has no row of it."""

    endpoint: str
    status: int
    outcome: str
    seconds: float
    route: str = ""
    team: str = ""
    closing: CloseRecord | None = None


def count(tally: Tally, ended: Ended) -> None:
    closing = ended.closing
    upstream = closing.upstream if closing else ""
    labels = (ended.endpoint, ended.route, upstream, ended.outcome, str(ended.status))
    tally.add(c.REQUESTS, labels)
    tally.observe(c.DURATION, ended.seconds, (ended.endpoint,))
    if closing is not None:
        _times(tally, closing)
        _usage(tally, closing, ended.team)
        for attempt in closing.attempts:
            tally.add(c.ATTEMPTS, (str(attempt["upstream"]), str(attempt["status"] or 0)))
        for note in closing.notes:
            tally.add(c.NOTES, (note["fate"], field_of(note["path"])))
        for kind, times in closing.unknown_events.items():
            tally.add(c.UNKNOWN, (closing.dialect, kind), times)


def field_of(path: str) -> str:
    """``messages.2.content.0.cache_control`` and its like are one field, wherever it stood."""
    return PLACES.sub("", path)


def _times(tally: Tally, closing: CloseRecord) -> None:
    if closing.ttft_ms is not None:
        tally.observe(c.FIRST_BYTE, closing.ttft_ms / 1000, (closing.upstream,))
    if closing.overhead_ms is not None:
        tally.observe(c.OVERHEAD, closing.overhead_ms / 1000)


def _usage(tally: Tally, closing: CloseRecord, team: str) -> None:
    """Tokens and money of what reached an upstream; missing counts add nothing to either."""
    usage: dict[str, Any] = closing.usage
    if not closing.attempts:
        return
    for name in TOKEN_CLASSES:
        if number := usage.get(name):
            source = source_of(usage, name)
            tally.add(c.TOKENS, (closing.upstream, closing.model_upstream, name, source), number)
    cost = charge_of(usage, closing.price, closing.attempts)
    if cost is not None:
        labels = (team, closing.upstream, closing.model_upstream)
        tally.add(c.COST, labels, cost / NANO)
    elif closing.outcome == "completed":
        tally.add(c.UNPRICED, (closing.upstream, closing.model_upstream))
