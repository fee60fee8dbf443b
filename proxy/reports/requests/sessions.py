"""The reports on sessions (conversations): the list of sessions, and one with its requests."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import chain, islice
from operator import itemgetter
from typing import Any, ClassVar, Final

from django.db.models import Min, Q, QuerySet
from django.http import Http404, HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.ledger.archive.reading import iterate_both, read_both, within
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
from proxy.reports.core.keyset_list import decode_position, encode_position, time_and_pk
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
        rows, months = _rows_and_months(self.reader, query)
        limit = query["limit"]
        end = decode_position(query["page"]) if query["page"] else None
        page = list(islice(iterate_session_ids(rows, months, end, limit + 1), limit + 1))
        more = len(page) > limit
        shown = sessions_of(rows.filter(session_id__in=page[:limit]), months)
        last = shown[-1] if shown else None
        return Response(
            {
                "data": expand_rows(
                    request, rows_with_models(self.reader, months, shown), query.get("expand", ())
                ),
                "has_more": more,
                "next_page": encode_position(last["last"], last["session_id"])
                if more and last
                else None,
            }
        )


def export_sessions(reader: Reader, query: dict[str, Any]) -> RowsAndColumns:
    found, months = _rows_and_months(reader, query)
    ids = iterate_session_ids(found, months, None, SESSIONS_PER_QUERY)
    pages = iter(lambda: list(islice(ids, SESSIONS_PER_QUERY)), [])
    rows = (
        row
        for page in pages
        for row in rows_with_models(
            reader, months, sessions_of(found.filter(session_id__in=page), months)
        )
    )
    return rows, column_names(SessionRow())


def _rows_and_months(reader: Reader, query: dict[str, Any]) -> tuple[QuerySet[Exchange], Q]:
    """Return the requests of a query, and the condition for the archived months of its time."""
    time_range = query["time_range"]
    rows = filter_requests(visible_exchanges(reader), query)
    return rows, within(time_range.start, time_range.end)


def rows_with_models(reader: Reader, months: Q, page: list[Any]) -> list[Row]:
    """Return the sessions of a page as rows with their models, which one query reads."""
    models: dict[str, set[str]] = {}
    seen = visible_exchanges(reader).filter(session_id__in=[row["session_id"] for row in page])
    pairs = seen.order_by().values_list("session_id", "model_requested").distinct()
    for session, model in chain(*read_both(pairs, list, months)):
        models.setdefault(session, set()).add(model)
    return [session_row(row, sorted(models.get(row["session_id"], ()))) for row in page]


def iterate_session_ids(
    rows: QuerySet[Exchange], months: Q, after: tuple[datetime, str] | None, batch: int
) -> Iterator[str]:
    """Yield session ids, the most recently active first, beginning after the position ``after``.

    The position of a session is the (time, session id) of its last request, so a session with a
    request later than ``after`` was on an earlier page. This function reads requests backwards in
    time, and therefore no more of them than the page needs. One query checks ``batch`` sessions.
    """
    requests = rows.exclude(session_id="").order_by("-created", "session_id")
    if after is not None:
        requests = requests.filter(created__lte=after[0])
    pairs = requests.values_list("created", "session_id")
    newest_first = iterate_both(pairs, months, itemgetter(0), reverse=True)
    sessions = unique(name for _, name in newest_first)
    while ids := list(islice(sessions, batch)):
        yield from ids if after is None else _on_later_pages(rows, months, ids, after)


def unique(ids: Iterable[str]) -> Iterator[str]:
    """Yield each id once, in the order of its first occurrence."""
    seen: set[str] = set()
    for name in ids:
        if name not in seen:
            seen.add(name)
            yield name


def _on_later_pages(
    rows: QuerySet[Exchange], months: Q, ids: list[str], after: tuple[datetime, str]
) -> Iterator[str]:
    """Yield the session ids in ``ids`` whose position is after ``after``, so on a later page."""
    last, name = after
    later = rows.filter(session_id__in=ids).order_by()
    earlier = Q(created__gt=last) | Q(created=last, session_id__lte=name)
    found = later.filter(earlier).values_list("session_id", flat=True).distinct()
    on_earlier_pages = set(chain(*read_both(found, list, months)))
    return (one for one in ids if one not in on_earlier_pages)


def sessions_of(rows: QuerySet[Exchange], months: Q) -> list[dict[str, Any]]:
    """Return a row of sums for each session of these requests, the most recently active first.

    The requests of a session can be partly archived; their sums are then added.
    """
    rows = rows.exclude(session_id="").order_by()
    totals = rows.values("session_id").annotate(
        **SESSION_TOTALS,
        a_team=Min("team"),
        a_key=Min("key_name"),
        a_key_id=Min("key_id"),
        a_user=Min("user"),
    )
    sessions: dict[str, dict[str, Any]] = {}
    divided: list[str] = []
    for row in chain(*read_both(totals, list, months)):
        if (known := sessions.setdefault(row["session_id"], row)) is not row:
            divided.append(row["session_id"])
            known.update({name: add(known[name], row[name]) for name, add in ADDED.items()})
    if divided:  # one agent can have requests on both sides
        agents = rows.filter(session_id__in=divided).exclude(agent_id="")
        pairs = agents.values_list("session_id", "agent_id").distinct()
        counts = Counter(session for session, _ in set(chain(*read_both(pairs, list, months))))
        for session in divided:
            sessions[session]["agents"] = counts[session]
    by_id = sorted(sessions.values(), key=itemgetter("session_id"))
    return sorted(by_id, key=itemgetter("last"), reverse=True)


def _sum(one: int | None, other: int | None) -> int | None:
    """Add two sums; None, which means that no request has a count, adds nothing."""
    return one if other is None else other if one is None else one + other


def _least(one: int | None, other: int | None) -> int | None:
    """Return the smaller number; None, which means that no request has one, is not compared."""
    return min((number for number in (one, other) if number is not None), default=None)


ADDED: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    **dict.fromkeys(set(SESSION_TOTALS) - {"agents", "started", "last"}, _sum),
    **dict.fromkeys(("started", "a_team", "a_key", "a_user"), min),
    "a_key_id": _least,
    "last": max,
}
"""How the sums of the two parts of a session are added."""


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
        every_month = Q()
        found = sessions_of(rows, every_month)
        if not found:
            raise Http404(f"no session {session_id[:60]!r}")
        names = rows.order_by().values_list("model_requested", flat=True).distinct()
        models = sorted(set(chain(*read_both(names, list, every_month))))
        oldest = iterate_both(rows.order_by("created", "id"), every_month, time_and_pk)
        requests = islice(oldest, MAX_REQUESTS)
        (row,) = expand_rows(request, [session_row(found[0], models)], paths)
        return Response({**row, "data": [request_row(one) for one in requests]})
