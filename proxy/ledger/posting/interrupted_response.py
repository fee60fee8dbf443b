"""Rebuild the partial response to a request whose process died.

The response is rebuilt from the request's chunk records in the journal.
"""

import logging
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from proxy.ledger.transcripts.encoding import Read, reads_of
from proxy.ledger.transcripts.stream_replay import DIALECTS, Replayed, replay
from proxy.ledger.usage.unreported_usage import fill_unreported
from translator.anthropic.token_estimate import content_tokens, estimate_tokens
from translator.anthropic.usage import Usage

from .ledger_writer import ExchangeRecords

logger = logging.getLogger(__name__)

USAGE_FIELDS: Final = tuple(Usage.__dataclass_fields__)


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptedResponse:
    """What the journal has of the response to a request whose process died."""

    reads: list[Read] = field(default_factory=list)
    answer: dict[str, Any] | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    target: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    upstream: str = ""
    dialect: str = ""


def rebuild_interrupted(records: ExchangeRecords) -> InterruptedResponse:
    """Rebuild the response that a dead process had received from the upstream.

    Errors are logged, not raised, so that the request's row can be closed. With a hard budget,
    unknown token counts are set to the reserved worst case.
    """
    known = _partial(records)
    worst_case = records.opening.worst_case
    if not worst_case:
        return known
    reported = {name: known.usage[name] for name in USAGE_FIELDS if name in known.usage}
    answered = bool((known.answer or {}).get("content"))
    usage = fill_unreported(Usage(**reported), worst_case, answered=answered)
    return replace(known, usage={name: getattr(usage, name) for name in USAGE_FIELDS})


def _partial(records: ExchangeRecords) -> InterruptedResponse:
    reads = reads_of(records.chunks)
    targets = [chunk.target for chunk in records.chunks if chunk.target]
    target = targets[-1] if targets else records.opening.target
    known = InterruptedResponse(
        reads=reads,
        target=target,
        model=target.get("model") or records.opening.model_upstream,
        upstream=target.get("upstream") or records.opening.upstream,
        dialect=target.get("dialect") or records.opening.dialect,
    )
    if not reads or records.opening.body is None or target.get("dialect") not in DIALECTS:
        return known
    try:
        return _translated(records.opening.body, known)
    except Exception:  # the request's row must be closed in spite of a bug in the translator
        logger.exception("recovery: the answer of %s cannot be rebuilt", records.opening.id)
        return known


def _translated(body: bytes, known: InterruptedResponse) -> InterruptedResponse:
    request = msgspec.json.decode(body)
    replayed = replay(request, known.target, known.reads, ended=False)
    return replace(
        known,
        answer=replayed.answer,
        usage=_usage(request, replayed),
        unknown=dict(replayed.stream.unknown),
    )


def _usage(request: dict[str, Any], replayed: Replayed) -> dict[str, Any]:
    """Return the usage that the upstream reported; if it reported none, an estimate."""
    reported = replayed.stream.usage
    if reported.source == "reported" and reported.output:
        return {name: getattr(reported, name) for name in USAGE_FIELDS}
    content = (replayed.answer or {}).get("content") or []
    return {
        "input": estimate_tokens(request),
        "output": content_tokens(content),
        "source": "estimated",
    }
