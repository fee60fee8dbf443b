"""The list of the sessions that have requests in a range of days, with the totals of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Count, Max, Min, Q, QuerySet, Sum
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.utils.timezone import now
from django.views.decorators.http import require_GET

from proxy.admin.core.exchange_text import session_url, short_id
from proxy.admin.core.number_format import UNKNOWN, cache_percent, dollars, duration, short_count
from proxy.admin.core.pages import (
    READ_TRANSCRIPT,
    choice_links,
    page,
    query_string,
    require_reader,
    team_names,
    whole_number,
)
from proxy.admin.core.time_zone import midnight, parse_day, viewer_zone
from proxy.admin.dashboard import queries
from proxy.admin.requests.exchange_admin import session_condition
from proxy.ledger.archive.reading import archived_months, restore_hint
from proxy.ledger.usage.session_totals import SESSION_TOTALS
from proxy.models import Exchange, State
from proxy.models.ledger_names import key_ids, person_ids, team_ids, with_names
from proxy.permissions.readings import first_words
from proxy.permissions.row_permissions import Reader, visible_exchanges

PER_PAGE: Final = 50
TITLE_FIELDS: Final = (
    "session_id", "preview", "prompt", "team", "key_id", "key_name", "user", "client_name",
    "client_version",
)  # fmt: skip
"""Columns of the request that represents a session."""

ENDED: Final = Max(Coalesce("finished", "created"))
SORTS: Final[Mapping[str, tuple[str, Any]]] = {
    "newest": ("Newest", None),
    "cost": ("Most expensive", Sum("cost_nanousd", default=0)),
    "requests": ("Most requests", Count("pk")),
    "length": ("Longest", ENDED - Min("created")),
}
SPANS: Final[Mapping[str, tuple[str, int, int]]] = {
    "today": ("Today", 0, 0),
    "yesterday": ("Yesterday", 1, 1),
    "7d": ("7 days", 6, 0),
    "30d": ("30 days", 29, 0),
}
"""Value -> label, and how many days ago its first and its last day are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionListQuery:
    """The parameters of the session list. The range includes ``since`` but not ``until``."""

    span: str
    day: str
    since: datetime
    until: datetime
    sort: str
    team: str
    query: str
    page: int

    def url(self, **changes: Any) -> str:
        values = {
            "span": self.span,
            "day": self.day,
            "sort": self.sort if self.sort != "newest" else "",
            "team": self.team,
            "q": self.query,
        }
        return query_string(values | changes)


def parse_query(request: HttpRequest, at: datetime) -> SessionListQuery:
    """Parse the query string; an invalid parameter is replaced by its default."""
    get = request.GET
    day, today = parse_day(get.get("day", "")), at.astimezone(viewer_zone()).date()
    span = get["span"] if get.get("span") in SPANS else "7d"
    _, first, last = SPANS[span]
    return SessionListQuery(
        span="" if day else span,
        day=day.isoformat() if day else "",
        since=midnight(day or today - timedelta(days=first)),
        until=midnight((day or today - timedelta(days=last)) + timedelta(days=1)),
        sort=get["sort"] if get.get("sort") in SORTS else "newest",
        team=get.get("team", "")[:64].replace("\x00", ""),
        query=get.get("q", "")[:200].replace("\x00", "").strip(),
        page=whole_number(get.get("page", ""), 4) or 0,
    )


@require_GET
def list_view(request: HttpRequest) -> HttpResponse:
    """Show the sessions with requests in a range of days; a page takes five database queries."""
    reader, params = require_reader(request), parse_query(request, now())
    rows = visible_exchanges(reader).filter(created__gte=params.since, created__lt=params.until)
    ids = _page_ids(rows, params)
    may_read = request.user.has_perm(READ_TRANSCRIPT)
    spans = {name: label for name, (label, _, _) in SPANS.items()}
    sorts = {name: label for name, (label, _) in SORTS.items()}
    newer = params.url(page=params.page - 1 if params.page > 1 else "")
    return page(
        request,
        "session/list",
        "Sessions",
        params=params,
        sessions=_session_rows(rows, ids[:PER_PAGE], reader, may_read=may_read),
        spans=choice_links(spans, params.span, lambda name: params.url(span=name, day="")),
        sorts=choice_links(sorts, params.sort, lambda name: params.url(sort=name)),
        teams=team_names(reader),
        archived_hint=restore_hint(archived_months(params.since, params.until)),
        newer=newer if params.page else "",
        older=params.url(page=params.page + 1) if len(ids) > PER_PAGE else "",
    )


