"""Failures of a Responses upstream: as an HTTP error, as an event, inside a whole response."""

from typing import Any, Final

from translator.dialect import UpstreamError
from translator.upstream_errors import inner_status, map_error, read_error

from .types import UpstreamEvent

__all__ = ["error_in_body", "error_in_event", "error_in_response", "map_error"]

WORDS: Final = ("detail", "error", "errors", "message")
"""What tells of a failure in a body that is no event and no response."""


def error_in_body(body: dict[str, Any]) -> UpstreamError | None:
    """The failure that came as the body of an error status would; None where none is told."""
    return _failure(body) if any(body.get(word) for word in WORDS) else None


def error_in_event(event: UpstreamEvent) -> UpstreamError:
    """The cause in ``error`` (flat, or nested like an HTTP body) or in ``response.failed``."""
    response = event.get("response")
    holder = response if isinstance(response, dict) else event
    error = holder.get("error")
    if not isinstance(error, dict | str) or not error:
        error = {name: holder.get(name) for name in ("code", "message", "param")}
        error["message"] = error["message"] or f"upstream response {holder.get('status', 'failed')}"
    return _failure({"error": error})


def error_in_response(body: dict[str, Any]) -> UpstreamError | None:
    """The failure that a response itself tells, with HTTP 200; None when it is an answer."""
    if body.get("error") or body.get("status") in ("failed", "cancelled"):
        return error_in_event({"response": body})
    return None


def _failure(body: dict[str, Any]) -> UpstreamError:
    return map_error(inner_status(read_error(body)), body)
