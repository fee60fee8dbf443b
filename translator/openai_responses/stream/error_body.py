"""Failures of a Responses API upstream: in an HTTP error, an event or a response."""

from typing import Any, Final

from translator.dialect import UpstreamError
from translator.openai_responses.types import UpstreamEvent
from translator.upstream_errors import map_error, read_error, status_of_error

__all__ = ["error_in_body", "error_in_event", "error_in_response", "has_reason", "map_error"]

MESSAGE_FIELDS: Final = ("detail", "error", "errors", "message")
"""Fields with an error in a body that is neither an event nor a response."""


def error_in_body(body: dict[str, Any]) -> UpstreamError | None:
    """Return the error in a body that has the format of HTTP errors; None if there is none."""
    return _failure(body) if any(body.get(name) for name in MESSAGE_FIELDS) else None


def error_in_event(event: UpstreamEvent) -> UpstreamError:
    """Return the error of an ``error`` or ``response.failed`` event.

    The fields of ``error`` may be nested, as in the body of an HTTP error.
    """
    response = event.get("response")
    holder = response if isinstance(response, dict) else event
    error = holder.get("error")
    if not isinstance(error, dict | str) or not error:
        error = {name: holder.get(name) for name in ("code", "message", "param")}
        error["message"] = error["message"] or f"upstream response {holder.get('status', 'failed')}"
    return _failure({"error": error})


def has_reason(event: UpstreamEvent) -> bool:
    """Return whether a ``response.failed`` event contains the reason of the failure."""
    response = event.get("response")
    error = response.get("error") if isinstance(response, dict) else event.get("error")
    fields = read_error({"error": error})
    return bool(fields.message or fields.code not in ("", "server_error"))


def error_in_response(body: dict[str, Any]) -> UpstreamError | None:
    """Return the error that a response with HTTP status 200 contains; None if it has none."""
    if body.get("error") or body.get("status") in ("failed", "cancelled"):
        return error_in_event({"response": body})
    return None


def _failure(body: dict[str, Any]) -> UpstreamError:
    return map_error(status_of_error(read_error(body)), body)
