"""When each key was last used, to the minute: written while posting, never on the hot path."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from django.db.models import Q

from proxy.models import ApiKey

from .rows import AnyRow
from .statements import evened

MINUTE: Final = timedelta(minutes=1)
"""A busy key costs one update a minute."""


def note(rows: Iterable[AnyRow]) -> None:
    """The keys of these rows were used when they were accepted; never set back."""
    newest: dict[int, datetime] = {}
    for row in rows:
        if row.key_id is not None:
            newest[row.key_id] = max(newest.get(row.key_id, row.created), row.created)
    known = ApiKey.objects.filter(pk__in=evened([*newest])).values_list("pk", "last_used")
    for key_id, before in known:
        at = newest[key_id]
        if before is None or at - before >= MINUTE:
            older = Q(last_used=None) | Q(last_used__lt=at)
            ApiKey.objects.filter(older, pk=key_id).update(
                last_used=at
            )  # no signal: no new directory
