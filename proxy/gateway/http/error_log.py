"""Log one line for each failed request, with the request id.

Errors of clients are not logged: they have a row in the ledger, and the response describes them.
"""

import logging
from typing import Any, Final

from proxy.ledger.errors import RecordError
from proxy.ledger.journal.records import CloseRecord
from translator.dialect import UpstreamError
from translator.errors import TranslatorError

from .errors import HttpError, UpstreamFailed

log = logging.getLogger("proxy.gateway")

FAILURES: Final = frozenset({"upstream_error", "upstream_timeout", "gateway_error", "drained"})
UPSTREAM: Final = "upstream"
"""The source of an error whose message may contain text of the upstream."""


def log_refusal(request_id: str, refusal: HttpError, exc: BaseException | None) -> None:
    """Log the failure of a request that was not admitted or that has no known gateway key.

    ``exc``: the exception that caused the failure.
    """
    if refusal.outcome in FAILURES:
        log.warning(
            "%s %s %d %s: %s%s", request_id, refusal.outcome, refusal.status, refusal.detail,
            refusal.error_type, _own_message(refusal.source, refusal.message),
            exc_info=_exc_info(exc),
        )  # fmt: skip


def log_failed_request(
    closing: CloseRecord, error: UpstreamError | None, exc: BaseException | None
) -> None:
    """Log the failure of an admitted request.

    ``error``: the error event of the response's stream. ``exc``: the exception that ended the
    request without one.
    """
    if closing.outcome in FAILURES:
        if isinstance(exc, UpstreamFailed):
            error = exc.error
        code = error.code if error is not None else ""
        log.warning(
            "%s %s %d %s: %s%s by %s%s", closing.id, closing.outcome, closing.status,
            closing.detail, closing.error_type, f" ({code})" if code else "",
            closing.upstream or "no upstream",
            _own_message(closing.error_source, closing.error_message), exc_info=_exc_info(exc),
        )  # fmt: skip


def log_non_json_response(upstream: str, status: int, raw: bytes) -> None:
    """Log that an upstream's error body is not JSON.

    Do not log its text, which may quote the request.
    """
    if raw.strip() and raw.lstrip()[:1] not in b"{[":
        size = len(raw)
        log.info("%s answered with status %d and no JSON: %d bytes", upstream, status, size)


def _own_message(source: str, message: str) -> str:
    """Return the message for the log if the gateway wrote it, else an empty string.

    An upstream's message may quote the conversation, so only the ledger row contains it.
    """
    return f": {message!r}" if message and source != UPSTREAM else ""


def _exc_info(exc: BaseException | None) -> Any:
    """Return ``exc_info`` for an unexpected exception.

    Omit its message, which may quote the request.
    """
    expected = isinstance(exc, HttpError | UpstreamFailed | TranslatorError | RecordError)
    if not isinstance(exc, Exception) or expected:
        return None
    return Unexpected, Unexpected(type(exc).__name__), exc.__traceback__


class Unexpected(Exception):
    """Replaces an exception in the log. Its message is only the type of the original exception."""
