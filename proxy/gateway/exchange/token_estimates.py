"""Estimates of input tokens, corrected by the counts that upstreams reported.

Only /v1/messages/count_tokens uses these estimates. The correction factors are computed from rows
of the ledger.
"""

import asyncio
import logging
import math
import time
from datetime import timedelta
from typing import Final

from django.db import DatabaseError, connection
from django.utils.timezone import now

from proxy.gateway.http.errors import Header
from proxy.ledger.errors import LedgerUnavailable
from proxy.ledger.maintenance.token_calibration import factor_of

log = logging.getLogger("proxy.gateway")

REFRESH_EVERY_S: Final = 600
RETRY_AFTER_S: Final = 10
"""A model without a factor is looked up again sooner: its first response gives one."""
LEARNING_RANGE: Final = timedelta(days=7)
# The number is limited, because with a target model "*" clients choose the names.
MAX_MODELS: Final = 1_024
ESTIMATED: Final[Header] = (b"x-bridge-estimate", b"true")

factors: Final[dict[tuple[str, str], float | None]] = {}
learned_at: Final[dict[tuple[str, str], float]] = {}


async def calibrated_estimate(
    upstream: str, model: str, estimate: int
) -> tuple[int, tuple[Header, ...]]:
    """Return the estimate times the model's correction factor, and headers that describe it."""
    factor = await _factor(upstream, model)
    if factor is None:
        return estimate, (ESTIMATED,)
    factor_header = (b"x-bridge-estimate-factor", b"%.2f" % factor)
    return math.ceil(estimate * factor), (ESTIMATED, factor_header)


async def _factor(upstream: str, model: str) -> float | None:
    """Return the cached correction factor of a model, and refresh it when it is due.

    Requests that arrive during the refresh get the previous factor.
    """
    key, at = (upstream, model), time.monotonic()
    due_after = RETRY_AFTER_S if factors.get(key) is None else REFRESH_EVERY_S
    if key not in learned_at or at - learned_at[key] >= due_after:
        learned_at[key] = at
        if (
            len(learned_at) > MAX_MODELS
        ):  # this drops the oldest factor, which is computed again when it is needed
            oldest = next(iter(learned_at))
            del learned_at[oldest]
            factors.pop(oldest, None)
        try:
            factors[key] = await asyncio.to_thread(refresh_factor, upstream, model)
        except (DatabaseError, LedgerUnavailable) as error:
            log.warning("estimates for %s %s stay as they are: %s", upstream, model, error)
    return factors.get(key)


def refresh_factor(upstream: str, model: str) -> float | None:
    try:
        return factor_of(upstream, model, now() - LEARNING_RANGE)
    finally:
        connection.close()  # close the database connection of this thread
