"""The page of the audit log, its exports, and the page "Who read my transcripts"."""

from typing import Any, Final

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import BadRequest, PermissionDenied
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.views.decorators.http import require_safe

from proxy.admin.core.csp_middleware import set_security_headers
from proxy.admin.core.model_admin import ReadOnlyAdmin
from proxy.admin.core.permissions import require_reader
from proxy.admin.dashboard.queries import stream_rows
from proxy.admin.requests.exchange_admin import PAGE_PARAMS, filter_context
from proxy.admin.requests.keyset_changelist import KeysetChangeList
from proxy.audit_log.rows import COLUMNS, change_lines, entry_row
from proxy.models import ActorKind, AuditEntry
from proxy.models.ledger_names import person_id, person_ids, with_names
from proxy.permissions.row_permissions import reader_of_user, visible_entries

from .filters import EXPORTS, FILTERS, READINGS

FORMATS: Final = ("csv", "ndjson")
MAX_READINGS: Final = 200
"""Maximum entries on the page "Who read my transcripts"; it shows the newest ones."""

PAGES: Final = {
    "request": "admin:proxy_exchange_change",
    "key": "admin:proxy_apikey_change",
    "team": "admin:proxy_team_change",
    "user": "admin:auth_user_change",
    "group": "admin:auth_group_change",
    "route": "admin:proxy_route_change",
    "upstream": "admin:proxy_upstream_change",
    "price": "admin:proxy_price_change",
    "budget": "admin:proxy_budget_change",
    "webhook": "admin:proxy_webhook_change",
}
"""Kind of object -> the page of one object."""


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    # The list does not show this column: the template shows the values of entry_cells().
    list_display = ("id",)
    list_display_links = None
    list_filter = FILTERS
    list_per_page = 50
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    search_fields = ("=object_id",)
    search_help_text = "Id or name of an object, such as a request id, a user or team/key"

    def get_queryset(self, request: HttpRequest) -> QuerySet[AuditEntry]:
        return visible_entries(reader_of_user(request.user))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[KeysetChangeList]:
        return KeysetChangeList

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        return any(f.parameter_name == lookup for f in FILTERS)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip().replace("\x00", "")
        if not term:
            return queryset, False
        condition = Q(object_id=term) | Q(object_name=term) | Q(subject__in=person_ids(term))
        return queryset.filter(condition | AuditEntry.acted_by(term)), False

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        response = super().changelist_view(request, {"title": "Audit log", **(extra_context or {})})
        if (cl := getattr(response, "context_data", {}).get("cl")) is not None:
            query = cl.get_query_string(remove=list(PAGE_PARAMS))
            response.context_data |= {  # type: ignore[attr-defined]  # it is a TemplateResponse
                **filter_context(cl),
                "entries": [entry_cells(entry) for entry in with_names(cl.result_list)],
                "exports": [
                    (kind, reverse("admin:proxy_auditentry_export", args=[kind]) + query)
                    for kind in FORMATS
                ],
            }
        return set_security_headers(response)

    def export_view(self, request: HttpRequest, kind: str) -> HttpResponseBase:
        """Stream all entries that match the filters, newest first."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if kind not in FORMATS:
            raise Http404("no such format")
        try:
            cl = self.get_changelist_instance(request)
        except IncorrectLookupParameters as exc:
            raise BadRequest(str(exc)) from None
        entries = cl.get_queryset(request).order_by("-created", "-pk").iterator(chunk_size=1000)
        rows = map(entry_row, with_names(entries))
        return set_security_headers(stream_rows(request, rows, kind, "audit-log", COLUMNS))

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        own = [
            path(
                "export/<str:kind>/",
                view(require_safe(self.export_view)),
                name="proxy_auditentry_export",
            ),
        ]
        return own + super().get_urls()


def entry_cells(entry: AuditEntry) -> dict[str, Any]:
    """Return the template values of one entry."""
    return {"entry": entry, "lines": change_lines(entry), "url": object_url(entry)}


def object_url(entry: AuditEntry) -> str:
    """Return the URL of the object's page; "" if its kind has none. The object may be deleted."""
    page = PAGES.get(entry.model)
    try:
        return reverse(page, args=[entry.object_id]) if page else ""
    except NoReverseMatch:
        return ""


@require_safe
def my_readings_view(request: HttpRequest) -> HttpResponse:
    """Show the signed-in user who read the user's transcripts, when and why.

    Keys in the user's name are shown too: others may have made them. So are exports of the ledger,
    which have the first words of the user's requests.
    """
    require_reader(request)
    own = person_id(request.user)
    entries = AuditEntry.objects.filter(Q(READINGS, subject=own) | EXPORTS)
    entries = entries.exclude(actor_kind=ActorKind.USER, user=own)
    context = {
        **admin.site.each_context(request),
        "title": "Who read my transcripts",
        "entries": [entry_cells(entry) for entry in with_names(entries[:MAX_READINGS])],
        "limit": MAX_READINGS,
    }
    return set_security_headers(
        TemplateResponse(request, "admin/proxy/audit/my_readings.html", context)
    )
