"""Requests of archived months, which are in Parquet files, on the pages of the admin (ADR 0015)."""

from datetime import datetime, timedelta
from typing import Final

from django.db.models import Q, QuerySet

from proxy.ledger.archive.reading import read_both, with_ids, within
from proxy.models import Exchange

NEARBY: Final = timedelta(days=31)
"""A session's other requests are looked for in the archived months this near to a request."""


def find_request(rows: QuerySet[Exchange], request_id: str) -> Exchange | None:
    """Return the request with this id, from the database or the archive; None: there is none."""
    for found in read_both(rows.filter(pk=request_id), list[Exchange], with_ids([request_id])):
        if found:
            return found[0]
    return None


def nearby_months(since: datetime, until: datetime) -> Q:
    """Match the archived months that can have other requests of a session of this time."""
    return within(since - NEARBY, until + NEARBY)
