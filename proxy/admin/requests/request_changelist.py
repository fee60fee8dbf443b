"""The change list of requests, which names the archived months in the time of a page."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from proxy.ledger.archive.reading import archived_month_of, archived_months

from .filter_kinds import FormFilter
from .keyset_changelist import KeysetChangeList

RESOLUTION: Final = timedelta(microseconds=1)


class RequestChangeList(KeysetChangeList):
    def archived_months(self, since: datetime | None, until: datetime | None) -> Sequence[str]:
        if self.query.startswith("req_"):
            return [month] if (month := archived_month_of(self.query)) else []
        fields: list[FormFilter] = list(self.filter_specs)  # type: ignore[arg-type]  # all of FILTERS
        starts, ends = zip((since, until), *(field.bounds() for field in fields), strict=True)
        since = max(filter(None, starts), default=None)
        until = min(filter(None, ends), default=None)
        return archived_months(since, until + RESOLUTION if until else None)
