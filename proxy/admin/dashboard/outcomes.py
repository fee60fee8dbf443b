"""The page on outcomes: what coding agents did, and what it cost, by team, user, session or day."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.utils.timezone import now
from django.views.decorators.http import require_GET

from proxy.admin.core.exchange_text import session_url, short_id
from proxy.admin.core.number_format import dollars, percent, short_count
from proxy.admin.core.pages import choice_links, page, require_reader
from proxy.money import nanousd_of

from . import queries
from .queries import load_zone, midnight, month_bounds
from .views import DAY, Card, change

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
FIGURES: Final = (
    "sessions", "requests", "edits_accepted", "files_edited", "lines_added", "commands_run",
    "test_runs", "commits", "pull_requests",
)  # fmt: skip


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
        return self.until.date() - DAY

    @property
    def before(self) -> datetime:
        """The start of the previous period: the month before, or as many days before."""
        if self.range.endswith("month"):
            return month_bounds("last", load_zone("UTC"), self.since)[0]
        return self.since - (self.until - self.since)

    def links(self, parameter: str, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the links of the choices of one parameter."""
        chosen = {"range": self.range, "by": self.by}
        return choice_links(
            labels, chosen[parameter], lambda name: f"?{urlencode({**chosen, parameter: name})}"
        )

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
    name, by, zone = request.GET.get("range", ""), request.GET.get("by", ""), load_zone("UTC")
    name = name if name in RANGES else "30d"
    until = midnight(at.date() + DAY, zone)
    if name.endswith("month"):
        month = "last" if name == "last-month" else "this"
        since, end = month_bounds(month, zone, at)
        until = min(until, end)
    else:
        since = until - timedelta(days=int(name.removesuffix("d")))
    return DayQuery(
        range=name,
        by=by if by in groups else next(iter(groups)),
        since=since,
        until=until,
        report=report,
    )


@require_GET
def outcomes_view(request: HttpRequest) -> HttpResponse:
    """Show the outcomes of a range of days: three database queries, and two for titles."""
    reader = require_reader(request)
    params = parse_query(request, now(), GROUPS, "outcomes")
    found = queries.outcome_sums(reader, params.since, params.until, [params.by])
    order = "-sum_cost_nanousd" if params.by != "day" else "-start"
    rows = list(found.order_by(order, *found.query.order_by)[: MAX_ROWS + 1])
    (total,) = queries.outcome_sums(reader, params.since, params.until, ())
    (before,) = queries.outcome_sums(reader, params.before, params.since, ())
    totals = queries.outcome_row({}, total)
    titles: Mapping[str, str] = {}  # a session has its user's first words as its name
    if params.by == "session":
        sessions = [(row["session_id"],) for row in rows[:MAX_ROWS] if row["session_id"]]
        titles = queries.session_titles(request.user, reader, sessions)
    return page(
        request,
        "dashboard/outcomes",
        "Outcomes",
        params=params,
        ranges=params.links("range", RANGES),
        groups=params.links("by", GROUPS),
        group_label=GROUPS[params.by],
        cards=cards_of(totals, queries.outcome_row({}, before)),
        compared=f"Compared with {params.before:%d %b} to {params.since - DAY:%d %b %Y}.",
        rows=[
            _row(params.by, row, titles)
            for row in queries.outcome_rows((params.by,), rows[:MAX_ROWS])
        ],
        more=len(rows) > MAX_ROWS,
        unread=totals["requests"] - totals["requests_read"],
        unknown_edits=totals["edits_without_lines"],
        requests=totals["requests"],
        own_only=not reader.may_report,
    )


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
    return dollars(None if amount is None else nanousd_of(Decimal(amount)))


def _row(by: str, row: Mapping[str, Any], titles: Mapping[str, str]) -> dict[str, Any]:
    value, is_session = row[by], by == "session"
    name = "(none)" if value is None else short_id(value) if is_session else value
    title = titles.get(value or "", "")
    passed, failed = row["test_runs_passed"], row["test_runs_failed"]
    return {
        "name": title or name,
        "session": name if title else "",
        "title": value or "",
        "url": session_url(value) if is_session and value else "",
        "cost": _dollars(row["cost_usd"]),
        "details": {
            "edits": f"{row['edits_rejected']} rejected" if row["edits_rejected"] else "",
            "lines": f"{short_count(row['lines_removed'])} removed" if row["lines_removed"] else "",
            "tests": f"{passed} passed, {failed} failed" if passed or failed else "",
            "commits": _per_commit(row),
        },
        "is_partial": row["is_partial"] and row["requests_read"] > 0,
        **{figure: short_count(row[figure]) for figure in FIGURES},
    }
