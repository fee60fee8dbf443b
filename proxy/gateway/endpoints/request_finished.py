"""Report each finished request to the metrics, the trace and the access log."""

import logging
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings

from proxy.ledger.usage.pricing import charge_of
from proxy.log_format import access
from proxy.metrics.finished_request import FinishedRequest, count_request
from proxy.money import usd

if TYPE_CHECKING:
    from .http_consumer import StreamingHttpConsumer

ENDPOINTS: Final = {
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "count_tokens",
    "/v1/models": "models",
}
CLIENT_GONE: Final = 499
ACCESS_LOG: Final = settings.LOG_FORMAT == "json"
"""Whether to write access log lines for log collectors. Otherwise only the ledger lists the
requests."""


def request_finished(consumer: "StreamingHttpConsumer") -> None:
    """Report a request whose response is sent and whose ledger row is recorded."""
    request = consumer.request
    closing = request.closing if request is not None else None
    status = closing.status if closing else consumer.status or CLIENT_GONE
    outcome = "completed" if status < 400 else "refused" if status < 500 else "gateway_error"
    if closing is not None:
        outcome = closing.outcome
    elif status == CLIENT_GONE:
        outcome = "client_gone"
    ended = FinishedRequest(
        endpoint=ENDPOINTS.get(consumer.scope["path"], "other"),
        status=status,
        outcome=outcome,
        seconds=consumer.deadlines.now() - consumer.started,
        route=request.route_name if request else "",
        team=request.caller.team.name if request else "",
        closing=closing,
        refusal=consumer.refusal,
    )
    count_request(ended)
    if request is not None and request.trace is not None:
        request.trace.end(closing, status, ended.team, ended.route)
    if ACCESS_LOG and access.isEnabledFor(logging.INFO):
        _log(consumer, ended)


def _log(consumer: "StreamingHttpConsumer", ended: FinishedRequest) -> None:
    head, request = consumer.head, consumer.request
    fields: dict[str, Any] = {
        "request_id": head.request_id,
        "method": consumer.scope["method"],
        "path": head.path[:200],
        "status": ended.status,
        "outcome": ended.outcome,
        "ms": round(ended.seconds * 1000, 1),
        "bytes": consumer.response_bytes,
        "ip": head.ip,
        "client": "/".join(head.client).strip("/"),
    }
    if request is not None:
        fields |= {
            "team": request.caller.team.name,
            "key": request.caller.key_name,
            "user": request.caller.user,
            "route": ended.route,
            "model": request.model[:200],
            "session_id": request.session_id,
            "trace_id": request.trace.id if request.trace else None,
        }
    if (closing := ended.closing) is not None:
        cost = charge_of(closing.usage, closing.price, closing.attempts)
        fields |= {
            "upstream": closing.upstream,
            "upstream_model": closing.model_upstream,
            "upstream_request_id": closing.upstream_request_id,
            "attempts": len(closing.attempts),
            "ttft_ms": closing.ttft_ms,
            "overhead_ms": closing.overhead_ms,
            "stop_reason": closing.stop_reason,
            "error": closing.error_type,
            "detail": closing.detail,
            "input_tokens": closing.usage.get("input"),
            "cache_read_tokens": closing.usage.get("cache_read"),
            "output_tokens": closing.usage.get("output"),
            "cost_usd": usd(cost),
        }
    present = {name: value for name, value in fields.items() if value not in (None, "", [])}
    access.info(
        "%s %s %d %s", fields["method"], fields["path"], ended.status, ended.outcome,
        extra={"fields": present},
    )  # fmt: skip
