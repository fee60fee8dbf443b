"""The list of sessions: those of a span of days, with what each amounts to."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import admin
from django.db.models import Count, Max, Min, Q, QuerySet, Sum
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.timezone import now
from django.views.decorators.http import require_GET

from proxy.models import Exchange, State, Team
from proxy.visibility import Reader, reader_of_user, visible_exchanges

from . import books
from .figures import UNKNOWN, dollars, duration, share, short_count
from .headers import harden
from .ledger import LAST_CHARACTER, MIN_SEARCH
from .live import only_readers, session_url

PER_PAGE: Final = 50

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
class Choice:
    """A link that changes one thing of what is asked."""

    label: str
    url: str
    current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the list is asked for. ``since`` and ``until`` are half open, in UTC."""

    span: str
    day: str
    since: datetime
    until: datetime
    sort: str
    team: str
    query: str
    page: int

    def url(self, **changes: Any) -> str:
        said = {
            "span": self.span if not self.day else "",
            "day": self.day,
            "sort": self.sort if self.sort != "newest" else "",
            "team": self.team,
            "q": self.query,
            "page": "",
        } | changes
        return "?" + urlencode({name: value for name, value in said.items() if value})


def asked_of(request: HttpRequest, at: datetime) -> Asked:
    """Whatever is nonsense is as if it were not said."""
    get = request.GET
    today = at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    day = _day(get.get("day", ""))
    span = get.get("span", "") if get.get("span") in SPANS else "7d"
    since, until = {
        "today": (today, today + timedelta(days=1)),
        "yesterday": (today - timedelta(days=1), today),
        "7d": (today - timedelta(days=6), today + timedelta(days=1)),
        "30d": (today - timedelta(days=29), today + timedelta(days=1)),
    }[span]
    if day is not None:
        since = datetime(day.year, day.month, day.day, tzinfo=UTC)
        until = since + timedelta(days=1)
    page = get.get("page", "")
    return Asked(
        span="" if day else span,
        day=day.isoformat() if day else "",
        since=since,
        until=until,
        sort=get["sort"] if get.get("sort") in SORTS else "newest",
        team=get.get("team", "")[:64].replace("\x00", ""),
        query=get.get("q", "")[:200].replace("\x00", "").strip(),
        page=int(page) if page.isascii() and page.isdigit() and len(page) < 5 else 0,
    )


def _day(text: str) -> date | None:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return None
    return day if date(2000, 1, 1) < day < date(2200, 1, 1) else None


@require_GET
def list_view(request: HttpRequest) -> HttpResponse:
    """Sessions of a span of days; a page of them is four queries."""
    only_readers(request)
    asked = asked_of(request, now())
    reader = reader_of_user(request.user)
    rows = visible_exchanges(reader).filter(created__gte=asked.since, created__lt=asked.until)
    found = _page_of(_chosen(rows, asked), asked)
    shown = _summed(rows, found[:PER_PAGE])
    context = {
        **admin.site.each_context(request),
        "title": "Sessions",
        "asked": asked,
        "sessions": _described(shown, rows),
        "spans": [
            Choice(label=label, url=asked.url(span=name, day=""), current=name == asked.span)
            for name, label in SPANS.items()
        ],
        "sorts": [
            Choice(label=label, url=asked.url(sort=name), current=name == asked.sort)
            for name, (label, _) in SORTS.items()
        ],
        "teams": _teams(reader),
        "newer": asked.url(page=str(asked.page - 1) if asked.page > 1 else "")
        if asked.page
        else "",
        "older": asked.url(page=str(asked.page + 1)) if len(found) > PER_PAGE else "",
    }
    return harden(TemplateResponse(request, "admin/proxy/session/list.html", context))


def _teams(reader: Reader) -> list[str]:
    teams = Team.objects.order_by("name").values_list("name", flat=True)[:200]
    return [name for name in teams if reader.everything or name in reader.teams]


def _chosen(rows: QuerySet[Exchange], asked: Asked) -> QuerySet[Exchange]:
    if asked.team:
        rows = rows.filter(team=asked.team)
    return rows.filter(_matches(asked.query)) if asked.query else rows.exclude(session_id="")


