"""Totals of the requests of one session, for the admin and for the reports API."""

from typing import Final

from django.db.models import Aggregate, Count, Max, Min, Q, Sum

from proxy.models.ledger import FAILED, UNPRICED

SESSION_TOTALS: Final[dict[str, Aggregate]] = {
    "n": Count("pk"),
    "failed": Count("pk", filter=FAILED),
    "agents": Count("agent_id", distinct=True, filter=~Q(agent_id="")),
    "started": Min("created"),
    "last": Max("created"),
    "fresh": Sum("input_tokens"),
    "read": Sum("cache_read_tokens"),
    "short": Sum("cache_write_5m_tokens"),
    "long": Sum("cache_write_1h_tokens"),
    "out": Sum("output_tokens"),
    "cost": Sum("cost_nanousd"),
    "unpriced": Count("pk", filter=UNPRICED),
}
"""Name -> aggregate over the rows of a session.

``fresh``: input tokens that were neither read from nor written to the prompt cache. ``short`` and
``long``: tokens written to the cache for five minutes and for one hour.
"""
