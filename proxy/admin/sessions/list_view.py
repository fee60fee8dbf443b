"""The list of the sessions that have requests in a range of days, with the totals of each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import admin
from django.db.models import Count, Max, Min, Q, QuerySet, Sum
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.timezone import now
from django.views.decorators.http import require_GET

from proxy.admin.core.csp_middleware import set_security_headers
from proxy.admin.core.number_format import UNKNOWN, cache_percent, dollars, duration, short_count
from proxy.admin.core.permissions import READ_TRANSCRIPT, require_reader
from proxy.admin.core.session_links import session_url, short_id
from proxy.admin.core.time_zone import midnight, viewer_zone
from proxy.admin.dashboard import queries
from proxy.admin.requests.exchange_admin import LAST_CHARACTER, MIN_SEARCH
from proxy.ledger.archive.reading import archived_months, restore_hint
from proxy.ledger.usage.session_totals import SESSION_TOTALS
from proxy.models import Exchange, State
from proxy.models.ledger_names import LedgerNames, key_ids, person_ids, team_ids
from proxy.permissions.readings import first_words
from proxy.permissions.row_permissions import (
    Reader,
    reader_of_user,
    visible_exchanges,
    visible_teams,
)

PER_PAGE: Final = 50
TITLE_FIELDS: Final = (
    "session_id", "preview", "prompt", "team", "key_name", "user", "client_name", "client_version",
)  # fmt: skip
"""Columns of the request that represents a session."""

ENDED: Final = Max(Coalesce("finished", "created"))
SORTS: Final[Mapping[str, tuple[str, Any]]] = {
    "newest": ("Newest", None),
    "cost": ("Most expensive", Sum("cost_nanousd", default=0)),
    "requests": ("Most requests", Count("pk")),
    "length": ("Longest", ENDED - Min("created")),
}
SPANS: Final[Mapping[str, str]] = {
    "today": "Today",
    "yesterday": "Yesterday",
    "7d": "7 days",
    "30d": "30 days",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceLink:
    """A link to the same list with one query parameter changed."""

    label: str
    url: str
    current: bool


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
            "span": self.span if not self.day else "",
            "day": self.day,
            "sort": self.sort if self.sort != "newest" else "",
            "team": self.team,
            "q": self.query,
            "page": "",
        } | changes
        return "?" + urlencode({name: value for name, value in values.items() if value})


def parse_query(request: HttpRequest, at: datetime) -> SessionListQuery:
    """Parse the query string; an invalid parameter is replaced by its default."""
    get = request.GET
    today = at.astimezone(viewer_zone()).date()
    day = _parse_day(get.get("day", ""))
    span = get.get("span", "") if get.get("span") in SPANS else "7d"
    first, last = {"yesterday": (1, 1), "today": (0, 0), "7d": (6, 0), "30d": (29, 0)}[span]
    since, until = today - timedelta(days=first), today - timedelta(days=last)
    if day is not None:
        since = until = day
    page = get.get("page", "")
    return SessionListQuery(
        span="" if day else span,
        day=day.isoformat() if day else "",
        since=midnight(since),
        until=midnight(until + timedelta(days=1)),
        sort=get["sort"] if get.get("sort") in SORTS else "newest",
        team=get.get("team", "")[:64].replace("\x00", ""),
        query=get.get("q", "")[:200].replace("\x00", "").strip(),
        page=int(page) if page.isascii() and page.isdigit() and len(page) < 5 else 0,
    )


def _parse_day(text: str) -> date | None:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return None
    return day if date(2000, 1, 1) < day < date(2200, 1, 1) else None


@require_GET
def list_view(request: HttpRequest) -> HttpResponse:
    """Show the sessions with requests in a range of days; a page takes five database queries."""
    require_reader(request)
    params = parse_query(request, now())
    reader = reader_of_user(request.user)
    rows = visible_exchanges(reader).filter(created__gte=params.since, created__lt=params.until)
    found = _page_ids(_filter_rows(rows, params), params)
    shown = _session_totals(rows, found[:PER_PAGE])
    context = {
        **admin.site.each_context(request),
        "title": "Sessions",
        "params": params,
        "sessions": _session_rows(
            shown, rows, reader, may_read=request.user.has_perm(READ_TRANSCRIPT)
        ),
        "spans": [
            ChoiceLink(label=label, url=params.url(span=name, day=""), current=name == params.span)
            for name, label in SPANS.items()
        ],
        "sorts": [
            ChoiceLink(label=label, url=params.url(sort=name), current=name == params.sort)
            for name, (label, _) in SORTS.items()
        ],
        "teams": _teams(reader),
        "archived_hint": restore_hint(archived_months(params.since, params.until)),
        "newer": params.url(page=str(params.page - 1) if params.page > 1 else "")
        if params.page
        else "",
        "older": params.url(page=str(params.page + 1)) if len(found) > PER_PAGE else "",
    }
    return set_security_headers(TemplateResponse(request, "admin/proxy/session/list.html", context))


def _teams(reader: Reader) -> list[str]:
    return list(visible_teams(reader).order_by("name").values_list("name", flat=True)[:200])


def _filter_rows(rows: QuerySet[Exchange], params: SessionListQuery) -> QuerySet[Exchange]:
    if params.team:
        rows = rows.filter(team__in=team_ids(params.team))
    return (
        rows.filter(_search_condition(params.query))
        if params.query
        else rows.exclude(session_id="")
    )


def _page_ids(rows: QuerySet[Exchange], params: SessionListQuery) -> list[str]:
    """Return the ids of the sessions of a page, in order, and one more if there is a next page.

    To sort by time, this reads the newest requests until the page is full. To sort by another
    column, the database aggregates that column, and no other, over all sessions.
    """
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


def _session_totals(rows: QuerySet[Exchange], ids: Sequence[str]) -> list[Any]:
    """Return the totals of these sessions, in the order of ``ids``."""
    found = (
        rows.filter(session_id__in=ids)
        .order_by()
        .values("session_id")
        .annotate(
            **SESSION_TOTALS,
            running=Count("pk", filter=Q(state=State.OPEN)),
            # The request that represents the session: its first request with tool calls, because
            # the very first one is often a side call, such as for a title.
            first_id=Coalesce(Min("pk", filter=Q(tool_calls__gt=0)), Min("pk")),
            ended=ENDED,
        )
    )
    by_id = {one["session_id"]: one for one in found}
    return [by_id[session] for session in ids if session in by_id]


def _search_condition(query: str) -> Q:
    """Match requests by user, key or model name, or by the beginning of the session id."""
    by_name = Q(user__in=person_ids(query)) | Q(key_id__in=key_ids(query))
    by_name |= Q(model_requested=query) | Q(model_upstream=query)
    by_prefix = Q(session_id__gte=query, session_id__lt=query + LAST_CHARACTER)
    return ~Q(session_id="") & (
        by_name | (by_prefix if len(query) >= MIN_SEARCH else Q(session_id=query))
    )


def _session_rows(
    page: Sequence[Any], rows: QuerySet[Exchange], reader: Reader, *, may_read: bool
) -> list[dict[str, Any]]:
    """Return the totals of each session with its models, caller and first message."""
    ids = [one["session_id"] for one in page]
    models: dict[str, set[str]] = {}
    seen = rows.filter(session_id__in=ids).order_by()
    for session, model in seen.values_list("session_id", "model_requested").distinct():
        models.setdefault(session, set()).add(model)
    firsts = {
        row.session_id: row
        for row in Exchange.objects.filter(pk__in=[one["first_id"] for one in page]).only(
            "session_id",
            "preview",
            "prompt",
            "team",
            "key_id",
            "key_name",
            "user",
            "client_name",
            "client_version",
        )
    }
    Exchange.load_names(list(firsts.values()), LedgerNames())
    return [
        _session_row(
            one,
            first := firsts[one["session_id"]],
            models[one["session_id"]],
            title=first_words(reader, first) if may_read else "",
        )
        for one in page
    ]


def _session_row(
    one: Mapping[str, Any], first: Exchange, models: Iterable[str], *, title: str
) -> dict[str, Any]:
    """Return one row; the title is the user's words, or empty if they may not be read."""
    session = one["session_id"]
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
        "started": one["started"],
        "last": one["last"],
        "length": duration((one["ended"] - one["started"]).total_seconds() * 1000),
        "input": short_count(queries.sum_known([uncached, one["read"]])),
        "cached": UNKNOWN if one["read"] is None else cache_percent(one["read"], uncached),
        "output": short_count(one["out"]),
        "cost": UNKNOWN if one["running"] and not one["cost"] else dollars(cost),
        "is_minimum": cost is not None and one["unpriced"] > 0,
    }