def _page_of(rows: QuerySet[Exchange], asked: Asked) -> list[str]:
    """The ids of a page and one more, in their order.

    The newest come from the newest requests, read until there are enough; any other order is that
    of sums, and only what they are ordered by is added up for all.
    """
    first, end = asked.page * PER_PAGE, (asked.page + 1) * PER_PAGE + 1
    if asked.sort == "newest":
        seen: dict[str, None] = {}
        newest = rows.order_by("-created", "-pk").values_list("session_id", flat=True)
        for session in newest.iterator(chunk_size=1000):
            seen[session] = None
            if len(seen) >= end:
                break
        return list(seen)[first:]
    by = SORTS[asked.sort][1]
    sums = rows.order_by().values("session_id").annotate(by=by, last=Max("created"))
    ordered = sums.order_by("-by", "-last", "session_id")
    return list(ordered.values_list("session_id", flat=True)[first:end])


def _summed(rows: QuerySet[Exchange], ids: Sequence[str]) -> list[Any]:
    """What each of these sessions amounts to, in their order."""
    found = (
        rows.filter(session_id__in=ids)
        .order_by()
        .values("session_id")
        .annotate(
            n=Count("pk"),
            failed=Count("pk", filter=~Q(outcome__in=("completed", "client_gone", ""))),
            running=Count("pk", filter=Q(state=State.OPEN)),
            agents=Count("agent_id", distinct=True, filter=~Q(agent_id="")),
            # Small calls such as the one for a title come first; the talk itself calls tools.
            first_id=Coalesce(Min("pk", filter=Q(tool_calls__gt=0)), Min("pk")),
            started=Min("created"),
            last=Max("created"),
            ended=ENDED,
            fresh=Sum("input_tokens"),
            read=Sum("cache_read_tokens"),
            short=Sum("cache_write_5m_tokens"),
            long=Sum("cache_write_1h_tokens"),
            out=Sum("output_tokens"),
            cost=Sum("cost_nanousd"),
            unpriced=Count(
                "pk",
                filter=Q(cost_nanousd=None, state=State.CLOSED)
                & (Q(input_tokens__isnull=False) | Q(output_tokens__isnull=False)),
            ),
        )
    )
    by_id = {one["session_id"]: one for one in found}
    return [by_id[session] for session in ids if session in by_id]


def _matches(query: str) -> Q:
    """A user, a key or a model by name, or a session by its beginning."""
    named = Q(user=query) | Q(key_name=query) | Q(model_requested=query) | Q(model_upstream=query)
    begins = Q(session_id__gte=query, session_id__lt=query + LAST_CHARACTER)
    return ~Q(session_id="") & (
        named | (begins if len(query) >= MIN_SEARCH else Q(session_id=query))
    )


def _described(page: Sequence[Any], rows: QuerySet[Exchange]) -> list[dict[str, Any]]:
    """The sessions with their models and first words."""
    ids = [one["session_id"] for one in page]
    models: dict[str, set[str]] = {}
    seen = rows.filter(session_id__in=ids).order_by()
    for session, asked_for in seen.values_list("session_id", "model_requested").distinct():
        models.setdefault(session, set()).add(asked_for)
    firsts = {
        row.session_id: row
        for row in Exchange.objects.filter(pk__in=[one["first_id"] for one in page]).only(
            "session_id", "preview", "team", "key_name", "user", "client_name", "client_version"
        )
    }
    return [_shown(one, firsts[one["session_id"]], models[one["session_id"]]) for one in page]


def _shown(one: Mapping[str, Any], first: Exchange, models: Iterable[str]) -> dict[str, Any]:
    session = one["session_id"]
    anew = books.total([one["fresh"], one["short"], one["long"]])
    cost = one["cost"] if one["cost"] is not None or one["unpriced"] else 0
    return {
        "id": session,
        "short": short_id(session),
        "url": session_url(session),
        "words": first.preview or "(no words)",
        "caller": f"{first.team} / {first.key_name}",
        "user": first.user,
        "client": f"{first.client_name} {first.client_version}".strip(),
        "models": sorted(models),
        "requests": one["n"],
        "agents": one["agents"],
        "failed": one["failed"],
        "running": one["running"],
        "started": one["started"],
        "last": one["last"],
        "length": duration((one["ended"] - one["started"]).total_seconds() * 1000),
        "input": short_count(books.total([anew, one["read"]])),
        "cached": UNKNOWN if one["read"] is None else share(one["read"], anew),
        "output": short_count(one["out"]),
        "cost": dollars(cost),
        "floor": cost is not None and one["unpriced"] > 0,
    }


def short_id(session: str) -> str:
    """As much of a session's id as tells it from others."""
    return session if len(session) <= 13 else f"{session[:12]}…"
