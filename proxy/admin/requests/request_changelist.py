"""The change list of requests, which continues in the archive where the database ends."""

from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Q

from proxy.admin.core.archived_requests import find_request
from proxy.ledger.archive.reading import with_ids, within

from .filter_kinds import FormFilter
from .keyset_changelist import KeysetChangeList

RESOLUTION: Final = timedelta(microseconds=1)


class RequestChangeList(KeysetChangeList):
    def archived_months(self, since: datetime | None, until: datetime | None) -> Q:
        fields: list[FormFilter] = list(self.filter_specs)  # type: ignore[arg-type]  # all of FILTERS
        starts, ends = zip((since, until), *(field.bounds() for field in fields), strict=True)
        since = max(filter(None, starts), default=None)
        until = min(filter(None, ends), default=None)
        months = within(since, until + RESOLUTION if until else None)
        return months & with_ids([self.query]) if self.query.startswith("req_") else months

    def _boundary_row(self, key: str) -> Any:
        return find_request(self.root_queryset.only("created"), key) if key else None
