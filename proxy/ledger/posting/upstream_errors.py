"""Notify webhooks of the first error of a class that an upstream shows after a while without it.

The class of an attempt is its HTTP status, the name of its connection error, or the type of the
error in its stream. Errors that only the request causes (``REQUEST_ERRORS``) are not counted.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from proxy.ledger.webhooks import record_event
from proxy.models import EventType, Outcome, UpstreamErrorClass
from proxy.times import rfc3339

from .exchange_columns import AnyRow

QUIET: Final = timedelta(hours=24)
"""An error class is new if the upstream has not shown it for this time."""
COARSE: Final = timedelta(minutes=1)
"""``last_seen`` is written at most this often."""
REQUEST_ERRORS: Final = frozenset({400, 413, 422})
FAILED: Final = frozenset({Outcome.UPSTREAM_ERROR.value, Outcome.UPSTREAM_TIMEOUT.value})
MAX_CLASSES: Final = 100
"""Maximum classes of one upstream; further ones are not recorded."""


class Failure(NamedTuple):
    upstream: str
    error: str
    request_id: str
    model: str
    at: datetime


def has_failed(row: AnyRow) -> bool:
    """Return whether an attempt of the request may have failed. In most rows none has."""
    status = row.upstream_status or 0
    return status >= 400 or row.outcome in FAILED or len(row.attempts) > 1


def record_new_errors(rows: Iterable[AnyRow]) -> None:
    """Store the error classes of failed requests, and an event for each new one.

    The caller has the ledger lock.
    """
    failures = {(one.upstream, one.error): one for row in rows for one in _failures(row)}
    if not failures:
        return
    known = {
        (one.upstream, one.error): one
        for one in UpstreamErrorClass.objects.filter(
            upstream__in={upstream for upstream, _ in failures}
        )
    }
    for key, failure in failures.items():
        _record(failure, known.get(key), sum(upstream == key[0] for upstream, _ in known))


def _record(failure: Failure, stored: UpstreamErrorClass | None, classes: int) -> None:
    is_new = stored is None or stored.last_seen < failure.at - QUIET
    if stored is None:
        if classes >= MAX_CLASSES:
            return
        UpstreamErrorClass.objects.create(
            upstream=failure.upstream, error=failure.error, last_seen=failure.at
        )
    elif failure.at - stored.last_seen >= COARSE:
        stored.last_seen = failure.at
        stored.save(update_fields=["last_seen"])
    if is_new:
        data = {
            "upstream": failure.upstream,
            "error": failure.error,
            "model": failure.model,
            "request_id": failure.request_id,
            "seen_at": rfc3339(failure.at),
            "not_seen_for_hours": QUIET.total_seconds() / 3600,
        }
        record_event(EventType.UPSTREAM_ERROR, team="", data=data)


def _failures(row: AnyRow) -> Iterator[Failure]:
    """Yield the failed attempts of a request, then the error that ended its last response."""
    at = row.finished or row.created
    found = False
    for attempt in row.attempts:
        status, error = attempt.get("status"), str(attempt.get("error") or "")
        if status is not None and status >= 400:
            error = "" if status in REQUEST_ERRORS else f"HTTP {status}"
            found = True
        if error:
            found = True
            model = str(attempt.get("model", ""))
            yield Failure(str(attempt["upstream"]), error[:60], row.id, model, at)
    if not found and row.outcome in FAILED and row.upstream:
        error = row.detail or row.error_type or row.outcome
        yield Failure(row.upstream, error[:60], row.id, row.model_upstream, at)
