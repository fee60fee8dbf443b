"""Errors of Anthropic upstreams: their own words, since clients repair themselves by them."""

import re
from typing import Any, Final

from translator.anthropic.error_body import STATUS_BY_TYPE, client_message, error_type_of
from translator.dialect import UpstreamError
from translator.secret_redaction import error_text
from translator.upstream_errors import told_of

NOT_OURS_TO_TELL: Final = frozenset({401})
"""The credential that was refused is the gateway's, not the client's."""
TYPE: Final = re.compile(r"[a-z_]{1,64}")


def map_error(status: int, body: Any) -> UpstreamError:
    """An HTTP error; ``body`` is decoded JSON, text, or None."""
    if status in NOT_OURS_TO_TELL:
        return UpstreamError(
            status=500,
            error_type="api_error",
            message="upstream authentication failed",
            should_retry=False,
        )
    error = error_in(body)
    if error is not None:
        return UpstreamError(
            status=status, error_type=error[0] or error_type_of(status), message=error[1]
        )
    words = body.get("error") if isinstance(body, dict) else None
    if isinstance(words, dict):
        words = words.get("message")
    message = client_message(words) if isinstance(words, str) else ""
    return UpstreamError(
        status=status,
        error_type=error_type_of(status),
        message=message or told_of(status, body if isinstance(body, str) else ""),
    )


def error_of_event(event: dict[str, Any]) -> UpstreamError:
    """The failure that an ``error`` event tells; its status is the one of its type."""
    error_type, message = error_in(event) or ("", "upstream failed")
    return UpstreamError(
        status=STATUS_BY_TYPE.get(error_type, 500),
        error_type=error_type or "api_error",
        message=message,
    )


def error_in(body: Any) -> tuple[str, str] | None:
    """Type and message of an Anthropic error object; None when it is none.

    The type is "" where it is no name: it goes into the log, which quotes no upstream.
    """
    error = body.get("error") if isinstance(body, dict) and body.get("type") == "error" else None
    if not isinstance(error, dict) or not isinstance(error.get("type"), str):
        return None
    message = error.get("message")
    return (
        error["type"] if TYPE.fullmatch(error["type"]) else "",
        error_text(message) if isinstance(message, str) else "upstream failed",
    )
