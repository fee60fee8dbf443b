"""The dashboard: costs, tokens, requests and errors of a time range, with charts as SVG.

The figures come from the usage rollups. Each figure links to the list of its requests.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django.http import HttpRequest
from django.urls import reverse
from django.utils.timezone import now

from proxy.admin.core.number_format import UNKNOWN, dollars, duration, percent, plural, short_count
from proxy.admin.core.time_zone import viewer_zone
from proxy.permissions.row_permissions import can_open_admin, reader_of_user

from . import queries
from .charts import Link, charts_of
from .queries import DashboardData, TimeRange
from .top_tables import rankings_of_groups
from .upstream_health import load_upstream_health

DAY: Final = timedelta(days=1)
BUCKETS: Final = (("1h", timedelta(days=8)), ("1d", timedelta(days=92)))
"""Bucket of a custom range, and the longest range that it has; a longer one has weeks."""
RANGES: Final[Mapping[str, tuple[str, timedelta, str]]] = {  # value -> (label, length, bucket)
    "24h": ("24 hours", timedelta(hours=24), "1h"),
    "7d": ("7 days", timedelta(days=7), "1h"),
    "30d": ("30 days", timedelta(days=30), "1d"),
    "month": ("This month", timedelta(days=31), "1d"),
    "last-month": ("Last month", timedelta(days=31), "1d"),
}
DOWNLOADED_MONTHS: Final = 4
ZONES: Final = (
    "UTC",
    "America/Los_Angeles",
    "America/Denver",
    "America/Chicago",
    "America/New_York",
    "America/Sao_Paulo",
    "Europe/London",
    "Europe/Berlin",
    "Europe/Paris",
    "Europe/Helsinki",
    "Africa/Johannesburg",
    "Asia/Dubai",
    "Asia/Kolkata",
    "Asia/Singapore",
    "Asia/Shanghai",
    "Asia/Tokyo",
    "Australia/Sydney",
    "Pacific/Auckland",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardQuery:
    """The parameters of the dashboard's form.

    ``error`` is empty, or the reason why the default range replaces an invalid range.
    """

    range: str
    zone: ZoneInfo
    time_range: TimeRange
    start: str = ""
    end: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    label: str
    value: str
    url: str
    detail: str = ""
    detail_url: str = ""
    change: str = ""
    tone: str = ""
    """Tone of ``change``: good, bad or empty."""


def context(request: HttpRequest, page: dict[str, Any]) -> dict[str, Any]:
    """Return the template context of the dashboard; the theme's ``DASHBOARD_CALLBACK``."""
    if not can_open_admin(request.user):
        return page | {"closed": True}
    params = parse_query(request)
    reader = reader_of_user(request.user)
    data = queries.load_dashboard(reader, params.time_range)
    link = request_list_links(params.time_range)
    titles = queries.session_titles(request.user, reader, data.groups["session"])
    hours = round((params.time_range.end - params.time_range.start) / timedelta(hours=1))
    length = f"{hours} hours" if hours <= 48 else f"{round(hours / 24)} days"
    return page | {
        **form_context(params),
        "own_only": not reader.may_report,
        "downloads": month_downloads(params.zone) if reader.may_report else [],
        "is_empty": not data.now["requests"],
        "is_empty_before": not data.before["requests"],
        "cards": cards_of(data, link),
        "charts": charts_of(data, link),
        "rankings": rankings_of_groups(data.groups, link, titles),
        "health": load_upstream_health(request.user, reader, params.zone, link),
        "as_of": data.as_of.astimezone(params.zone) if data.as_of else None,
        "before_text": f"the {length} before",
    }


def form_context(params: DashboardQuery) -> dict[str, Any]:
    """Return the template context of the form with the range and the time zone."""
    return {
        "params": params,
        "ranges": [(name, label) for name, (label, _, _) in RANGES.items()],
        "zones": ZONES if str(params.zone) in ZONES else (*ZONES, str(params.zone)),
    }


def parse_query(request: HttpRequest) -> DashboardQuery:
    """Parse the form's parameters; the middleware of ``time_zone`` remembers the zone."""
    get, at, error = request.GET, now(), ""
    try:
        zone = queries.load_zone(get.get("tz") or str(viewer_zone()))
    except queries.InvalidTimeRange as exc:
        zone, error = ZoneInfo("UTC"), str(exc)
    name = get.get("range", "7d")
    start, end = get.get("from", "")[:32], get.get("to", "")[:32]
    time_range = None
    if name == "custom" or (start and "range" not in get):  # both days are included
        try:
            first = queries.parse_instant(start, zone, "from")
            last = queries.parse_instant(end, zone, "to") + DAY if end else at
            last = min(last, at + DAY)
            bucket = next((name for name, most in BUCKETS if last - first <= most), "1w")
            time_range = queries.build_time_range(first, last, bucket, zone)
            name = "custom"
        except queries.InvalidTimeRange as exc:
            error = str(exc)
    if time_range is None:
        name = name if name in RANGES else "7d"
        _, length, bucket = RANGES[name]
        first, last = at - length, at
        if name.endswith("month"):
            month = "last" if name == "last-month" else "this"
            first, last = queries.month_bounds(month, zone, at)
            last = min(last, at)
        elif bucket == "1d":  # whole days in the chosen time zone, including today
            first = queries.midnight(first.astimezone(zone).date() + DAY, zone)
        time_range = queries.build_time_range(first, last, bucket, zone)
    return DashboardQuery(
        range=name, zone=zone, time_range=time_range, start=start, end=end, error=error
    )


