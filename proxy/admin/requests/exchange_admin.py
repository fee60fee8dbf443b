"""The list of requests and the page of one request in the admin, read-only."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.db.models.functions import Left
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.urls import reverse
from django.views.decorators.http import require_safe

from proxy.admin.core.exchange_text import cost_of, outcome_label, session_url, shorter_id
from proxy.admin.core.lookup_limits import OwnUrls
from proxy.admin.core.number_format import duration, short_count
from proxy.admin.core.pages import READ_TRANSCRIPT
from proxy.admin.dashboard.queries import RequestRow, column_names, request_row, sum_known
from proxy.admin.transcript import views
from proxy.ledger.archive.reading import archived_month_of, archived_months, restore_hint
from proxy.models import Exchange, State
from proxy.models.encrypted_text import BodyTextField
from proxy.models.ledger_names import key_ids, with_names
from proxy.permissions.readings import needs_reason
from proxy.permissions.row_permissions import can_open_admin, reader_of_user, visible_exchanges

from . import saved_views
from .filters import FILTERS, FormFilter
from .keyset_changelist import GROUP, PAGE_PARAMS, KeysetAdmin, KeysetChangeList

LIST_FIELDS: Final = (
    "id", "state", "outcome", "status", "stop_reason", "error_type", "created", "team", "key_id",
    "key_name", "user", "client_name", "client_version", "model_requested", "model_upstream",
    "upstream", "input_tokens", "cache_read_tokens", "cache_write_5m_tokens",
    "cache_write_1h_tokens", "output_tokens", "cost_nanousd", "ttft_ms", "total_ms", "session_id",
    "agent_id", "tool_names", "preview", "prompt",
)  # fmt: skip

MAX_TOOLS: Final = 3
ERROR_CHARS: Final = 400
"""Characters of an error message that the list shows."""
STORED_ERROR_CHARS: Final = 11_000
"""Characters of an error message that the list reads: an upstream can send megabytes. The gateway's
longest message, 2,000 characters, has this length when it is encrypted."""
MIN_SEARCH: Final = 3
"""Minimum characters of a session id in a search: a shorter prefix matches too many requests."""
LAST_CHARACTER = "\U0010ffff"
RESOLUTION: Final = timedelta(microseconds=1)


class RequestChangeList(KeysetChangeList):
    """The change list of requests, which names the archived months in the time of a page."""

    def archived_months(self, since: datetime | None, until: datetime | None) -> Sequence[str]:
        if self.query.startswith("req_"):
            return [month] if (month := archived_month_of(self.query)) else []
        fields: list[FormFilter] = list(self.filter_specs)  # type: ignore[arg-type]  # all of FILTERS
        starts, ends = zip((since, until), *(field.bounds() for field in fields), strict=True)
        since = max(filter(None, starts), default=None)
        until = min(filter(None, ends), default=None)
        return archived_months(since, until + RESOLUTION if until else None)


@admin.register(Exchange)
class ExchangeAdmin(KeysetAdmin):
    heading = "Requests"
    list_filter = FILTERS
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

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[KeysetChangeList]:
        return RequestChangeList

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        if lookup == "team":  # the name of ``of_team`` in links of earlier versions
            return "\x00" not in value
        return super().lookup_allowed(lookup, value, request)

    def search_condition(self, term: str) -> Q:
        """Match a request id, a key or the beginning of a session id. Each uses an index."""
        if term.startswith("req_"):
            return Q(pk=term)
        team, slash, name = term.rpartition("/")
        if keys := (key_ids(name, team) if slash else key_ids(term))[:200]:
            return Q(key_id__in=keys)
        return session_condition(term)

    def list_context(self, request: HttpRequest, cl: Any) -> dict[str, Any]:
        def filter_url(more: dict[str, Any]) -> str:
            return str(cl.get_query_string(new_params=more, remove=list(PAGE_PARAMS)))

        reader, may_read = reader_of_user(request.user), request.user.has_perm(READ_TRANSCRIPT)
        rows = [
            list_row(row, filter_url, may_read=may_read and not needs_reason(reader, row))
            for row in with_names(cl.result_list)
        ]
        query = saved_views.canonical_query(request.GET.urlencode())
        return {
            "saved": saved_views.views_of(request.user, query),
            "query": query,
            "groups": group_rows(rows, by_session=cl.by_session),
            "by_session": cl.by_session,
            "group_url": filter_url({GROUP: None if cl.by_session else "session"}),
            "csv_url": reverse("admin:proxy_exchange_csv") + filter_url({}),
            "archived_hint": restore_hint(cl.archived),
            "shorter_url": filter_url({"within": "24h"}),
        }

    def csv_view(self, request: HttpRequest) -> HttpResponseBase:
        """Stream all rows that match the filters as CSV, with the columns of the API."""
        return self.export(request, "csv", "requests", request_row, column_names(RequestRow()))

    def own_urls(self) -> OwnUrls:
        return (
            ("export.csv", require_safe(self.csv_view), "proxy_exchange_csv"),
            ("views/", saved_views.save_view, "proxy_exchange_save_view"),
            (
                "views/<int:view_id>/delete/",
                saved_views.delete_view,
                "proxy_exchange_delete_view",
            ),
            ("<str:exchange_id>/part/", views.part_view, "proxy_exchange_part"),
            ("<str:exchange_id>/media/", views.media_view, "proxy_exchange_media"),
            ("<str:exchange_id>/body/<str:side>/", views.body_view, "proxy_exchange_body"),
        )

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        return views.transcript_view(request, object_id)


def session_condition(start: str) -> Q:
    """Match the beginning of a session id, or a short id exactly."""
    if len(start) < MIN_SEARCH:
        return Q(session_id=start)
    # A range condition uses the index on session_id; on SQLite, LIKE would read the whole table.
    return Q(session_id__gte=start, session_id__lt=start + LAST_CHARACTER)


def list_row(
    row: Exchange, filter_url: Callable[[dict[str, Any]], str], *, may_read: bool
) -> dict[str, Any]:
    """Return the template values of one row: its ``exchange``, and texts made from it.

    ``filter_url`` returns the URL of the open list with additional filters. If not ``may_read``,
    the row has no text of the conversation: neither ``preview`` nor ``prompt``, the user's last
    words.
    """
    tone, outcome_text = outcome_label(row)
    is_open = row.state == State.OPEN
    written = (row.input_tokens, row.cache_write_5m_tokens, row.cache_write_1h_tokens)
    counts = (sum_known(written), row.cache_read_tokens, row.output_tokens)
    called = Counter(map(str, row.tool_names if isinstance(row.tool_names, list) else ()))
    tools = [name if count == 1 else f"{name} ({count})" for name, count in called.items()]
    if len(tools) > MAX_TOOLS:
        tools[MAX_TOOLS:] = [f"and {len(tools) - MAX_TOOLS} more"]
    return {
        "exchange": row,
        "url": reverse("admin:proxy_exchange_change", args=[row.pk]),
        "tone": tone,
        "outcome_text": outcome_text,
        "key_url": filter_url({"key_id": row.key_id}) if row.key_id is not None else "",
        "client": f"{row.client_name} {row.client_version}".strip() or "unknown client",
        "model_url": filter_url({"model_requested": row.model_requested}),
        "answered_by": " · ".join(filter(None, (row.upstream, row.model_upstream)))
        or ("…" if is_open else "rejected"),
        "tools": ", ".join(tools),
        "error": row.error_start[:ERROR_CHARS] or row.error_type,  # type: ignore[attr-defined]  # an annotation
        "tokens": " / ".join(short_count(count) for count in counts),
        "tokens_exact": "input {}, cached {}, output {}".format(
            *("unknown" if count is None else f"{count:,}" for count in counts)
        ),
        "cost": cost_of(row),
        "is_open": is_open,
        "first": duration(row.ttft_ms),
        "total": duration(row.total_ms),
        "session_short": shorter_id(row.session_id),
        "session_url": session_url(row.session_id) if row.session_id else "",
        "preview": row.preview if may_read else "",
        "prompt": row.prompt if may_read and row.prompt != row.preview else "",
    }


def group_rows(rows: Sequence[dict[str, Any]], *, by_session: bool) -> list[dict[str, Any]]:
    """Return the rows in groups: one of all rows, or one for each session, the newest first.

    A request without a session is a group of its own. The title of a group has the user's first
    words on the page.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        exchange = row["exchange"]
        name = exchange.session_id or exchange.pk if by_session else ""
        groups.setdefault(name, []).append(row)
    return [
        {
            "rows": group,
            "first": group[0],
            "is_session": bool(group[0]["session_url"]),
            "title": next(filter(None, (r["prompt"] or r["preview"] for r in group[::-1])), ""),
        }
        for group in groups.values()
    ]
