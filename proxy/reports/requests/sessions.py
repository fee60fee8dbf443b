"""The reports on sessions (conversations): the list of sessions, and one with its requests."""

from itertools import islice
from typing import Any, ClassVar, Final

from django.db.models import Min, QuerySet
from django.http import Http404, HttpResponseBase
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.ledger.archive.reading import archived_months, archived_months_near, restore_hint
from proxy.ledger.maintenance.export import caller_references
from proxy.ledger.usage.session_totals import SESSION_TOTALS
from proxy.models import CallerNames, Exchange
from proxy.models.ledger_names import LedgerNames, with_names
from proxy.money import usd
from proxy.permissions.row_permissions import Reader, visible_exchanges
from proxy.reports.core.base_views import ReportView, name_archived
from proxy.reports.core.expansion import (
    SESSION_PATHS,
    check_format,
    expand_parameter,
    expand_rows,
)
from proxy.reports.core.pagination import row_parameters
from proxy.reports.core.permissions import IsKeyOrStaff
from proxy.reports.core.query_parameters import (
    Choice,
    PageParameters,
    TimeRangeParameters,
    Values,
)
from proxy.reports.core.references import Reference
from proxy.reports.core.rendering import Row, RowsAndColumns, column_names, page_of, paged
from proxy.reports.core.time_ranges import MAX_SUM_RANGE
from proxy.times import rfc3339

from .filters import filter_requests
from .serializers import RequestRow, request_row
from .session_order import (
    NEWEST,
    SORTS,
    encode_session,
    session_ids,
    session_page,
    sort_sessions,
)

SESSIONS_PER_QUERY: Final = 500
"""An export reads the sums of so many sessions with one query."""
MAX_REQUESTS: Final = 1000
"""Requests of one session that are returned with it."""


class SessionRow(serializers.Serializer[Any]):
    session_id = serializers.CharField()
    requests = serializers.IntegerField()
    errors = serializers.IntegerField()  # type: ignore[assignment]  # DRF removes fields from the class
    agents = serializers.IntegerField(help_text="Number of sub-agents.")
    models = serializers.ListField(child=serializers.CharField())
    team = Reference("team")
    key = Reference("key", help_text="Of several keys, the first.")
    user = Reference("user", allow_null=True)
    started_at = serializers.CharField()
    last_at = serializers.CharField()
    input_tokens = serializers.IntegerField(allow_null=True)
    cache_read_input_tokens = serializers.IntegerField(allow_null=True)
    cache_write_5m_tokens = serializers.IntegerField(allow_null=True)
    cache_write_1h_tokens = serializers.IntegerField(allow_null=True)
    output_tokens = serializers.IntegerField(allow_null=True)
    cost_usd = serializers.CharField(allow_null=True)
    unpriced_requests = serializers.IntegerField()


class SessionDetail(SessionRow):
    data = RequestRow(many=True, help_text="The first 1000 requests.")  # type: ignore[assignment]  # DRF removes fields from the class


