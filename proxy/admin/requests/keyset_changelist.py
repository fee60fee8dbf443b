"""A change list with keyset pagination: it needs no COUNT or OFFSET, so every page is fast."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest

from proxy.admin.core.lookup_limits import CheckedChangeList, reject_bad_values
from proxy.ledger.database.access import QueryTimeout, with_query_timeout

BEFORE: Final = "older_than"
AFTER: Final = "newer_than"
GROUP: Final = "group"
"""Query parameter of the layout; with the value ``session``, the page groups its rows."""
LAYOUT: Final = frozenset({BEFORE, AFTER, GROUP})
"""The query parameters that are no filters."""


class KeysetChangeList(CheckedChangeList):
    """The rows of one page, newest first.

    ``older_than`` and ``newer_than`` are ids of rows next to it.
    """

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        self._before = request.GET.get(BEFORE, "")
        self._after = request.GET.get(AFTER, "")
        self.by_session = request.GET.get(GROUP) == "session"
        super().__init__(request, *args, **kwargs)

    def get_filters_params(self, params: dict[str, Any] | None = None) -> dict[str, Any]:
        filters = super().get_filters_params(params)
        return {name: value for name, value in filters.items() if name not in LAYOUT}

    def get_ordering(self, request: HttpRequest, queryset: Any) -> list[Any]:
        return ["-created", "-pk"]

    def get_results(self, request: HttpRequest) -> None:
        """Load the rows of the page.

        Set ``timed_out`` if the query exceeded the time limit, and ``archived`` to the archived
        months whose rows are missing on the page.
        """
        self.timed_out = False
        self.archived: Sequence[str] = ()
        try:
            with with_query_timeout(), reject_bad_values():
                page_rows, more_newer, more_older = self._fetch_page()
        except QueryTimeout:
            self.timed_out = True
            page_rows, more_newer, more_older = [], False, False
        self.newer_url = self._page_url(AFTER, page_rows[0].pk) if page_rows and more_newer else ""
        self.older_url = (
            self._page_url(BEFORE, page_rows[-1].pk) if page_rows and more_older else ""
        )
        self.newest_url = self._page_url("", "") if self._before or self._after else ""
        self.result_list = page_rows
        self.result_count = len(page_rows)
        self.full_result_count = None
        self.show_full_result_count = False
        self.show_admin_actions = False
        self.can_show_all = False
        self.multi_page = False
        self.paginator = Paginator(page_rows, self.list_per_page)

    def archived_months(self, since: datetime | None, until: datetime | None) -> Sequence[str]:
        """Return the archived months in which the list has rows of this time; the default is none.

        None: no bound. ``until`` is inclusive.
        """
        return ()

    def _fetch_page(self) -> tuple[list[Any], bool, bool]:
        """Return the rows of the page, whether newer rows exist, and whether older rows exist.

        One query reads the rows of the page and one more row. It orders by time first, as all
        indexes of the table do, so the database need not sort.
        """
        size = self.list_per_page
        rows = self.queryset
        after, before = self._boundary_row(self._after), self._boundary_row(self._before)
        if after:
            newer = rows.filter(created__gte=after.created).exclude(
                created=after.created, pk__lte=after.pk
            )
            page_rows = self._first_rows(newer.order_by("created", "pk"), size + 1, after)
            more_newer, more_older = len(page_rows) > size, True
            page_rows = page_rows[:size][::-1]
        else:
            if before:
                rows = rows.filter(created__lte=before.created).exclude(
                    created=before.created, pk__gte=before.pk
                )
            page_rows = self._first_rows(rows, size + 1, before, newest_first=True)
            more_newer, more_older = before is not None, len(page_rows) > size
            page_rows = page_rows[:size]
        return page_rows, more_newer, more_older

    def _first_rows(
        self, rows: QuerySet[Any], limit: int, start: Any, *, newest_first: bool = False
    ) -> list[Any]:
        """Return the first rows in their order, and note the archived months in their time.

        ``start``: the row next to the page, or None.
        """
        found = list(rows[:limit])
        edge = found[-1].created if len(found) == limit else None
        bound = start.created if start else None
        self.archived = self.archived_months(*((edge, bound) if newest_first else (bound, edge)))
        return found

    def _boundary_row(self, key: str) -> Any:
        """Return the row with this id, which is next to the page; None if there is no such row."""
        return self.root_queryset.filter(pk=key).only("created").first() if key else None

    def _page_url(self, name: str, key: str) -> str:
        params = {k: v for k, v in self.filter_params.items() if k not in LAYOUT}
        if self.by_session:
            params[GROUP] = ["session"]
        if name:
            params[name] = [key]
        return "?" + urlencode(sorted(params.items()), doseq=True)
