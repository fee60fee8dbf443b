"""The request list and the way to one transcript. Everything here is read-only (T30)."""

from typing import Any, Final

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import BadRequest, PermissionDenied
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotAllowed
from django.urls import URLPattern, path, reverse

from proxy.models import ApiKey, Exchange
from proxy.visibility import may_open_windows, reader_of_user, visible_exchanges

from . import saved_views, transcript
from .base import ReadOnlyAdmin
from .books import RequestRow, columns_of, request_row, streamed
from .filters import FILTERS, LINKED_FIELDS, FormFilter
from .headers import harden
from .keyset import KeysetChangeList
from .lines import line_of

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
    "tool_calls",
    "stream",
    "preview",
)

PLACES: Final = ("older_than", "newer_than")  # where on the list a page is
MIN_SEARCH = 3  # characters; shorter prefixes would match half the ledger (T29)
LAST_CHARACTER = "\U0010ffff"


@admin.register(Exchange)
class ExchangeAdmin(ReadOnlyAdmin):
    list_display = ("id",)  # the page draws its own rows, of LIST_FIELDS
    list_display_links = None
    list_filter = FILTERS
    list_per_page = 50
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # facets count, and counting is what we avoid
    sortable_by = ()
    search_fields = ("=id",)
    search_help_text = "Request id, key, team/key, or the beginning of a session id"

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may_open_windows(request.user)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return may_open_windows(request.user)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Exchange]:
        return visible_exchanges(reader_of_user(request.user)).only(*LIST_FIELDS)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[KeysetChangeList]:
        return KeysetChangeList

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        if lookup in LINKED_FIELDS:
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
            "query": saved_views.settled(query),
            **(extra_context or {}),
        }
        answer = super().changelist_view(request, context)
        if (cl := getattr(answer, "context_data", {}).get("cl")) is not None:
            answer.context_data |= page_of(cl)  # type: ignore[attr-defined]  # a TemplateResponse
        return harden(answer)

    def csv_view(self, request: HttpRequest) -> HttpResponseBase:
        """Every row of the filter, newest first, in the columns of the reports' own CSV."""
        if request.method not in {"GET", "HEAD"}:
            return HttpResponseNotAllowed(["GET", "HEAD"])
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            cl = self.get_changelist_instance(request)
        except IncorrectLookupParameters as wrong:
            raise BadRequest(str(wrong)) from None
        rows = cl.get_queryset(request).defer(None).order_by("-created", "-pk")
        found = map(request_row, rows.iterator(chunk_size=1000))
        return harden(streamed(request, found, "csv", "requests", columns_of(RequestRow())))

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
                view(transcript.part_view),
                name="proxy_exchange_part",
            ),
            path(
                "<str:exchange_id>/body/<str:side>/",
                view(transcript.body_view),
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
        return transcript.transcript_view(request, object_id, self.admin_site)


def page_of(cl: Any) -> dict[str, Any]:
    """What the list's page shows beside the form: rows, the filters that are on, and links."""
    fields: list[FormFilter] = list(cl.filter_specs)
    chips = [
        {
            "label": field.title,
            "value": field.shown,
            "url": cl.get_query_string(remove=[field.parameter_name, *PLACES]),
        }
        for field in fields
        if field.value
    ]
    if cl.query:
        chips.append(
            {
                "label": "search",
                "value": cl.query,
                "url": cl.get_query_string(remove=["q", *PLACES]),
            }
        )

    def narrowed(more: dict[str, Any]) -> str:
        return str(cl.get_query_string(new_params=more, remove=list(PLACES)))

    csv = reverse("admin:proxy_exchange_csv") + cl.get_query_string(remove=list(PLACES))
    return {
        "lines": [line_of(row, narrowed) for row in cl.result_list],
        "main_fields": [field for field in fields if not field.folded],
        "more_fields": [field for field in fields if field.folded],
        "more_open": any(field.value for field in fields if field.folded),
        "chips": chips,
        "csv_url": csv,
        "shorter_url": narrowed({"within": "24h"}),
    }


def search_condition(term: str) -> Q:
    """Exact id, key or session; a session also by its beginning. Each uses an index."""
    if term.startswith("req_"):
        return Q(pk=term)
    team, slash, name = term.rpartition("/")
    keys = ApiKey.objects.filter(Q(name=name, team__name=team) if slash else Q(name=term))
    key_ids = list(keys.values_list("pk", flat=True)[:200])
    if key_ids:
        return Q(key_id__in=key_ids)
    if len(term) < MIN_SEARCH:
        return Q(session_id=term)
    # A range is what the index of session_id serves; LIKE would read the whole table on SQLite.
    return Q(session_id__gte=term, session_id__lt=term + LAST_CHARACTER)
