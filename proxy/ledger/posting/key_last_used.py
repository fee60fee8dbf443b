"""Update the time when each gateway key was last used, with a resolution of one minute.

The time is written together with the ledger rows, not while the request is served.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from django.db.models import Q

from proxy.ledger.database.bulk_sql import padded_keys
from proxy.models import ApiKey

from .exchange_columns import AnyRow

MINUTE: Final = timedelta(minutes=1)
"""The ``last_used`` time of a key is updated at most once in this time."""


def update_last_used(rows: Iterable[AnyRow]) -> None:
    """Set ``last_used`` of the rows' keys; an older time never replaces a newer one."""
    newest: dict[int, datetime] = {}
    for row in rows:
        if row.key_id is not None:
            newest[row.key_id] = max(newest.get(row.key_id, row.created), row.created)
    known = ApiKey.objects.filter(pk__in=padded_keys([*newest])).values_list("pk", "last_used")
    for key_id, before in known:
        at = newest[key_id]
        if before is None or at - before >= MINUTE:
            older = Q(last_used=None) | Q(last_used__lt=at)
            # update() sends no post_save signal, so the gateway does not reload its configuration.
            ApiKey.objects.filter(older, pk=key_id).update(last_used=at)
