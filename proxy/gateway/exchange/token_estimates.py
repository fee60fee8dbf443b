"""Estimates of input tokens, corrected by the counts that upstreams reported.

Only /v1/messages/count_tokens uses these estimates. The correction factors are computed from rows
of the ledger.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable
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


def compute_factor(upstream: str, model: str) -> float | None:
    """Compute a model's factor from the ledger, in a thread of its own."""
    try:
        return factor_of(upstream, model, now() - LEARNING_RANGE)
    finally:
        connection.close()  # close the database connection of this thread


class CorrectionFactors:
    """The correction factors of the models that clients used last."""

    def __init__(self, compute: Callable[[str, str], float | None] = compute_factor) -> None:
        self._compute = compute
        self._factors: dict[tuple[str, str], float | None] = {}
        self._computed_at: dict[tuple[str, str], float] = {}

    def __len__(self) -> int:
        return len(self._factors)

    async def factor(self, upstream: str, model: str) -> float | None:
        """Return the cached correction factor of a model, and refresh it when it is due.

        Requests that arrive during the refresh get the previous factor.
        """
        key, at = (upstream, model), time.monotonic()
        due_after = RETRY_AFTER_S if self._factors.get(key) is None else REFRESH_EVERY_S
        if key not in self._computed_at or at - self._computed_at[key] >= due_after:
            self._computed_at[key] = at
            if len(self._computed_at) > MAX_MODELS:
                # this drops the oldest factor, which is computed again when it is needed
                oldest = next(iter(self._computed_at))
                del self._computed_at[oldest]
                self._factors.pop(oldest, None)
            try:
                self._factors[key] = await asyncio.to_thread(self._compute, upstream, model)
            except (DatabaseError, LedgerUnavailable) as error:
                log.warning("estimates for %s %s stay as they are: %s", upstream, model, error)
        return self._factors.get(key)


correction_factors: Final = CorrectionFactors()


async def calibrated_estimate(
    upstream: str, model: str, estimate: int
) -> tuple[int, tuple[Header, ...]]:
    """Return the estimate times the model's correction factor, and headers that describe it."""
    factor = await correction_factors.factor(upstream, model)
    if factor is None:
        return estimate, (ESTIMATED,)
    factor_header = (b"x-bridge-estimate-factor", b"%.2f" % factor)
    return math.ceil(estimate * factor), (ESTIMATED, factor_header)
