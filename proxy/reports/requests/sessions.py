"""The reports on sessions (conversations): the list of sessions, and one with its requests."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import Any, ClassVar, Final

from django.db.models import F, Min, Q, QuerySet
from django.http import Http404, HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.ledger.maintenance.export import caller_references
from proxy.ledger.usage.session_totals import SESSION_TOTALS
from proxy.models import Exchange
from proxy.permissions.row_permissions import Reader, visible_exchanges
from proxy.reports.core.base_views import ReportView
from proxy.reports.core.expansion import (
    SESSION_PATHS,
    check_format,
    expand_parameter,
    expand_rows,
)
from proxy.reports.core.keyset_list import decode_position, encode_position
from proxy.reports.core.pagination import row_parameters
from proxy.reports.core.permissions import IsKeyOrStaff
from proxy.reports.core.query_parameters import (
    PageParameters,
    TimeRangeParameters,
    Values,
)
from proxy.reports.core.references import Reference
from proxy.reports.core.rendering import Row, RowsAndColumns, column_names
from proxy.reports.usage.rollup_queries import usd

from .filters import filter_requests
from .serializers import RequestRow, request_row

SESSIONS_PER_QUERY: Final = 500
"""An export reads the models of so many sessions with one query."""


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


class SessionPage(serializers.Serializer[Any]):
    data = SessionRow(many=True)  # type: ignore[assignment]  # DRF removes fields from the class
    has_more = serializers.BooleanField()
    next_page = serializers.CharField(allow_null=True)


class SessionParameters(TimeRangeParameters, PageParameters):
    """Parameters of the session list, which has the sessions with a request in the time range."""

    expand = expand_parameter(SESSION_PATHS)
    session_id = Values(help_text="Only these sessions.")


class SessionsView(ReportView):
    """List sessions, last active first, with requests, agents, models and cost."""

    parameters = SessionParameters
    permission_classes = (IsKeyOrStaff,)

    @extend_schema(responses=SessionPage)
    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        check_format(query)
        if query["format"] != "json":
            return self.rows_response(query, "sessions", *export_sessions(self.reader, query))
        rows = filter_requests(visible_exchanges(self.reader), query)
        limit = query["limit"]
        end = decode_position(query["page"]) if query["page"] else None
        page = list(islice(iterate_session_ids(rows, end, limit + 1), limit + 1))
        more = len(page) > limit
        shown = list(sessions_of(rows.filter(session_id__in=page[:limit])))
        last = shown[-1] if shown else None
        return Response(
            {
                "data": expand_rows(
                    request, rows_with_models(self.reader, shown), query.get("expand", ())
                ),
                "has_more": more,
                "next_page": encode_position(last["last"], last["session_id"])
                if more and last
                else None,
            }
        )


def export_sessions(reader: Reader, query: dict[str, Any]) -> RowsAndColumns:
    found = sessions_of(filter_requests(visible_exchanges(reader), query))
    iterator = found.iterator(chunk_size=SESSIONS_PER_QUERY)
    pages = iter(lambda: list(islice(iterator, SESSIONS_PER_QUERY)), [])
    rows = (row for page in pages for row in rows_with_models(reader, page))
    return rows, column_names(SessionRow())


def rows_with_models(reader: Reader, page: list[Any]) -> list[Row]:
    """Return the sessions of a page as rows with their models, which one query reads."""
    models: dict[str, set[str]] = {}
    seen = visible_exchanges(reader).filter(session_id__in=[row["session_id"] for row in page])
    for session, model in seen.order_by().values_list("session_id", "model_requested").distinct():
        models.setdefault(session, set()).add(model)
    return [session_row(row, sorted(models.get(row["session_id"], ()))) for row in page]


def iterate_session_ids(
    rows: QuerySet[Exchange], after: tuple[datetime, str] | None, batch: int
) -> Iterator[str]:
    """Yield session ids, the most recently active first, beginning after the position ``after``.

    The position of a session is the (time, session id) of its last request, so a session with a
    request later than ``after`` was on an earlier page. This function reads requests backwards in
    time, and therefore no more of them than the page needs. One query checks ``batch`` sessions.
    """
    requests = rows.exclude(session_id="").order_by("-created", "session_id")
    if after is not None:
        requests = requests.filter(created__lte=after[0])
    pairs = requests.values_list("created", "session_id").iterator(chunk_size=500)
    sessions = unique(name for _, name in pairs)
    while ids := list(islice(sessions, batch)):
        yield from ids if after is None else _on_later_pages(rows, ids, after)


def unique(ids: Iterable[str]) -> Iterator[str]:
    """Yield each id once, in the order of its first occurrence."""
    seen: set[str] = set()
    for name in ids:
        if name not in seen:
            seen.add(name)
            yield name


def _on_later_pages(
    rows: QuerySet[Exchange], ids: list[str], after: tuple[datetime, str]
) -> Iterator[str]:
    """Yield the session ids in ``ids`` whose position is after ``after``, so on a later page."""
    last, name = after
    later = rows.filter(session_id__in=ids).order_by()
    earlier = Q(created__gt=last) | Q(created=last, session_id__lte=name)
    on_earlier_pages = set(later.filter(earlier).values_list("session_id", flat=True).distinct())
    return (one for one in ids if one not in on_earlier_pages)


def sessions_of(rows: QuerySet[Exchange]) -> "QuerySet[Any, Any]":
    """Return a row of sums for each session of these requests, the most recently active first."""
    return (
        rows.exclude(session_id="")
        .order_by()
        .values("session_id")
        .annotate(
            **SESSION_TOTALS,
            a_team=Min("team"),
            a_key=Min("key_name"),
            a_key_id=Min("key_id"),
            a_user=Min("user"),
        )
        .order_by(F("last").desc(), "session_id")
    )


def session_row(row: dict[str, Any], models: list[str]) -> Row:
    return {
        "session_id": row["session_id"],
        "requests": row["n"],
        "errors": row["failed"],
        "agents": row["agents"],
        "models": models,
        **caller_references(row["a_team"], row["a_key_id"], row["a_key"], row["a_user"]),
        "started_at": row["started"].isoformat().replace("+00:00", "Z"),
        "last_at": row["last"].isoformat().replace("+00:00", "Z"),
        "input_tokens": row["fresh"],
        "cache_read_input_tokens": row["read"],
        "cache_write_5m_tokens": row["short"],
        "cache_write_1h_tokens": row["long"],
        "output_tokens": row["out"],
        "cost_usd": usd(row["cost"] if row["cost"] is not None or row["unpriced"] else 0),
        "unpriced_requests": row["unpriced"],
    }


class SessionView(ReportView):
    """Return one session and its requests, oldest first."""

    permission_classes = (IsKeyOrStaff,)
    parameters: ClassVar = row_parameters(SESSION_PATHS)

    @extend_schema(responses=SessionDetail)
    def get(self, request: Request, session_id: str) -> HttpResponseBase:
        paths = self.validated_query().get("expand", ())
        rows = visible_exchanges(self.reader).filter(session_id=session_id)
        found = list(sessions_of(rows))
        if not found:
            raise Http404(f"no session {session_id[:60]!r}")
        models = rows.order_by("model_requested").values_list("model_requested", flat=True)
        requests = rows.order_by("created", "id")[:1000]
        (row,) = expand_rows(request, [session_row(found[0], list(models.distinct()))], paths)
        return Response({**row, "data": [request_row(one) for one in requests]})