def _page_ids(rows: QuerySet[Exchange], params: SessionListQuery) -> list[str]:
    """Return the ids of the sessions of a page, in order, and one more if there is a next page.

    To sort by time, this reads the newest requests until the page is full. To sort by another
    column, the database aggregates that column, and no other, over all sessions.
    """
    rows = rows.exclude(session_id="")
    if params.team:
        rows = rows.filter(team__in=team_ids(params.team))
    if query := params.query:
        by_name = Q(user__in=person_ids(query)) | Q(key_id__in=key_ids(query))
        by_name |= Q(model_requested=query) | Q(model_upstream=query)
        rows = rows.filter(by_name | session_condition(query))
    first, end = params.page * PER_PAGE, (params.page + 1) * PER_PAGE + 1
    if params.sort == "newest":
        seen: dict[str, None] = {}
        newest = rows.order_by("-created", "-pk").values_list("session_id", flat=True)
        for session in newest.iterator(chunk_size=1000):
            seen[session] = None
            if len(seen) >= end:
                break
        return list(seen)[first:]
    by = SORTS[params.sort][1]
    sums = rows.order_by().values("session_id").annotate(by=by, last=Max("created"))
    ordered = sums.order_by("-by", "-last", "session_id")
    return list(ordered.values_list("session_id", flat=True)[first:end])


def _session_rows(
    rows: QuerySet[Exchange], ids: Sequence[str], reader: Reader, *, may_read: bool
) -> list[dict[str, Any]]:
    """Return the totals of these sessions, with their models, caller and first message."""
    of_page = rows.filter(session_id__in=ids).order_by()
    totals = of_page.values("session_id").annotate(
        **SESSION_TOTALS,
        running=Count("pk", filter=Q(state=State.OPEN)),
        first_id=queries.FIRST_REQUEST,
        ended=ENDED,
    )
    by_id = {one["session_id"]: one for one in totals}
    models: dict[str, set[str]] = {}
    for session, model in of_page.values_list("session_id", "model_requested").distinct():
        models.setdefault(session, set()).add(model)
    found = Exchange.objects.filter(pk__in=[one["first_id"] for one in by_id.values()])
    firsts = {row.session_id: row for row in with_names(found.only(*TITLE_FIELDS))}
    return [
        _session_row(
            by_id[session],
            first := firsts[session],
            models[session],
            title=first_words(reader, first) if may_read else "",
        )
        for session in ids
        if session in by_id
    ]


def _session_row(
    one: Mapping[str, Any], first: Exchange, models: set[str], *, title: str
) -> dict[str, Any]:
    """Return one row; the title is the user's words, or empty if they may not be read."""
    session, read = one["session_id"], one["read"]
    uncached = queries.sum_known([one["fresh"], one["short"], one["long"]])
    cost = one["cost"] if one["cost"] is not None or one["unpriced"] else 0
    return {
        "id": session,
        "short": short_id(session),
        "url": session_url(session),
        "title": title,
        "caller": f"{first.names.team} / {first.names.key}",
        "user": first.names.user,
        "client": f"{first.client_name} {first.client_version}".strip(),
        "models": sorted(models),
        "requests": one["n"],
        "agents": one["agents"],
        "failed": one["failed"],
        "running": one["running"],
        "last": one["last"],
        "length": duration((one["ended"] - one["started"]).total_seconds() * 1000),
        "input": short_count(queries.sum_known([uncached, read])),
        "cached": UNKNOWN if read is None else cache_percent(read, uncached),
        "output": short_count(one["out"]),
        "cost": UNKNOWN if one["running"] and not one["cost"] else dollars(cost),
        "is_minimum": cost is not None and one["unpriced"] > 0,
    }
