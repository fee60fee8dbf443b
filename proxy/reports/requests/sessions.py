"""The reports on sessions (conversations): the list of sessions, and one with its requests."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from operator import itemgetter
from typing import Any, ClassVar, Final

from django.db.models import Min, Q, QuerySet
from django.http import Http404, HttpResponseBase
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from proxy.ledger.archive.reading import archived_months, archived_months_near, restore_hint
from proxy.ledger.database.access import QueryTimeout, with_query_timeout
from proxy.ledger.maintenance.export import caller_references
from proxy.ledger.usage.session_totals import SESSION_TOTALS
from proxy.models import CallerNames, Exchange
from proxy.models.ledger_names import LedgerNames, with_names
from proxy.money import usd
from proxy.permissions.row_permissions import Reader, visible_exchanges
from proxy.reports.core.base_views import ReportView, name_archived
from proxy.reports.core.exception_handler import QueryTooSlow
from proxy.reports.core.expansion import (
    SESSION_PATHS,
    check_format,
    expand_parameter,
    expand_rows,
)
from proxy.reports.core.pagination import TIMEOUT_S, row_parameters
from proxy.reports.core.permissions import IsKeyOrStaff
from proxy.reports.core.query_parameters import (
    Choice,
    PageParameters,
    TimeRangeParameters,
    Values,
)
from proxy.reports.core.references import Reference
from proxy.reports.core.rendering import (
    Row,
    RowsAndColumns,
    column_names,
    decode_cursor,
    encode_cursor,
    page_of,
    paged,
)
from proxy.reports.core.time_ranges import MAX_SUM_RANGE
from proxy.times import rfc3339

from .filters import filter_requests
from .serializers import RequestRow, request_row

SESSIONS_PER_QUERY: Final = 500
"""An export reads the sums of so many sessions with one query."""
MAX_REQUESTS: Final = 1000
"""Requests of one session that are returned with it."""


NEWEST: Final = "-last_at"
SUMS: Final[Mapping[str, str]] = {
    "last_at": "last",
    "started_at": "started",
    "requests": "n",
    "errors": "failed",
    "input_tokens": "fresh",
    "output_tokens": "out",
    "cost_usd": "cost",
}
"""Column that the list can be sorted by -> its name in SESSION_TOTALS."""
SORTS: Final = tuple(f"{sign}{name}" for name in SUMS for sign in ("-", ""))
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


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

    @staticmethod
    def export(reader: Reader, query: dict[str, Any]) -> RowsAndColumns:
        found = filter_requests(visible_exchanges(reader), query)
        sort = query["sort"]
        ids = session_ids(found, sort, "", SESSIONS_PER_QUERY)
        pages = iter(lambda: list(islice(ids, SESSIONS_PER_QUERY)), [])
        rows = (
            row
            for page in pages
            for row in rows_with_models(
                reader, sessions_of(found.filter(session_id__in=page), sort)
            )
        )
        return rows, column_names(SessionRow())

    def get(self, request: Request) -> HttpResponseBase:
        query = self.validated_query()
        check_format(query)
        if query["format"] != "json":
            return self.rows_response(query, "sessions", *self.export(self.reader, query))
        rows = filter_requests(visible_exchanges(self.reader), query)
        limit = query["limit"]
        sort = query["sort"]
        page = session_page(rows, sort, query["page"], limit + 1)
        more = len(page) > limit
        shown = sessions_of(rows.filter(session_id__in=page[:limit]), sort)
        data = expand_rows(request, rows_with_models(self.reader, shown), query.get("expand", ()))
        return Response(paged(data, encode_session(shown[-1], sort) if more and shown else None))


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
        requests = rows.order_by("created", "id")[:MAX_REQUESTS]
        (row,) = expand_rows(request, rows_with_models(self.reader, found), paths)
        data = [request_row(one) for one in with_names(requests)]
        response = Response({**row, "data": data})
        return name_archived(response, archived_months_near(found[0]["started"], found[0]["last"]))


# The order by last request, newest first, reads no more requests than a page needs. For every other
# order, the database first computes the sum of each session of the time range.


def session_ids(rows: QuerySet[Exchange], sort: str, page: str, batch: int) -> Iterator[str]:
    """Yield the ids of the sessions of these requests, sorted, after the cursor ``page``.

    ``batch``: sessions that one query reads.
    """
    if sort == NEWEST:
        at, name = decode_cursor(page, f"sessions {sort}") if page else (None, "")
        return iterate_newest(rows, (datetime.fromisoformat(at), name) if at else None, batch)
    after = decode_cursor(page, f"sessions {sort}") if page else None
    return iter(_ids_by_sum(rows, sort, after and (after[0], after[1])))


def session_page(rows: QuerySet[Exchange], sort: str, page: str, limit: int) -> list[str]:
    """Return the ids of one page; raise QueryTooSlow after ``TIMEOUT_S``.

    On PostgreSQL, the transaction of the timeout lets the cursor read as many requests as the page
    needs. Outside of a transaction, PostgreSQL would first store the whole result of the query.
    """
    try:
        with with_query_timeout(TIMEOUT_S):
            return list(islice(session_ids(rows, sort, page, limit), limit))
    except QueryTimeout:
        raise QueryTooSlow from None


def sort_sessions(sessions: Iterable[Mapping[str, Any]], sort: str) -> list[Any]:
    """Sort the rows of sums of some sessions."""
    if sort == NEWEST:
        by_id = sorted(sessions, key=itemgetter("session_id"))
        return sorted(by_id, key=itemgetter("last"), reverse=True)
    name = SUMS[sort.removeprefix("-")]
    return sorted(sessions, key=lambda row: _rank(sort, row[name], row["session_id"]))


def encode_session(last: Mapping[str, Any], sort: str) -> str:
    """Return the cursor of the page after a session, given as its row of sums."""
    name, session = SUMS[sort.removeprefix("-")], last["session_id"]
    at = last[name].isoformat() if sort == NEWEST else _rank(sort, last[name], session)[0]
    return encode_cursor([at, session], f"sessions {sort}")


def _ids_by_sum(
    rows: QuerySet[Exchange], sort: str, after: tuple[int, str] | None
) -> Sequence[str]:
    name = SUMS[sort.removeprefix("-")]
    sums = rows.exclude(session_id="").order_by().values("session_id")
    pairs = sums.annotate(**{name: SESSION_TOTALS[name]}).values_list("session_id", name)
    try:
        with with_query_timeout(TIMEOUT_S):
            values = dict(pairs)
    except QueryTimeout:
        raise QueryTooSlow from None
    ranks = (_rank(sort, value, session) for session, value in values.items())
    return [rank[1] for rank in sorted(rank for rank in ranks if after is None or rank > after)]


def _rank(sort: str, value: datetime | int | None, session: str) -> tuple[int, str]:
    """Return the key of the order; an unknown sum is less than every known sum."""
    if isinstance(value, datetime):
        value = (value - EPOCH) // timedelta(microseconds=1)
    number = -1 if value is None else value
    return -number if sort.startswith("-") else number, session


def iterate_newest(
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
    newest_first = requests.values_list("session_id", flat=True)
    sessions = unique(newest_first.iterator(chunk_size=1000))
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
    found = later.filter(earlier).values_list("session_id", flat=True).distinct()
    on_earlier_pages = set(found)
    return (one for one in ids if one not in on_earlier_pages)
