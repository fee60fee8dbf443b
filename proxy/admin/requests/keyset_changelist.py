"""Lists of the ledger with keyset pagination, a filter form and exports, all read-only.

Keyset pagination needs no COUNT or OFFSET, so every page is fast.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import BadRequest, PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase

from proxy.admin.core.lookup_limits import CheckedChangeList, reject_bad_values
from proxy.admin.core.model_admin import ReadOnlyAdmin
from proxy.admin.dashboard.queries import stream_rows
from proxy.ledger.database.access import QueryTimeout, with_query_timeout
from proxy.models.ledger_names import with_names

from .filters import FormFilter

FORMATS: Final = ("csv", "ndjson")
"""The formats of exports."""
BEFORE: Final = "older_than"
AFTER: Final = "newer_than"
PAGE_PARAMS: Final = (BEFORE, AFTER)
"""The query parameters that select a page of the list."""
GROUP: Final = "group"
"""Query parameter of the layout; with the value ``session``, the page groups its rows."""
LAYOUT: Final = frozenset({*PAGE_PARAMS, GROUP})
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
        page_rows: list[Any] = []
        more_newer = more_older = False
        try:
            with with_query_timeout(), reject_bad_values():
                page_rows, more_newer, more_older = self._fetch_page()
        except QueryTimeout:
            self.timed_out = True
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


class KeysetAdmin(ReadOnlyAdmin):
    """A list whose rows and filters the template shows, and which can be exported."""

    # The list does not show this column: the template shows the values of list_context().
    list_display = ("id",)
    list_display_links = None
    list_filter: ClassVar[tuple[type[FormFilter], ...]]
    list_per_page = 50
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # facet counts would read all rows
    sortable_by = ()

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[KeysetChangeList]:
        return KeysetChangeList

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        return any(field.parameter_name == lookup for field in self.list_filter)

    def search_condition(self, term: str) -> Q:
        """Return what the rows of a search match."""
        raise NotImplementedError

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip().replace("\x00", "")
        return (queryset.filter(self.search_condition(term)) if term else queryset), False

    def list_context(self, request: HttpRequest, cl: Any) -> dict[str, Any]:
        """Return the template context of the rows and links of the list."""
        raise NotImplementedError

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        response = super().changelist_view(request, extra_context)
        if (cl := getattr(response, "context_data", {}).get("cl")) is not None:
            fields: list[FormFilter] = list(cl.filter_specs)
            active = [(f.parameter_name, f.title, f.value_label) for f in fields if f.value]
            if cl.query:
                active.append(("q", "search", cl.query))
            response.context_data |= {  # type: ignore[attr-defined]  # it is a TemplateResponse
                "main_fields": [field for field in fields if not field.folded],
                "more_fields": [field for field in fields if field.folded],
                "more_open": any(field.value for field in fields if field.folded),
                "active_filters": [
                    {
                        "label": label,
                        "value": value,
                        "url": cl.get_query_string(remove=[name, *PAGE_PARAMS]),
                    }
                    for name, label, value in active
                ],
                **self.list_context(request, cl),
            }
        return response

    def export(
        self,
        request: HttpRequest,
        kind: str,
        name: str,
        row: Callable[[Any], Any],
        columns: Sequence[str],
    ) -> HttpResponseBase:
        """Stream all rows that match the filters, newest first, in one of the export formats.

        ``row``: returns the exported row of a row with names. ``name``: the start of the file name.
        """
        if not self.has_view_permission(request):
            raise PermissionDenied
        if kind not in FORMATS:
            raise Http404("no such format")
        try:
            cl: Any = self.get_changelist_instance(request)
        except IncorrectLookupParameters as exc:
            raise BadRequest(str(exc)) from None
        rows = cl.get_queryset(request).defer(None).order_by("-created", "-pk")
        exported = map(row, with_names(rows.iterator(chunk_size=1000)))
        return stream_rows(request, exported, kind, name, columns)
