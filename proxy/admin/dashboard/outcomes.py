"""The page on outcomes: what coding agents did, and what it cost, by team, user, session or day."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.timezone import now
from django.views.decorators.http import require_GET

from proxy.admin.core.number_format import UNKNOWN, dollars, percent, short_count
from proxy.admin.core.permissions import require_reader
from proxy.admin.core.session_links import session_url, short_id
from proxy.money import nanousd_of
from proxy.permissions.row_permissions import reader_of_user

from . import queries
from .queries import load_zone, midnight
from .views import Card, change

MAX_ROWS: Final = 200
RANGES: Final = {
    "7d": "7 days",
    "30d": "30 days",
    "month": "This month",
    "last-month": "Last month",
}
GROUPS: Final = {
    "team": "Team",
    "user": "User",
    "session": "Session",
    "day": "Day",
    "repository": "Repository",
    "branch": "Branch",
    "key": "Key",
    "client": "Client",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DayQuery:
    """The parameters of a page on days. The range has whole UTC days; ``until`` is exclusive."""

    range: str
    by: str
    since: datetime
    until: datetime
    report: str = "outcomes"

    @property
    def first_day(self) -> date:
        return self.since.date()

    @property
    def last_day(self) -> date:
        return self.until.date() - timedelta(days=1)

    @property
    def before(self) -> datetime:
        """The start of the previous period: the month before, or as many days before."""
        if self.range.endswith("month"):
            return _month_start(self.since - timedelta(days=1))
        return self.since - (self.until - self.since)

    def url(self, **changes: str) -> str:
        return "?" + urlencode({"range": self.range, "by": self.by, **changes})

    @property
    def csv_url(self) -> str:
        last = f"{self.until:%Y-%m-%d}"
        by = "client,client_version" if self.by == "client_version" else self.by
        values = {"format": "csv", "group_by": by, "from": f"{self.since:%Y-%m-%d}"}
        return f"/api/v1/{self.report}/?{urlencode({**values, 'to': last})}"


def parse_query(
    request: HttpRequest, at: datetime, groups: Mapping[str, str], report: str
) -> DayQuery:
    """Parse the query string; an unknown value is replaced by its default: the first group."""
    name, by = request.GET.get("range", ""), request.GET.get("by", "")
    name = name if name in RANGES else "30d"
    until = _midnight(at.date() + timedelta(days=1))
    if name == "month":
        since = _month_start(at)
    elif name == "last-month":
        until = _month_start(at)
        since = _month_start(until - timedelta(days=1))
    else:
        since = until - timedelta(days=int(name.removesuffix("d")))
    return DayQuery(
        range=name,
        by=by if by in groups else next(iter(groups)),
        since=since,
        until=until,
        report=report,
    )


def _midnight(day: date) -> datetime:
    return midnight(day, load_zone("UTC"))


def _month_start(at: datetime) -> datetime:
    return _midnight(at.date().replace(day=1))


@require_GET
def outcomes_view(request: HttpRequest) -> HttpResponse:
    """Show the outcomes of a range of days: three database queries, and two for titles."""
    require_reader(request)
    params = parse_query(request, now(), GROUPS, "outcomes")
    reader = reader_of_user(request.user)
    found = queries.outcome_sums(reader, params.since, params.until, [params.by])
    order = "-sum_cost_nanousd" if params.by != "day" else "-start"
    rows = list(found.order_by(order, *found.query.order_by)[: MAX_ROWS + 1])
    (total,) = queries.outcome_sums(reader, params.since, params.until, ())
    (before,) = queries.outcome_sums(reader, params.before, params.since, ())
    totals = queries.outcome_row({}, total)
    context = {
        **admin.site.each_context(request),
        "title": "Outcomes",
        "params": params,
        "ranges": choices(params, "range", RANGES),
        "groups": choices(params, "by", GROUPS),
        "group_label": GROUPS[params.by],
        "cards": cards_of(totals, queries.outcome_row({}, before)),
        "compared": _compared(params),
        "rows": _rows(request, params.by, rows[:MAX_ROWS]),
        "more": len(rows) > MAX_ROWS,
        "unread": totals["requests"] - totals["requests_read"],
        "unknown_edits": totals["edits_without_lines"],
        "requests": totals["requests"],
        "own_only": not reader.may_report,
    }
    return TemplateResponse(request, "admin/proxy/dashboard/outcomes.html", context)


def choices(params: DayQuery, parameter: str, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    current = getattr(params, parameter)
    return [
        {"label": label, "url": params.url(**{parameter: name}), "current": name == current}
        for name, label in labels.items()
    ]


def _compared(params: DayQuery) -> str:
    last = params.since - timedelta(days=1)
    return f"Compared with {params.before:%d %b} to {last:%d %b %Y}."


def cards_of(total: Mapping[str, Any], before: Mapping[str, Any]) -> list[Card]:
    """Return the cards with the totals, and their changes since the previous period."""

    def card(label: str, name: str, value: str, detail: str = "", **tone: str) -> Card:
        return Card(
            label=label,
            value=value,
            url="",
            detail=detail,
            **change(before[name], total[name], **tone),
        )

    accepted, rejected = total["edits_accepted"], total["edits_rejected"]
    decided = None if accepted is None else accepted + rejected
    return [
        card("Commits", "commits", short_count(total["commits"]), _per_commit(total)),
        card("Pull requests", "pull_requests", short_count(total["pull_requests"])),
        card(
            "Lines added", "lines_added", short_count(total["lines_added"]),
            f"{short_count(total['lines_removed'])} removed",
        ),
        card(
            "Edits accepted", "edits_accepted", short_count(accepted),
            f"{percent(rejected, decided)} rejected" if decided else "",
        ),
        card("Files edited", "files_edited", short_count(total["files_edited"])),
        card(
            "Test runs", "test_runs", short_count(total["test_runs"]),
            f"{short_count(total['test_runs_passed'])} passed" if total["test_runs"] else "",
        ),
    ]  # fmt: skip


def _per_commit(row: Mapping[str, Any]) -> str:
    cost = row["cost_per_commit_usd"]
    return "" if cost is None else f"{_dollars(cost)} per commit"


def _dollars(amount: str | None) -> str:
    """Format a decimal string of dollars as on all other pages."""
    return UNKNOWN if amount is None else dollars(nanousd_of(Decimal(amount)))


def _rows(request: HttpRequest, by: str, found: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the rows; a session has the user's first words as its name, if they may be read."""
    titles: Mapping[str, str] = {}
    if by == "session":
        sessions = [(one["session_id"],) for one in found if one["session_id"]]
        titles = queries.session_titles(request.user, reader_of_user(request.user), sessions)
    return [_row(by, one, titles) for one in queries.outcome_rows((by,), found)]


