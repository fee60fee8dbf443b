"""Calibrate the estimates of input tokens for one model of one upstream.

Tokenizers differ, and upstream servers add prompts of their own. The ratio of a stored request is
the number of input tokens that the upstream reported, divided by the gateway's estimate.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

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
INPUT_COLUMNS: Final = (
    "input_tokens", "cache_read_tokens", "cache_write_5m_tokens", "cache_write_1h_tokens",
)  # fmt: skip
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
    """Yield the reported and the estimated input tokens of the newest completed requests.

    Rows with web searches are excluded: search results are counted as input, but not stored. So
    are rows with iterations, whose tokens are the sums of several prompts.
    """
    rows = Exchange.objects.filter(
        created__gte=since,
        status=200,
        outcome=Outcome.COMPLETED,
        upstream=upstream,
        model_upstream=model,
        input_source=TokenSource.REPORTED,
        iterations=[],
    ).exclude(web_searches__gt=0)
    found = 0
    for pk, *counts in rows.order_by("-created").values_list("pk", *INPUT_COLUMNS)[:MAX_ROWS]:
        try:
            stored = storage.read(pk)
            estimate = estimate_tokens(stored.request) if stored is not None else 0
        except (BrokenTranscript, LookupError, TypeError):
            # LookupError and TypeError come from an invalid body that a policy let pass.
            continue
        if estimate < MIN_TOKENS:
            continue
        yield sum(count or 0 for count in counts), estimate
        found += 1
        if found == SAMPLES:
            return
