"""The errors of attempts without an answer, in Anthropic's terms."""

import dataclasses
from typing import Any, Final

from proxy.gateway.credentials.live_credential import STATIC
from proxy.gateway.http.deadlines import TIMEOUTS, CancelReason
from proxy.gateway.http.errors import SHUTTING_DOWN, STOPPED, UpstreamFailed
from proxy.gateway.http.lenient_json import decode_json
from proxy.gateway.snapshot.targets import Target
from translator.dialect import UpstreamError
from translator.errors import BadUpstream

from .client import UpstreamResponse, retry_after

DENIED: Final = UpstreamError(
    status=500,
    error_type="api_error",
    message="the upstream denies the gateway's role access",
    should_retry=False,
)


def upstream_error(target: Target, call: UpstreamResponse, raw: bytes) -> UpstreamError:
    """Map the upstream's error response to Anthropic's error (docs/mapping.md)."""
    try:
        body = decode_json(raw)
    except BadUpstream:
        body = raw.decode("utf-8", "replace")
    if call.status == 403 and target.server.credential.kind != STATIC:
        return DENIED  # the text names the gateway's own account and role, not the client's
    if call.status < 400:  # 204, 206 and redirects, which are not followed
        return bad_gateway_error(f"upstream answered with status {call.status}")
    error = target.server.dialect.map_error(call.status, body)
    seconds = retry_after(call.headers)
    if seconds is not None:  # the ``retry-after`` header has priority over the body
        error = dataclasses.replace(error, retry_after_s=seconds)
    return error


def decode_answer(target: Target, raw: bytes) -> dict[str, Any]:
    """Decode a JSON response. Raises BadUpstream or UpstreamFailed if it is not a JSON object."""
    value = decode_json(raw)
    if not isinstance(value, dict):
        raise UpstreamFailed(target.server.dialect.map_error(502, value))
    return value


def bad_gateway_error(message: str) -> UpstreamError:
    return UpstreamError(status=502, error_type="api_error", message=message)


def cancellation_error(reason: CancelReason | None, committed: bool) -> UpstreamFailed | None:
    """Return the error to send after the request was cancelled; None: re-raise.

    ``committed``: whether the client has received the start of the response.
    """
    if reason in TIMEOUTS:
        message = "the upstream took too long to answer"
        if reason is CancelReason.IDLE:
            message = "the upstream fell silent in the middle of its answer"
        error = UpstreamError(status=504, error_type="timeout_error", message=message)
        return UpstreamFailed(error, outcome="upstream_timeout", detail=reason.value)
    if reason is None and committed:
        return UpstreamFailed(SHUTTING_DOWN, outcome="drained")
    if reason is CancelReason.STOPPED and committed:
        return UpstreamFailed(STOPPED, outcome="refused", detail=reason.value)
    return None
