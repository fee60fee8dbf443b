"""How far our estimates of input tokens are off, for one model of one upstream.

Each tokenizer, and each server's own prompt, is different. Where the upstream told what a stored
request had, the same request can be estimated again: what lies between the two is a factor.
"""

import math
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from django.db.models import QuerySet

from proxy.models import Exchange, Outcome, TokenSource
from translator.estimate import estimate_tokens

from . import transcripts
from .database import check_present
from .transcripts import BrokenTranscript

SAMPLES: Final = 12
LOOKED_AT: Final = 60  # rows at most: of a team that stores no words, none is a sample
ENOUGH: Final = 5
LEAST_TOKENS: Final = 300
"""Of a smaller request most is what the server itself adds, once."""
BOUNDS: Final = (0.5, 5.0)
HEADROOM: Final = 1.05
TALLEST: Final = 0.9  # an estimate errs high: nine of ten samples had fewer tokens


def factor_of(upstream: str, model: str, since: datetime) -> float | None:
    """What to multiply ``estimate_tokens`` by; None: too little was counted ``since`` then.

    Raises DatabaseError or LedgerAway.
    """
    check_present()
    ratios = sorted(_ratios(upstream, model, since))
    if len(ratios) < ENOUGH:
        return None
    low, high = BOUNDS
    tall = ratios[math.ceil(TALLEST * len(ratios)) - 1]
    return round(min(max(tall * HEADROOM, low), high), 2)


def _ratios(upstream: str, model: str, since: datetime) -> Iterator[float]:
    found = 0
    for row in _told(upstream, model, since):
        try:
            stored = transcripts.read(row.pk)
            estimate = estimate_tokens(stored.request) if stored is not None else 0
        except (BrokenTranscript, LookupError, TypeError):  # or a shape that only a policy let in
            continue
        if estimate < LEAST_TOKENS:
            continue
        yield _input(row) / estimate
        found += 1
        if found == SAMPLES:
            return


def _told(upstream: str, model: str, since: datetime) -> "QuerySet[Exchange]":
    """The newest whole answers whose input the upstream counted; searches add to it unseen."""
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
    ).exclude(web_searches__gt=0)
    return rows.order_by("-created").only(*columns)[:LOOKED_AT]


def _input(row: Exchange) -> int:
    """All that the model read, from a cache or not."""
    parts = (
        row.input_tokens,
        row.cache_read_tokens,
        row.cache_write_5m_tokens,
        row.cache_write_1h_tokens,
    )
    return sum(part or 0 for part in parts)