def _row(by: str, row: Mapping[str, Any], titles: Mapping[str, str]) -> dict[str, Any]:
    value = row[by]
    name = "(none)" if value is None else short_id(value) if by == "session" else value
    title = titles.get(value or "", "") if by == "session" else ""
    url = session_url(value) if by == "session" and value else ""
    figures = (
        "edits_accepted", "files_edited", "lines_added", "commands_run", "test_runs", "commits",
        "pull_requests",
    )  # fmt: skip
    passed, failed = row["test_runs_passed"], row["test_runs_failed"]
    return {
        "name": title or name,
        "session": name if title else "",
        "title": value or "",
        "url": url,
        "sessions": short_count(row["sessions"]),
        "requests": short_count(row["requests"]),
        "cost": "no price" if row["cost_usd"] is None else _dollars(row["cost_usd"]),
        "details": {
            "edits": f"{row['edits_rejected']} rejected" if row["edits_rejected"] else "",
            "lines": f"{short_count(row['lines_removed'])} removed" if row["lines_removed"] else "",
            "tests": f"{passed} passed, {failed} failed" if passed or failed else "",
            "commits": _per_commit(row),
        },
        "is_partial": row["is_partial"] and row["requests_read"] > 0,
        **{figure: short_count(row[figure]) for figure in figures},
    }
