"""The page of the audit log, its filters and exports, and "Who read my transcripts"."""

import contextlib
from typing import Any, Final

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.urls import NoReverseMatch, reverse
from django.views.decorators.http import require_safe

from proxy.admin.core.lookup_limits import OwnUrls
from proxy.admin.core.pages import page, require_reader
from proxy.admin.requests.filters import (
    FormFilter,
    SinceFilter,
    TeamFilter,
    UntilFilter,
    WithinFilter,
    choice_field,
    filter_field,
)
from proxy.admin.requests.keyset_changelist import FORMATS, PAGE_PARAMS, KeysetAdmin
from proxy.audit_log.rows import COLUMNS, change_lines, entry_row
from proxy.models import Action, ActorKind, AuditEntry
from proxy.models.ledger_names import person_id, person_ids, with_names
from proxy.permissions.readings import LEDGER_AS
from proxy.permissions.row_permissions import reader_of_user, visible_entries

READINGS: Final = Q(action__in=(Action.READ, Action.EXPORT), model="request")
"""Matches readings and downloads of transcripts, however they came."""

EXPORTS: Final = Q(action=Action.EXPORT, model="", detail__startswith=LEDGER_AS)
"""Matches exports of the ledger, whose rows have the first words of everybody's requests."""

CHANGES: Final = (Action.ADD, Action.CHANGE, Action.DELETE, Action.REVOKE, Action.ROTATE)
OBJECT_KINDS: Final = (
    "key", "team", "user", "group", "route", "target", "upstream", "upstream policy", "price",
    "budget", "pause", "request", "export", "purge", "identity",
)  # fmt: skip


FILTERS: Final[tuple[type[FormFilter], ...]] = (
    WithinFilter,
    choice_field(
        "action",
        "did",
        {
            "readings": ("Any reading of a transcript", READINGS),
            "changes": (
                "Any change",
                Q(action__in=CHANGES),
            ),
            **{value: (str(label), Q(action=value)) for value, label in Action.choices},
        },
        column="action",
        folded=False,
    ),
    filter_field("by user", "user", AuditEntry.acted_by, folded=False),
    filter_field(
        "whose transcript",
        "subject",
        lambda value: Q(subject__in=person_ids(value)),
        folded=False,
    ),
    TeamFilter,
    choice_field(
        "object",
        "model",
        {kind: (kind, Q(model=kind)) for kind in OBJECT_KINDS},
        column="model",
        folded=False,
    ),
    filter_field(
        "object id or name",
        "object",
        lambda value: Q(object_id=value) | Q(object_name=value),
    ),
    SinceFilter,
    UntilFilter,
    choice_field(
        "kind of actor",
        "kind",
        {value: (str(label), Q(actor_kind=value)) for value, label in ActorKind.choices},
    ),
    filter_field("command", "command", hint="applyconfig"),
    filter_field("client address", "address"),
)


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
class AuditEntryAdmin(KeysetAdmin):
    list_filter = FILTERS
    search_fields = ("=object_id",)
    search_help_text = "Id or name of an object, such as a request id, a user or team/key"

    def get_queryset(self, request: HttpRequest) -> QuerySet[AuditEntry]:
        return visible_entries(reader_of_user(request.user))

    def search_condition(self, term: str) -> Q:
        named = Q(object_id=term) | Q(object_name=term) | Q(subject__in=person_ids(term))
        return named | AuditEntry.acted_by(term)

    def list_context(self, request: HttpRequest, cl: Any) -> dict[str, Any]:
        query = cl.get_query_string(remove=list(PAGE_PARAMS))
        return {
            "entries": [entry_cells(entry) for entry in with_names(cl.result_list)],
            "exports": [
                (kind, reverse("admin:proxy_auditentry_export", args=[kind]) + query)
                for kind in FORMATS
            ],
        }

    def export_view(self, request: HttpRequest, kind: str) -> HttpResponseBase:
        return self.export(request, kind, "audit-log", entry_row, COLUMNS)

    def own_urls(self) -> OwnUrls:
        view = require_safe(self.export_view)
        return (("export/<str:kind>/", view, "proxy_auditentry_export"),)


def entry_cells(entry: AuditEntry) -> dict[str, Any]:
    """Return the template values of one entry.

    ``url``: the page of its object, which may be deleted; "" if its kind has none.
    """
    name, url = PAGES.get(entry.model), ""
    if name:
        with contextlib.suppress(NoReverseMatch):
            url = reverse(name, args=[entry.object_id])
    return {"entry": entry, "lines": change_lines(entry), "url": url}


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
    return page(
        request,
        "audit/my_readings",
        "Who read my transcripts",
        entries=[entry_cells(entry) for entry in with_names(entries[:MAX_READINGS])],
        limit=MAX_READINGS,
    )
