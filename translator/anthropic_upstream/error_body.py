"""Map errors of Anthropic upstreams; the text is preserved because clients react to it."""

import re
from typing import Any, Final

from translator.anthropic.error_body import STATUS_BY_TYPE, client_message, error_type_of
from translator.dialect import UpstreamError
from translator.secret_redaction import clean_error_text
from translator.upstream_errors import http_status_message

HIDDEN_STATUSES: Final = frozenset({401})
"""Statuses whose text is not shown: the credential that the upstream rejected is the gateway's, not
the client's."""
STATUS_OF_CLOUDS: Final = {424: 502}
"""Amazon's status for an error of the model itself, which clients would take for their own."""
ERROR_TYPE: Final = re.compile(r"[a-z_]{1,64}")


def map_error(status: int, body: Any) -> UpstreamError:
    """Map an upstream's HTTP error; ``body`` is decoded JSON, text or None."""
    if status in HIDDEN_STATUSES:
        return UpstreamError(
            status=500,
            error_type="api_error",
            message="upstream authentication failed",
            should_retry=False,
        )
    if isinstance(body, list) and len(body) == 1:  # Vertex AI, for a stream
        body = body[0]
    error = parse_error(body)
    if error is not None:
        return UpstreamError(
            status=status, error_type=error[0] or error_type_of(status), message=error[1]
        )
    status = STATUS_OF_CLOUDS.get(status, status)
    # Amazon sends only ``message``, some of its services ``Message``.
    fields = body if isinstance(body, dict) else {}
    error_text = fields.get("error") or fields.get("message") or fields.get("Message")
    if isinstance(error_text, dict):
        error_text = error_text.get("message")
    message = client_message(error_text) if isinstance(error_text, str) else ""
    return UpstreamError(
        status=status,
        error_type=error_type_of(status),
        message=message or http_status_message(status, body if isinstance(body, str) else ""),
    )


def error_from_event(event: dict[str, Any]) -> UpstreamError:
    """Map an upstream's ``error`` event; the HTTP status follows from the error type."""
    error_type, message = parse_error(event) or ("", "upstream failed")
    return UpstreamError(
        status=STATUS_BY_TYPE.get(error_type, 500),
        error_type=error_type or "api_error",
        message=message,
    )


def parse_error(body: Any) -> tuple[str, str] | None:
    """Return type and message of an Anthropic error body; None if ``body`` is not an error body.

    A type that does not look like an identifier becomes "", because the type goes into the log,
    which must not quote upstream text.
    """
    error = body.get("error") if isinstance(body, dict) and body.get("type") == "error" else None
    if not isinstance(error, dict) or not isinstance(error.get("type"), str):
        return None
    message = error.get("message")
    return (
        error["type"] if ERROR_TYPE.fullmatch(error["type"]) else "",
        clean_error_text(message) if isinstance(message, str) else "upstream failed",
    )