def month_downloads(zone: ZoneInfo) -> list[tuple[str, str]]:
    """Return name and URL of the usage of each of the last months as CSV, the newest first."""
    first = now().astimezone(zone).date().replace(day=1)
    downloads = []
    for _ in range(DOWNLOADED_MONTHS):
        query = {
            "format": "csv", "month": f"{first:%Y-%m}", "tz": str(zone),
            "group_by": "team,user,model",
        }  # fmt: skip
        downloads.append((f"{first:%B %Y}", f"/api/v1/usage/?{urlencode(query)}"))
        first = (first - timedelta(days=1)).replace(day=1)
    return downloads


def request_list_links(time_range: TimeRange) -> Link:
    """Return a function that builds URLs of the request list, by default for this time range."""
    base = reverse("admin:proxy_exchange_changelist")

    def link(
        start: datetime = time_range.start, end: datetime = time_range.end, **filters: Any
    ) -> str:
        since, until = (f"{at.astimezone(UTC):%Y-%m-%dT%H:%MZ}" for at in (start, end))
        query = {"since": since, "until": until, "result": "closed", **filters}
        return f"{base}?{urlencode(query)}"

    return link


def cards_of(data: DashboardData, link: Link) -> list[Card]:
    now_, before = data.now, data.before
    hit, hit_before = queries.cache_hit_rate(now_), queries.cache_hit_rate(before)
    p50, p95 = data.first_byte_now
    _, p95_before = data.first_byte_before
    unpriced, unpriced_url = "", ""
    if data.unpriced:
        unpriced = f"{plural(data.unpriced, 'request')} without a price"
        unpriced_url = link(cost="none")
    elif now_["unpriced"]:
        unpriced = f"{plural(now_['unpriced'], 'request')} of the sandbox, without a price"
    gone, read = now_["client_gone"], queries.known_tokens(now_, "cache_read")
    points: dict[str, str] = {}
    if hit is not None and hit_before is not None:
        more = round(100 * (hit - hit_before), 1)
        points = (
            {
                "change": f"{abs(more)} points {'higher' if more > 0 else 'lower'}",
                "tone": "good" if more > 0 else "bad",
            }
            if more
            else {"change": "no change"}
        )
    return [
        Card(
            label="Cost",
            value=dollars(queries.cost_of(now_)),
            url=link(),
            detail=unpriced,
            detail_url=unpriced_url,
            **change(queries.cost_of(before), queries.cost_of(now_)),
        ),
        Card(
            label="Tokens",
            value=short_count(queries.tokens_of(now_)),
            url=link(),
            detail=f"{short_count(queries.known_tokens(now_, 'output'))} output",
            **change(queries.tokens_of(before), queries.tokens_of(now_)),
        ),
        Card(
            label="Requests",
            value=short_count(now_["requests"]),
            url=link(),
            detail=f"{short_count(gone)} cancelled by the client" if gone else "",
            detail_url=link(result="client_gone"),
            **change(before["requests"], now_["requests"]),
        ),
        Card(
            label="Errors",
            value=short_count(now_["errors"]),
            url=link(result="failed"),
            detail=f"{percent(now_['errors'], now_['requests'])} of all requests",
            **change(before["errors"], now_["errors"], more_is="bad"),
        ),
        Card(
            label="First byte, p95",
            value=duration(p95),
            url=link(),
            detail=f"p50 {duration(p50)}",
            **change(p95_before, p95, more_is="bad"),
        ),
        Card(
            label="Cache-hit rate",
            value=UNKNOWN if hit is None else f"{100 * hit:.1f} %",
            url=link(),
            detail=f"{short_count(read)} tokens from the cache",
            **points,
        ),
    ]


def change(before: float | None, now_: float | None, *, more_is: str = "") -> dict[str, str]:
    """Return the change from ``before`` to ``now_`` as card fields; empty if one is unknown."""
    if not before or now_ is None:
        return {}
    part = round(100 * (now_ - before) / before)
    if part == 0:
        return {"change": "no change"}
    sign = "more" if part > 0 else "less"
    text = f"{abs(part):,} % {sign}" if abs(part) < 1000 else "over 1,000 % more"
    tone = {"bad": "bad" if part > 0 else "good"}.get(more_is, "")
    return {"change": text, "tone": tone}
