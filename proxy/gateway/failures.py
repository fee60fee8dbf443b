"""One line in the log for each failure: the number of its request, and what went wrong.

What clients do wrong is no failure; it has its row, and its answer tells them.
"""

import logging
from typing import Final

from proxy.record.errors import RecordError
from proxy.record.records import CloseRecord
from translator.errors import TranslatorError

from .refusals import Refusal, UpstreamFailed

log = logging.getLogger("proxy.gateway")

PAGE_BYTES: Final = 2_048
FAILURES: Final = frozenset({"upstream_error", "upstream_timeout", "gateway_error", "drained"})


def log_refusal(request_id: str, refusal: Refusal, exc: BaseException | None) -> None:
    """A request that is not accepted, or nobody's; ``exc``: what was raised."""
    if refusal.outcome in FAILURES:
        log.warning(
            "%s %s %d %s: %r", request_id, refusal.outcome, refusal.status, refusal.detail,
            refusal.message, exc_info=_bug(exc),
        )  # fmt: skip


def log_ending(closing: CloseRecord, exc: BaseException | None) -> None:
    """An accepted request; ``exc``: what ended it, if it was not its stream."""
    if closing.outcome in FAILURES:
        log.warning(
            "%s %s %d %s: %s by %s: %r", closing.id, closing.outcome, closing.status,
            closing.detail, closing.error_type, closing.upstream or "no upstream",
            closing.error_message, exc_info=_bug(exc),
        )  # fmt: skip


def log_page(upstream: str, status: int, raw: bytes) -> None:
    """What an upstream said instead of a JSON error; clients get none of it (mapping.md 5.2).

    ``raw`` is without secrets of ours.
    """
    if raw.strip() and raw.lstrip()[:1] not in b"{[":
        page = raw[:PAGE_BYTES].decode("utf-8", "replace")
        log.info("%s answered with status %d and no JSON: %r", upstream, status, page)


def _bug(exc: BaseException | None) -> Exception | None:
    """What nobody expected shows where it happened."""
    expected = isinstance(exc, Refusal | UpstreamFailed | TranslatorError | RecordError)
    return exc if isinstance(exc, Exception) and not expected else None
