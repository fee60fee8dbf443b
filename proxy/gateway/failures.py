"""One line in the log for each failure: the number of its request, and what went wrong.

What clients do wrong is no failure; it has its row, and its answer tells them.
"""

import logging
from typing import Any, Final

from proxy.record.errors import RecordError
from proxy.record.records import CloseRecord
from translator.dialect import UpstreamError
from translator.errors import TranslatorError

from .refusals import Refusal, UpstreamFailed

log = logging.getLogger("proxy.gateway")

FAILURES: Final = frozenset({"upstream_error", "upstream_timeout", "gateway_error", "drained"})
UPSTREAM: Final = "upstream"
"""The source of an error whose message may be the upstream's own text."""


def log_refusal(request_id: str, refusal: Refusal, exc: BaseException | None) -> None:
    """A request that is not accepted, or nobody's; ``exc``: what was raised."""
    if refusal.outcome in FAILURES:
        log.warning(
            "%s %s %d %s: %s%s", request_id, refusal.outcome, refusal.status, refusal.detail,
            refusal.error_type, _own_message(refusal.source, refusal.message),
            exc_info=_bug(exc),
        )  # fmt: skip


def log_ending(
    closing: CloseRecord, error: UpstreamError | None, exc: BaseException | None
) -> None:
    """An accepted request. ``error``: of its stream; ``exc``: what ended it, if not its stream."""
    if closing.outcome in FAILURES:
        if isinstance(exc, UpstreamFailed):
            error = exc.error
        code = error.code if error is not None else ""
        log.warning(
            "%s %s %d %s: %s%s by %s%s", closing.id, closing.outcome, closing.status,
            closing.detail, closing.error_type, f" ({code})" if code else "",
            closing.upstream or "no upstream",
            _own_message(closing.error_source, closing.error_message), exc_info=_bug(exc),
        )  # fmt: skip


def log_page(upstream: str, status: int, raw: bytes) -> None:
    """An upstream answered with something that is no JSON. Its text may quote the conversation."""
    if raw.strip() and raw.lstrip()[:1] not in b"{[":
        size = len(raw)
        log.info("%s answered with status %d and no JSON: %d bytes", upstream, status, size)


def _own_message(source: str, message: str) -> str:
    """A message of this gateway. An upstream's may quote the conversation: it has the row."""
    return f": {message!r}" if message and source != UPSTREAM else ""


def _bug(exc: BaseException | None) -> Any:
    """Where a bug raised its exception, and the type; the text may hold a client's value."""
    expected = isinstance(exc, Refusal | UpstreamFailed | TranslatorError | RecordError)
    if not isinstance(exc, Exception) or expected:
        return None
    return Unexpected, Unexpected(type(exc).__name__), exc.__traceback__


class Unexpected(Exception):
    """Stands in a log for an exception whose text is not logged; its message is the type."""
