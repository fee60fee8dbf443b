"""The list of requests and the page of one request in the admin, read-only."""

from typing import Any, Final

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import BadRequest, PermissionDenied
from django.db.models import Q, QuerySet
from django.db.models.functions import Left
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotAllowed
from django.urls import URLPattern, path, reverse

from proxy.admin.core.csp_middleware import set_security_headers
from proxy.admin.core.model_admin import ReadOnlyAdmin
from proxy.admin.core.permissions import READ_TRANSCRIPT
from proxy.admin.dashboard.queries import RequestRow, column_names, request_row, stream_rows
from proxy.admin.transcript import views
from proxy.ledger.archive.reading import restore_hint
from proxy.models import Exchange
from proxy.models.encrypted_text import BodyTextField
from proxy.models.ledger_names import key_ids, with_names
from proxy.permissions.readings import needs_reason
from proxy.permissions.row_permissions import (
    Reader,
    can_open_admin,
    reader_of_user,
    visible_exchanges,
)

from . import saved_views
from .filter_kinds import FormFilter
from .filters import FILTERS
from .keyset_changelist import GROUP
from .request_changelist import RequestChangeList
from .request_row import group_rows, list_row

LIST_FIELDS = (
    "id",
    "state",
    "outcome",
    "status",
    "stop_reason",
    "error_type",
    "created",
    "team",
    "key_id",
    "key_name",
    "user",
    "client_name",
    "client_version",
    "model_requested",
    "model_upstream",
    "upstream",
    "input_tokens",
    "cache_read_tokens",
    "cache_write_5m_tokens",
    "cache_write_1h_tokens",
    "output_tokens",
    "cost_nanousd",
    "ttft_ms",
    "total_ms",
    "session_id",
    "agent_id",
    "tool_names",
    "preview",
    "prompt",
)

PAGE_PARAMS: Final = ("older_than", "newer_than")  # query parameters that select a page of the list
STORED_ERROR_CHARS: Final = 11_000
"""Characters of an error message that the list reads: an upstream can send megabytes. The gateway's
longest message, 2,000 characters, has this length when it is encrypted."""
MIN_SEARCH: Final = 3
"""Minimum characters of a session id in a search: a shorter prefix matches too many requests."""
LAST_CHARACTER = "\U0010ffff"


@admin.register(Exchange)
class ExchangeAdmin(ReadOnlyAdmin):
    # The list does not show this column: the template shows the values of list_row().
    list_display = ("id",)
    list_display_links = None
    list_filter = FILTERS
    list_per_page = 50
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # facet counts would read all rows
    sortable_by = ()
    search_fields = ("=id",)
    search_help_text = "Request id, key, team/key, or the beginning of a session id"

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return can_open_admin(request.user)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return can_open_admin(request.user)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Exchange]:
        rows = visible_exchanges(reader_of_user(request.user)).only(*LIST_FIELDS)
        start = Left("error_message", STORED_ERROR_CHARS, output_field=BodyTextField())
        return rows.annotate(error_start=start)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[RequestChangeList]:
        return RequestChangeList

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        if lookup == "team":  # the name of ``of_team`` in links of earlier versions
            return "\x00" not in value
        return any(f.parameter_name == lookup for f in FILTERS)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip().replace("\x00", "")
        return (queryset.filter(search_condition(term)) if term else queryset), False

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        query = request.GET.urlencode()
        context = {
            "title": "Requests",
            "saved": saved_views.views_of(request.user, query),
            "query": saved_views.canonical_query(query),
            **(extra_context or {}),
        }
        response = super().changelist_view(request, context)
        if (cl := getattr(response, "context_data", {}).get("cl")) is not None:
            may_read = request.user.has_perm(READ_TRANSCRIPT)
            reader = reader_of_user(request.user)
            response.context_data |= list_context(cl, reader, may_read=may_read)  # type: ignore[attr-defined]  # it is a TemplateResponse
        return set_security_headers(response)

    def csv_view(self, request: HttpRequest) -> HttpResponseBase:
        """Stream all rows that match the filters as CSV, newest first, with the API's columns."""
        if request.method not in {"GET", "HEAD"}:
            return HttpResponseNotAllowed(["GET", "HEAD"])
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            cl: Any = self.get_changelist_instance(request)
        except IncorrectLookupParameters as exc:
            raise BadRequest(str(exc)) from None
        rows = cl.get_queryset(request).defer(None).order_by("-created", "-pk")
        records = map(request_row, with_names(rows.iterator(chunk_size=1000)))
        return set_security_headers(
            stream_rows(request, records, "csv", "requests", column_names(RequestRow()))
        )

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        own = [
            path("export.csv", view(self.csv_view), name="proxy_exchange_csv"),
            path("views/", view(saved_views.save_view), name="proxy_exchange_save_view"),
            path(
                "views/<int:view_id>/delete/",
                view(saved_views.delete_view),
                name="proxy_exchange_delete_view",
            ),
            path(
                "<str:exchange_id>/part/",
                view(views.part_view),
                name="proxy_exchange_part",
            ),
            path(
                "<str:exchange_id>/media/",
                view(views.media_view),
                name="proxy_exchange_media",
            ),
            path(
                "<str:exchange_id>/body/<str:side>/",
                view(views.body_view),
                name="proxy_exchange_body",
            ),
        ]
        return own + super().get_urls()

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        return views.transcript_view(request, object_id, self.admin_site)


