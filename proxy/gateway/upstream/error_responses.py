"""Errors of upstream responses that are no answer, in Anthropic's terms."""

import dataclasses

from proxy.gateway.http.lenient_json import decode_json
from proxy.gateway.snapshot.targets import Target
from translator.dialect import UpstreamError
from translator.errors import BadUpstream

from .client import UpstreamResponse, retry_after


def upstream_error(target: Target, call: UpstreamResponse, raw: bytes) -> UpstreamError:
    """Map the upstream's error response to Anthropic's error (mapping.md 5.2)."""
    try:
        body = decode_json(raw)
    except BadUpstream:
        body = raw.decode("utf-8", "replace")
    if call.status < 400:  # 204, 206 and redirects, which are not followed
        return bad_gateway_error(f"upstream answered with status {call.status}")
    error = target.server.dialect.map_error(call.status, body)
    seconds = retry_after(call.headers)
    if seconds is not None:  # the ``retry-after`` header has priority over the body
        error = dataclasses.replace(error, retry_after_s=seconds)
    return error


def bad_gateway_error(message: str) -> UpstreamError:
    return UpstreamError(status=502, error_type="api_error", message=message)
