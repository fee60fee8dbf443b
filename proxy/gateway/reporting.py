"""The end of every request, told to whoever counts and logs."""

import logging
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings

from proxy.live.running import RUNNING
from proxy.logs import access
from proxy.metrics.requests import Ended
from proxy.metrics.worker import WorkerMetrics
from proxy.record.export import usd
from proxy.record.pricing import charge_of
from proxy.record.records import CloseRecord

if TYPE_CHECKING:
    from .base import StreamingHttpConsumer

ENDPOINTS: Final = {
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "count_tokens",
    "/v1/models": "models",
}
CLIENT_GONE: Final = 499
LOGGED: Final = settings.LOG_FORMAT == "json"
"""The ledger is the log of requests; machines that collect logs want a line as well."""

metrics: Final = WorkerMetrics(in_flight=lambda: len(RUNNING))


def ended(consumer: "StreamingHttpConsumer") -> None:
    """Called once for each request, after its last byte and after its row."""
    entry, closing = consumer.entry, consumer.closing
    status = closing.status if closing else consumer.status or CLIENT_GONE
    told = Ended(
        endpoint=ENDPOINTS.get(consumer.scope["path"], "other"),
        status=status,
        outcome=closing.outcome if closing else _outcome_of(status),
        seconds=consumer.watch.now() - consumer.began,
        route=entry.route_name if entry else "",
        team=entry.caller.team.name if entry else "",
        closing=closing,
    )
    metrics.ended(told)
    if entry is not None and entry.trace is not None:
        entry.trace.end(closing, status, told.team, told.route)
    if LOGGED and access.isEnabledFor(logging.INFO):
        _log(consumer, told)


def _outcome_of(status: int) -> str:
    """Where the ledger has no row."""
    if status == CLIENT_GONE:
        return "client_gone"
    return "completed" if status < 400 else "refused" if status < 500 else "gateway_error"


def _log(consumer: "StreamingHttpConsumer", told: Ended) -> None:
    head, entry = consumer.head, consumer.entry
    fields: dict[str, Any] = {
        "request_id": head.request_id,
        "method": consumer.scope["method"],
        "path": head.path[:200],
        "status": told.status,
        "outcome": told.outcome,
        "ms": round(told.seconds * 1000, 1),
        "bytes": consumer.response_bytes,
        "ip": head.ip,
        "client": "/".join(head.client).strip("/"),
    }
    if entry is not None:
        fields |= {
            "team": entry.caller.team.name,
            "key": entry.caller.key_name,
            "user": entry.caller.user,
            "route": told.route,
            "model": entry.model[:200],
            "session_id": entry.session_id,
            "trace_id": entry.trace.id if entry.trace else None,
        }
    if told.closing is not None:
        fields |= _of_answer(told.closing)
    said = {name: value for name, value in fields.items() if value not in (None, "", [])}
    access.info(
        "%s %s %d %s", fields["method"], fields["path"], told.status, told.outcome,
        extra={"fields": said},
    )  # fmt: skip


def _of_answer(closing: CloseRecord) -> dict[str, Any]:
    usage = closing.usage
    cost = charge_of(usage, closing.price, closing.attempts)
    return {
        "upstream": closing.upstream,
        "upstream_model": closing.model_upstream,
        "upstream_request_id": closing.upstream_request_id,
        "attempts": len(closing.attempts),
        "ttft_ms": closing.ttft_ms,
        "overhead_ms": closing.overhead_ms,
        "stop_reason": closing.stop_reason,
        "error": closing.error_type,
        "detail": closing.detail,
        "input_tokens": usage.get("input"),
        "cache_read_tokens": usage.get("cache_read"),
        "output_tokens": usage.get("output"),
        "cost_usd": usd(cost),
    }
