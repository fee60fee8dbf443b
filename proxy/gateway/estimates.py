"""Estimates of input tokens, put right by what upstreams really counted.

Nothing of this is on the way of a message: it is looked at when tokens are to be counted, and
learned from what the ledger keeps.
"""

import asyncio
import logging
import math
import time
from datetime import timedelta
from typing import Final

from django.db import DatabaseError, connection
from django.utils.timezone import now

from proxy.record.calibration import factor_of
from proxy.record.errors import LedgerAway

from .refusals import Header

log = logging.getLogger("proxy.gateway")

LEARN_EVERY_S: Final = 600
OF_THE_LAST: Final = timedelta(days=7)
MOST_KEPT: Final = 1_024  # a target of "*" has as many models as clients can think of
ESTIMATED: Final[Header] = (b"x-bridge-estimate", b"true")

_factors: Final[dict[tuple[str, str], float | None]] = {}
_learned_at: Final[dict[tuple[str, str], float]] = {}


async def corrected(upstream: str, model: str, estimate: int) -> tuple[int, tuple[Header, ...]]:
    """The estimate times what was learned of this model, and the headers that say so."""
    factor = await _factor(upstream, model)
    if factor is None:
        return estimate, (ESTIMATED,)
    told = (b"x-bridge-estimate-factor", b"%.2f" % factor)
    return math.ceil(estimate * factor), (ESTIMATED, told)


async def _factor(upstream: str, model: str) -> float | None:
    """Learned anew now and then; whoever comes meanwhile is told the one before."""
    key, at = (upstream, model), time.monotonic()
    if key not in _learned_at or at - _learned_at[key] >= LEARN_EVERY_S:
        _learned_at[key] = at
        if len(_learned_at) > MOST_KEPT:  # the oldest: it is learned again when it is asked for
            oldest = next(iter(_learned_at))
            del _learned_at[oldest]
            _factors.pop(oldest, None)
        try:
            _factors[key] = await asyncio.to_thread(_learn, upstream, model)
        except (DatabaseError, LedgerAway) as away:
            log.warning("estimates for %s %s stay as they are: %s", upstream, model, away)
    return _factors.get(key)


def _learn(upstream: str, model: str) -> float | None:
    try:
        return factor_of(upstream, model, now() - OF_THE_LAST)
    finally:
        connection.close()  # this thread's own
