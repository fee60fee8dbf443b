"""Why a request is not served, and the only place that knows statuses and error bodies.

Everything that can go wrong is an exception; ``refusal_of`` turns any of them into a ``Refusal``,
which is what the client sees and what the ledger writes down.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

import msgspec

from proxy.record.errors import SpoolUnavailable
from translator.dialect import UpstreamError
from translator.errors import BadRequest, BadUpstream

Header = tuple[bytes, bytes]

RETRY_AFTER_DEFAULT_S: Final = 5
SPEAKS_MESSAGES: Final = "clients speak the Messages API here: POST /v1/messages"
BASE_URL_WITH_V1: Final = "the base URL of this client must end with /v1"
ELSEWHERE: Final[Mapping[str, str]] = {
    "/v1/v1/": "the base URL must end before /v1",
    "/v1/messages/batches": "there are no batches here; send each request to /v1/messages",
    "/v1/files": "no files are kept here; send them inside the request",
    "/v1/skills": "there are no skills here",
    "/v1/complete": SPEAKS_MESSAGES,
    "/v1/chat/completions": SPEAKS_MESSAGES,
    "/v1/responses": SPEAKS_MESSAGES,
    "//": "the base URL must not end with a slash",
    "/chat/completions": SPEAKS_MESSAGES,
    "/messages": BASE_URL_WITH_V1,
    "/models": BASE_URL_WITH_V1,
    "/responses": SPEAKS_MESSAGES,
}
"""What SDKs ask for that is not here, by how the path begins: words that their users read."""
SHUTTING_DOWN: Final = UpstreamError(
    status=529, error_type="overloaded_error", message="the gateway is shutting down"
)
STOPPED: Final = UpstreamError(
    # Like a key that is revoked meanwhile: of all errors, this is one that no client tries again.
    status=403,
    error_type="permission_error",
    message="an administrator stopped this request",
    should_retry=False,
)


@dataclass(slots=True)
class Refusal(Exception):
    """The request ends here: what the client is told, and how the ledger files it."""

    status: int
    error_type: str
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)
    error_code: str | None = None
    outcome: str = "refused"
    source: str = "client"
    detail: str = ""
    raw: bytes | None = None
    """An Anthropic upstream's own body, handed on as it came."""

    def __post_init__(self) -> None:
        Exception.__init__(self, self.message)

    def body(self, request_id: str) -> bytes:
        if self.raw is not None:
            return self.raw
        error: dict[str, Any] = {"type": self.error_type, "message": self.message}
        if self.error_code is not None:
            error["details"] = {"error_code": self.error_code}
        return msgspec.json.encode({"type": "error", "error": error, "request_id": request_id})


class UpstreamFailed(Exception):
    """One attempt failed before the client saw a byte of it; the next target may be tried."""

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

    def anew(self) -> Self:
        """The same, to raise: a frame that names what it raises stays with it, with the body."""
        return type(self)(
            self.error,
            outcome=self.outcome,
            detail=self.detail,
            raw=self.raw,
            headers=self.headers,
        )


def refusal_of(exc: BaseException) -> Refusal:
    """What the client is told about any exception; one that nobody expected is our bug."""
    match exc:
        case Refusal():
            return exc
        case BadRequest():
            return Refusal(exc.status, exc.error_type, str(exc), error_code=exc.error_code)
        case UpstreamFailed():
            return _upstream_refusal(exc)
        case BadUpstream():
            return Refusal(
                502, "api_error", "the upstream broke its protocol", {},
                outcome="upstream_error", source="upstream", detail="bad_event",
            )  # fmt: skip
        case SpoolUnavailable():
            return Refusal(
                503, "api_error", "the ledger cannot be written", {"retry-after": "10"},
                outcome="gateway_error", source="gateway", detail="spool",
            )  # fmt: skip
        case _:
            return Refusal(
                500, "api_error", "internal error",
                outcome="gateway_error", source="gateway", detail=type(exc).__name__,
            )  # fmt: skip


def _upstream_refusal(exc: UpstreamFailed) -> Refusal:
    error = exc.error
    headers = dict(exc.headers)
    if error.should_retry is not None:
        headers["x-should-retry"] = "true" if error.should_retry else "false"
    retry_after = error.retry_after_s
    if retry_after is None and error.status == 429:
        retry_after = RETRY_AFTER_DEFAULT_S
    if retry_after is not None:
        headers["retry-after"] = str(retry_after)
    return Refusal(
        error.status,
        error.error_type,
        error.message,
        headers,
        outcome=exc.outcome,
        source="upstream",
        detail=exc.detail,
        raw=exc.raw,
    )


def unauthenticated(message: str) -> Refusal:
    return Refusal(401, "authentication_error", message)


def forbidden(message: str) -> Refusal:
    return Refusal(403, "permission_error", message)


def unknown_path(path: str) -> Refusal:
    hint = next((f"; {hint}" for start, hint in ELSEWHERE.items() if path.startswith(start)), "")
    return Refusal(404, "not_found_error", f"no such path: {path[:200]!r}{hint}")


def wrong_method(method: str, allowed: tuple[str, ...]) -> Refusal:
    return Refusal(
        405,
        "invalid_request_error",
        f"method {method} is not allowed here; use {' or '.join(allowed)}",
        {"allow": ", ".join(allowed)},
    )


def unknown_model(model: str, known: list[str]) -> Refusal:
    shown = ", ".join(repr(name) for name in known[:10]) or "none"
    return Refusal(
        404, "not_found_error", f"model: {model[:200]!r} has no route; known here: {shown}"
    )


def too_busy(detail: str) -> Refusal:
    return Refusal(
        529, "overloaded_error", "the gateway has more requests than it can serve at once",
        {"retry-after": "1"}, source="gateway", detail=detail,
    )  # fmt: skip


def stopped() -> Refusal:
    return Refusal(
        STOPPED.status, STOPPED.error_type, STOPPED.message, {"x-should-retry": "false"},
        source="gateway", detail="stopped",
    )  # fmt: skip


def too_large(limit: int) -> Refusal:
    return Refusal(
        413,
        "request_too_large",
        f"the request body is larger than {limit} bytes",
        {"connection": "close"},
    )


def too_slow() -> Refusal:
    return Refusal(
        408,
        "invalid_request_error",
        "the request body did not arrive in time",
        {"connection": "close"},
    )


def directory_unavailable() -> Refusal:
    return Refusal(
        503, "api_error", "keys cannot be checked right now", {"retry-after": "5"},
        outcome="gateway_error", source="gateway", detail="directory",
    )  # fmt: skip
