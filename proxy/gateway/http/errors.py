"""HTTP errors: the only module that decides on the status and body of an error response.

Every failure is an exception. ``to_http_error`` converts any exception to an ``HttpError``, which
the client receives and the ledger records.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

import msgspec

from proxy.ledger.errors import JournalUnavailable
from translator.dialect import UpstreamError
from translator.errors import BadRequest, BadUpstream

Header = tuple[bytes, bytes]

RETRY_AFTER_DEFAULT_S: Final = 5
FINAL_STATUSES: Final = frozenset({401, 402, 403, 404, 405, 415})
"""Statuses of errors that the same request gets again, so the client is told not to retry.

Claude Code retries a 401 ten times without a word, for three minutes. Other errors say themselves
whether a retry helps. No client retries a 400 or 413, and some change the request after one.
"""
USE_MESSAGES_API: Final = "clients speak the Messages API here: POST /v1/messages"
BASE_URL_WITH_V1: Final = "the base URL of this client must end with /v1"
PATH_HINTS: Final[Mapping[str, str]] = {
    "/v1/v1/": "the base URL must end before /v1",
    "/v1/messages/batches": "there are no batches here; send each request to /v1/messages",
    "/v1/files": "files are not stored here; send them inside the request",
    "/v1/skills": "there are no skills here",
    "/v1/complete": USE_MESSAGES_API,
    "/v1/chat/completions": USE_MESSAGES_API,
    "/v1/responses": USE_MESSAGES_API,
    "//": "the base URL must not end with a slash",
    "/chat/completions": USE_MESSAGES_API,
    "/messages": BASE_URL_WITH_V1,
    "/models": BASE_URL_WITH_V1,
    "/responses": USE_MESSAGES_API,
}
"""Hints in the 404 response for unsupported paths that SDKs request, by the start of the path."""
SHUTTING_DOWN: Final = UpstreamError(
    status=529, error_type="overloaded_error", message="the gateway is shutting down"
)
STOPPED: Final = UpstreamError(
    # The status for a revoked key, too: clients do not retry a 403.
    status=403,
    error_type="permission_error",
    message="an administrator stopped this request",
    should_retry=False,
)


@dataclass(slots=True)
class HttpError(Exception):
    """Ends a request with an error response, and carries the outcome that the ledger records."""

    status: int
    error_type: str
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)
    error_code: str | None = None
    outcome: str = "refused"
    source: str = "client"
    detail: str = ""
    raw: bytes | None = None
    """A response body to relay unchanged, such as an Anthropic upstream's error."""

    def __post_init__(self) -> None:
        Exception.__init__(self, self.message)
        if self.status in FINAL_STATUSES and self.raw is None:
            self.headers = {"x-should-retry": "false", **self.headers}

    def body(self, request_id: str) -> bytes:
        if self.raw is not None:
            return self.raw
        error: dict[str, Any] = {"type": self.error_type, "message": self.message}
        if self.error_code is not None:
            error["details"] = {"error_code": self.error_code}
        return msgspec.json.encode({"type": "error", "error": error, "request_id": request_id})


class UpstreamFailed(Exception):
    """One upstream attempt failed. The next target is tried if the client has received nothing."""

    def __init__(
        self,
        error: UpstreamError,
        *,
        outcome: str = "upstream_error",
        detail: str = "",
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.outcome = outcome
        self.detail = detail
        self.raw = raw
        self.headers = dict(headers or {})

    def copy(self) -> Self:
        """Return an equal exception to raise in place of this one.

        The traceback of an exception that was raised references stack frames, which keep the
        request body in memory.
        """
        return type(self)(
            self.error,
            outcome=self.outcome,
            detail=self.detail,
            raw=self.raw,
            headers=self.headers,
        )


def to_http_error(exc: BaseException) -> HttpError:
    """Return the error response for any exception. An unexpected exception becomes a 500."""
    match exc:
        case HttpError():
            return exc
        case BadRequest():
            return HttpError(exc.status, exc.error_type, str(exc), error_code=exc.error_code)
        case UpstreamFailed():
            return _upstream_http_error(exc)
        case BadUpstream():
            return HttpError(
                502, "api_error", "the upstream broke its protocol", {},
                outcome="upstream_error", source="upstream", detail="bad_event",
            )  # fmt: skip
        case JournalUnavailable():
            return HttpError(
                503, "api_error", "the ledger cannot be written", {"retry-after": "10"},
                outcome="gateway_error", source="gateway", detail="journal",
            )  # fmt: skip
        case _:
            return HttpError(
                500, "api_error", "internal error",
                outcome="gateway_error", source="gateway", detail=type(exc).__name__,
            )  # fmt: skip


def _upstream_http_error(exc: UpstreamFailed) -> HttpError:
    error = exc.error
    headers = dict(exc.headers)
    if error.should_retry is not None:
        headers["x-should-retry"] = "true" if error.should_retry else "false"
    retry_after = error.retry_after_s
    if retry_after is None and error.status == 429:
        retry_after = RETRY_AFTER_DEFAULT_S
    if retry_after is not None:
        headers["retry-after"] = str(retry_after)
    return HttpError(
        error.status,
        error.error_type,
        error.message,
        headers,
        outcome=exc.outcome,
        source="upstream",
        detail=exc.detail,
        raw=exc.raw,
    )


def unauthenticated(message: str) -> HttpError:
    return HttpError(401, "authentication_error", message)


def forbidden(message: str) -> HttpError:
    return HttpError(403, "permission_error", message)


def unknown_path(path: str) -> HttpError:
    hint = next((f"; {hint}" for start, hint in PATH_HINTS.items() if path.startswith(start)), "")
    return HttpError(404, "not_found_error", f"no such path: {path[:200]!r}{hint}")


def wrong_method(method: str, allowed: tuple[str, ...]) -> HttpError:
    return HttpError(
        405,
        "invalid_request_error",
        f"method {method} is not allowed here; use {' or '.join(allowed)}",
        {"allow": ", ".join(allowed)},
    )


def unknown_model(model: str, known: list[str]) -> HttpError:
    shown = ", ".join(repr(name) for name in known[:10]) or "none"
    return HttpError(
        404, "not_found_error", f"model: {model[:200]!r} has no route; known here: {shown}"
    )


def too_busy(detail: str) -> HttpError:
    return HttpError(
        529, "overloaded_error", "the gateway has more requests than it can serve at once",
        {"retry-after": "1"}, source="gateway", detail=detail,
    )  # fmt: skip


def stopped() -> HttpError:
    return HttpError(
        STOPPED.status, STOPPED.error_type, STOPPED.message, {"x-should-retry": "false"},
        source="gateway", detail="stopped",
    )  # fmt: skip


def too_large(limit: int) -> HttpError:
    return HttpError(
        413,
        "request_too_large",
        f"the request body is larger than {limit} bytes",
        {"connection": "close"},
    )


def too_slow() -> HttpError:
    return HttpError(
        408,
        "invalid_request_error",
        "the request body did not arrive in time",
        {"connection": "close"},
    )


def directory_unavailable() -> HttpError:
    return HttpError(
        503, "api_error", "keys cannot be checked right now", {"retry-after": "5"},
        outcome="gateway_error", source="gateway", detail="directory",
    )  # fmt: skip
