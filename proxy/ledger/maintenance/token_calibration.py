"""Calibrate the estimates of input tokens for one model of one upstream.

Tokenizers differ, and upstream servers add prompts of their own. The ratio of a stored request is
the number of input tokens that the upstream reported, divided by the gateway's estimate.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from django.db.models import QuerySet

from proxy.ledger.database.access import check_present
from proxy.ledger.transcripts import storage
from proxy.ledger.transcripts.storage import BrokenTranscript
from proxy.models import Exchange, Outcome, TokenSource
from translator.anthropic.token_estimate import estimate_tokens

SAMPLES: Final = 12
MAX_ROWS: Final = 60  # rows to read for the samples; rows without a transcript cannot be used
MIN_SAMPLES: Final = 5
"""Fewer samples only raise the factor, and only the large ones count."""
MIN_TOKENS: Final = 300
"""In smaller requests, the constant prompt that the upstream server adds would dominate."""
LARGE_TOKENS: Final = 4_000
"""Only samples above this estimate lower the factor: estimates include constants for tools and
messages that are too high for a small request, but not for a large one."""
BOUNDS: Final = (0.5, 5.0)
HEADROOM: Final = 1.05
# The percentile is high, so that 90 % of the samples have fewer tokens than estimated.


def factor_of(upstream: str, model: str, since: datetime) -> float | None:
    """Return the factor by which to multiply ``estimate_tokens`` for this model.

    No sample has more tokens than its estimate times this factor, which is below 1 only if enough
    large requests show it. One large request suffices to raise it, because the second request of a
    session is as large as the first, and an estimate that is too low overruns the context window.
    Returns None if there are too few stored requests after ``since``. Raises DatabaseError or
    LedgerUnavailable.
    """
    check_present()
    samples = list(_samples(upstream, model, since))
    large = [sample for sample in samples if sample[1] >= LARGE_TOKENS]
    counted = samples if len(samples) >= MIN_SAMPLES else large
    if not counted:
        return None
    low, high = BOUNDS
    ratio = max(tokens / estimate for tokens, estimate in counted) * HEADROOM
    return round(min(max(ratio, low if len(large) >= MIN_SAMPLES else 1.0), high), 2)


def _samples(upstream: str, model: str, since: datetime) -> Iterator[tuple[int, int]]:
    """Yield the reported and the estimated input tokens of stored requests."""
    found = 0
    for row in _measured_exchanges(upstream, model, since):
        try:
            stored = storage.read(row.pk)
            estimate = estimate_tokens(stored.request) if stored is not None else 0
        except (BrokenTranscript, LookupError, TypeError):
            # LookupError and TypeError come from an invalid body that a policy let pass.
            continue
        if estimate < MIN_TOKENS:
            continue
        yield _input(row), estimate
        found += 1
        if found == SAMPLES:
            return


def _measured_exchanges(upstream: str, model: str, since: datetime) -> "QuerySet[Exchange]":
    """Return the newest completed rows whose input the upstream reported.

    Rows with web searches are excluded: search results are counted as input, but not stored. So
    are rows with iterations, whose tokens are the sums of several prompts.
    """
    columns = (
        "input_tokens",
        "cache_read_tokens",
        "cache_write_5m_tokens",
        "cache_write_1h_tokens",
    )
    rows = Exchange.objects.filter(
        created__gte=since,
        status=200,
        outcome=Outcome.COMPLETED,
        upstream=upstream,
        model_upstream=model,
        input_source=TokenSource.REPORTED,
        iterations=[],
    ).exclude(web_searches__gt=0)
    return rows.order_by("-created").only(*columns)[:MAX_ROWS]


def _input(row: Exchange) -> int:
    """Return the input tokens of a row, including cached tokens."""
    parts = (
        row.input_tokens,
        row.cache_read_tokens,
        row.cache_write_5m_tokens,
        row.cache_write_1h_tokens,
    )
    return sum(part or 0 for part in parts)