class SessionParameters(TimeRangeParameters, PageParameters):
    """Parameters of the session list, which has the sessions with a request in the time range."""

    expand = expand_parameter(SESSION_PATHS)
    session_id = Values(help_text="Only these sessions.")
    sort = Choice(
        choices=SORTS, default=NEWEST, help_text="The column to sort by; `-` for descending."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        time_range = attrs["time_range"]
        if attrs["sort"] != NEWEST and time_range.end - time_range.start > MAX_SUM_RANGE:
            days = MAX_SUM_RANGE.days
            message = f"{attrs['sort']} is for {days} days at most; {NEWEST} has no such limit"
            raise serializers.ValidationError({"sort": message})
        return attrs


class SessionsView(ReportView):
    """List sessions, last active first by default, with requests, agents, models and cost."""

    parameters, answer = SessionParameters, page_of(SessionRow)
    permission_classes = (IsKeyOrStaff,)

    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        check_format(query)
        if query["format"] != "json":
            return self.rows_response(query, "sessions", *export_sessions(self.reader, query))
        rows = filter_requests(visible_exchanges(self.reader), query)
        limit = query["limit"]
        sort = query["sort"]
        page = session_page(rows, sort, query["page"], limit + 1)
        more = len(page) > limit
        shown = sessions_of(rows.filter(session_id__in=page[:limit]), sort)
        rows = expand_rows(request, rows_with_models(self.reader, shown), query.get("expand", ()))
        return Response(paged(rows, encode_session(shown[-1], sort) if more and shown else None))


def export_sessions(reader: Reader, query: dict[str, Any]) -> RowsAndColumns:
    found = filter_requests(visible_exchanges(reader), query)
    sort = query["sort"]
    ids = session_ids(found, sort, "", SESSIONS_PER_QUERY)
    pages = iter(lambda: list(islice(ids, SESSIONS_PER_QUERY)), [])
    rows = (
        row
        for page in pages
        for row in rows_with_models(reader, sessions_of(found.filter(session_id__in=page), sort))
    )
    return rows, column_names(SessionRow())


def rows_with_models(reader: Reader, page: list[Any]) -> list[Row]:
    """Return the sessions of a page as rows with their models, which one query reads."""
    models: dict[str, set[str]] = {}
    seen = visible_exchanges(reader).filter(session_id__in=[row["session_id"] for row in page])
    pairs = seen.order_by().values_list("session_id", "model_requested").distinct()
    for session, model in pairs:
        models.setdefault(session, set()).add(model)
    names = LedgerNames().of_callers(
        (row["a_team"], row["a_key_id"], row["a_user"]) for row in page
    )
    return [
        session_row(row, sorted(models.get(row["session_id"], ())), one)
        for row, one in zip(page, names, strict=True)
    ]


def sessions_of(rows: QuerySet[Exchange], sort: str = NEWEST) -> list[dict[str, Any]]:
    """Return a row of sums for each session of these requests, sorted."""
    rows = rows.exclude(session_id="").order_by()
    totals = rows.values("session_id").annotate(
        **SESSION_TOTALS,
        a_team=Min("team"),
        a_key_id=Min("key_id"),
        a_user=Min("user"),
    )
    return sort_sessions(totals, sort)


def session_row(row: dict[str, Any], models: list[str], names: CallerNames) -> Row:
    return {
        "session_id": row["session_id"],
        "requests": row["n"],
        "errors": row["failed"],
        "agents": row["agents"],
        "models": models,
        **caller_references(names, row["a_key_id"]),
        "started_at": rfc3339(row["started"]),
        "last_at": rfc3339(row["last"]),
        "input_tokens": row["fresh"],
        "cache_read_input_tokens": row["read"],
        "cache_write_5m_tokens": row["short"],
        "cache_write_1h_tokens": row["long"],
        "output_tokens": row["out"],
        "cost_usd": usd(row["cost"] if row["cost"] is not None or row["unpriced"] else 0),
        "unpriced_requests": row["unpriced"],
    }


class SessionView(ReportView):
    """Return one session and its requests, oldest first.

    The header names the archived months in which it can have other requests.
    """

    permission_classes = (IsKeyOrStaff,)
    parameters: ClassVar = row_parameters(SESSION_PATHS)
    answer = SessionDetail

    def get(self, request: Request, session_id: str) -> HttpResponseBase:
        paths = self.validated_query().get("expand", ())
        rows = visible_exchanges(self.reader).filter(session_id=session_id)
        found = sessions_of(rows)
        if not found:
            hint = restore_hint(archived_months(None, None))
            raise Http404(f"no session {session_id[:60]!r}{hint and '; ' + hint}")
        requested = rows.order_by().values_list("model_requested", flat=True).distinct()
        callers = ((one["a_team"], one["a_key_id"], one["a_user"]) for one in found)
        [names] = LedgerNames().of_callers(callers)
        requests = rows.order_by("created", "id")[:MAX_REQUESTS]
        (row,) = expand_rows(request, [session_row(found[0], sorted(requested), names)], paths)
        data = [request_row(one) for one in with_names(requests)]
        response = Response({**row, "data": data})
        return name_archived(response, archived_months_near(found[0]["started"], found[0]["last"]))