def filter_context(cl: Any) -> dict[str, Any]:
    """Return the template context of the filter form and of the active filters."""
    fields: list[FormFilter] = list(cl.filter_specs)
    active_filters = [
        {
            "label": field.title,
            "value": field.value_label,
            "url": cl.get_query_string(remove=[field.parameter_name, *PAGE_PARAMS]),
        }
        for field in fields
        if field.value
    ]
    if cl.query:
        active_filters.append(
            {
                "label": "search",
                "value": cl.query,
                "url": cl.get_query_string(remove=["q", *PAGE_PARAMS]),
            }
        )
    return {
        "main_fields": [field for field in fields if not field.folded],
        "more_fields": [field for field in fields if field.folded],
        "more_open": any(field.value for field in fields if field.folded),
        "active_filters": active_filters,
    }


def list_context(cl: Any, reader: Reader, *, may_read: bool) -> dict[str, Any]:
    """Return the template context of the request list: rows, filters and links."""

    def filter_url(more: dict[str, Any]) -> str:
        return str(cl.get_query_string(new_params=more, remove=list(PAGE_PARAMS)))

    csv = reverse("admin:proxy_exchange_csv") + cl.get_query_string(remove=list(PAGE_PARAMS))
    rows = [
        list_row(row, filter_url, may_read=may_read and not needs_reason(reader, row))
        for row in with_names(cl.result_list)
    ]
    return {
        "groups": group_rows(rows, by_session=cl.by_session),
        "by_session": cl.by_session,
        "group_url": filter_url({GROUP: None if cl.by_session else "session"}),
        **filter_context(cl),
        "csv_url": csv,
        "archived_hint": restore_hint(cl.archived),
        "shorter_url": filter_url({"within": "24h"}),
    }


def search_condition(term: str) -> Q:
    """Match a request id, a key or the beginning of a session id. Each match uses an index."""
    if term.startswith("req_"):
        return Q(pk=term)
    team, slash, name = term.rpartition("/")
    if keys := (key_ids(name, team) if slash else key_ids(term))[:200]:
        return Q(key_id__in=keys)
    if len(term) < MIN_SEARCH:
        return Q(session_id=term)
    # A range condition uses the index on session_id; on SQLite, LIKE would read the whole table.
    return Q(session_id__gte=term, session_id__lt=term + LAST_CHARACTER)
