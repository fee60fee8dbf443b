"""Count a finished request in the metrics."""

import logging
import re
from dataclasses import dataclass
from typing import Final

from proxy.ledger.journal.records import CloseRecord
from proxy.ledger.usage.pricing import SOURCE_OF, charge_of, source_of
from proxy.money import NANO

from .definitions import (
    COST_USD,
    FIRST_BYTE_SECONDS,
    NOTES,
    OVERHEAD_SECONDS,
    REFUSALS,
    REQUEST_SECONDS,
    REQUESTS,
    TEAM_FIRST_BYTE_SECONDS,
    TEAM_REQUESTS,
    TOKENS,
    UNKNOWN_EVENTS,
    UNPRICED_REQUESTS,
    UPSTREAM_ATTEMPTS,
    UPSTREAM_ERRORS,
)

log = logging.getLogger("proxy.metrics")

ARRAY_INDEX: Final = re.compile(r"\.\d+|\[\d+\]")
TOKEN_CLASSES: Final = tuple(SOURCE_OF)


@dataclass(slots=True)  # a named tuple takes a third longer to create
class FinishedRequest:
    """A request that has ended. ``closing`` is None if the ledger has no row for the request."""

    endpoint: str
    status: int
    outcome: str
    seconds: float
    route: str = ""
    team: str = ""
    closing: CloseRecord | None = None
    refusal: str = ""
    """Why the gateway refused the request; empty if it did not."""


def count_request(request: FinishedRequest) -> None:
    """Add a request to the metrics.

    Errors are only logged: a bad record must not break the caller.
    """
    try:
        _count_request(request)
    except Exception:
        log.exception("a request could not be counted")


def field_of(path: str) -> str:
    """Return a field's path without indexes: ``messages.content`` for ``messages.2.content``."""
    return ARRAY_INDEX.sub("", path)


def _count_request(request: FinishedRequest) -> None:
    closing = request.closing
    upstream = closing.upstream if closing else ""
    status = str(request.status)
    REQUESTS.labels(request.endpoint, request.route, upstream, request.outcome, status).inc()
    REQUEST_SECONDS.labels(request.endpoint, upstream).observe(request.seconds)
    if request.refusal:
        REFUSALS.labels(request.refusal).inc()
    if request.team:
        TEAM_REQUESTS.labels(request.team, upstream, request.outcome).inc()
    if closing is None:
        return
    if closing.ttft_ms is not None:
        FIRST_BYTE_SECONDS.labels(upstream).observe(closing.ttft_ms / 1000)
        TEAM_FIRST_BYTE_SECONDS.labels(request.team).observe(closing.ttft_ms / 1000)
    if closing.error_source == "upstream":
        UPSTREAM_ERRORS.labels(upstream, closing.error_type).inc()
    if closing.overhead_ms is not None:
        OVERHEAD_SECONDS.observe(closing.overhead_ms / 1000)
    _count_usage(closing, request.team)
    for attempt in closing.attempts:
        UPSTREAM_ATTEMPTS.labels(attempt["upstream"], str(attempt["status"] or 0)).inc()
    for note in closing.notes:
        NOTES.labels(note["fate"], field_of(note["path"])).inc()
    for kind, times in closing.unknown_events.items():
        UNKNOWN_EVENTS.labels(closing.dialect, kind).inc(times)


def _count_usage(closing: CloseRecord, team: str) -> None:
    """Add the tokens and the cost of a request that reached an upstream. Skip unknown counts."""
    if not closing.attempts:
        return
    upstream, model = closing.upstream, closing.model_upstream
    for token_class in TOKEN_CLASSES:
        if number := closing.usage.get(token_class):
            source = source_of(closing.usage, token_class)
            TOKENS.labels(upstream, model, token_class, source).inc(number)
    cost = charge_of(closing.usage, closing.price, closing.attempts)
    if cost is not None:
        COST_USD.labels(team, upstream, model).inc(cost / NANO)
    elif closing.outcome == "completed":
        UNPRICED_REQUESTS.labels(upstream, model).inc()
