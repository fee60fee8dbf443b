"""The order of the list of sessions: the time of the last request, or one of the sums of a session.

The order by last request, newest first, reads no more requests than a page needs. For every other
order, the database first computes the sum of each session of the time range.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from django.db.models import Q, QuerySet

from proxy.ledger.database.query_timeout import QueryTimeout, with_query_timeout
from proxy.ledger.usage.session_totals import SESSION_TOTALS
from proxy.models import Exchange
from proxy.reports.core.exception_handler import QueryTooSlow
from proxy.reports.core.pagination import TIMEOUT_S
from proxy.reports.core.rendering import decode_cursor, encode_cursor

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
