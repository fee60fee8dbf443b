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
from .top_tables import rankings_of
from .upstream_health import load_upstream_health

HOUR: Final = timedelta(hours=1)
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
    return page | {
        **form_context(params),
        "own_only": not reader.may_report,
        "downloads": month_downloads(params.zone) if reader.may_report else [],
        "is_empty": not data.now["requests"],
        "is_empty_before": not data.before["requests"],
        "cards": cards_of(data, link),
        "charts": charts_of(data, link),
        "rankings": rankings_of(
            data, link, queries.session_titles(request.user, reader, data.sessions)
        ),
        "health": load_upstream_health(request.user, reader, params.zone, link),
        "as_of": data.as_of.astimezone(params.zone) if data.as_of else None,
        "before_text": f"the {_length(params.time_range)} before",
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
    get = request.GET
    error = ""
    try:
        zone = queries.load_zone(get.get("tz") or str(viewer_zone()))
    except queries.InvalidTimeRange as exc:
        zone, error = ZoneInfo("UTC"), str(exc)
    start, end = get.get("from", "")[:32], get.get("to", "")[:32]
    if get.get("range") == "custom" or (start and not get.get("range")):
        try:
            time_range = _custom(start, end, zone)
            return DashboardQuery(
                range="custom", zone=zone, time_range=time_range, start=start, end=end, error=error
            )
        except queries.InvalidTimeRange as exc:
            error = str(exc)
    name = get.get("range", "7d")
    name = name if name in RANGES else "7d"
    _, length, bucket = RANGES[name]
    last = now()
    first = last - length
    if name.endswith("month"):
        first, last = _month(last, zone, is_last=name == "last-month")
    elif bucket == "1d":  # whole days in the chosen time zone, including today
        day = first.astimezone(zone).date() + timedelta(days=1)
        first = queries.midnight(day, zone)
    time_range = queries.build_time_range(first, last, bucket, zone)
    return DashboardQuery(
        range=name, zone=zone, time_range=time_range, start=start, end=end, error=error
    )


def _month(at: datetime, zone: ZoneInfo, *, is_last: bool) -> tuple[datetime, datetime]:
    """Return the range of the month of ``at`` in the time zone, until now, or the month before."""
    first = at.astimezone(zone).date().replace(day=1)
    if not is_last:
        return queries.midnight(first, zone), at
    before = (first - timedelta(days=1)).replace(day=1)
    return queries.midnight(before, zone), queries.midnight(first, zone)


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


def _custom(start: str, end: str, zone: ZoneInfo) -> TimeRange:
    """Return the days from ``start`` to ``end``, both included. Raises InvalidTimeRange."""
    first = queries.parse_instant(start, zone, "from")
    last = queries.parse_instant(end, zone, "to") + timedelta(days=1) if end else now()
    last = min(last, now() + timedelta(days=1))
    length = last - first
    bucket = "1h" if length <= timedelta(days=8) else "1d" if length <= timedelta(days=92) else "1w"
    return queries.build_time_range(first, last, bucket, zone)


def _length(time_range: TimeRange) -> str:
    hours = round((time_range.end - time_range.start) / HOUR)
    if hours <= 48:
        return f"{hours} hours"
    return f"{round(hours / 24)} days"


def request_list_links(time_range: TimeRange) -> Link:
    """Return a function that builds URLs of the request list, by default for this time range."""
    base = reverse("admin:proxy_exchange_changelist")

    def link(
        start: datetime = time_range.start, end: datetime = time_range.end, **filters: Any
    ) -> str:
        query = {"since": utc_text(start), "until": utc_text(end), "result": "closed", **filters}
        return f"{base}?{urlencode(query)}"

    return link


def utc_text(at: datetime) -> str:
    """Format an instant for a parameter of the request list: to the minute, in UTC."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%MZ}"


def cards_of(data: DashboardData, link: Link) -> list[Card]:
    now_, before = data.now, data.before
    hit, hit_before = queries.cache_hit_rate(now_), queries.cache_hit_rate(before)
    p50, p95 = data.first_byte_now
    _, p95_before = data.first_byte_before
    return [
        Card(
            label="Cost",
            value=dollars(queries.cost_of(now_)),
            url=link(),
            **_unpriced_detail(data, link),
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
            detail=f"{short_count(now_['client_gone'])} cancelled by the client"
            if now_["client_gone"]
            else "",
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
            detail=f"{short_count(queries.known_tokens(now_, 'cache_read'))} tokens from the cache",
            **_points(hit_before, hit),
        ),
    ]


def _unpriced_detail(data: DashboardData, link: Link) -> dict[str, str]:
    """Return the number of requests without a price as the detail of the card "Cost"."""
    if data.unpriced:
        text = f"{plural(data.unpriced, 'request')} without a price"
        return {"detail": text, "detail_url": link(cost="none")}
    count = plural(data.now["unpriced"], "request")
    return {"detail": f"{count} of the sandbox, without a price"} if data.now["unpriced"] else {}


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


def _points(before: float | None, now_: float | None) -> dict[str, str]:
    if before is None or now_ is None:
        return {}
    points = round(100 * (now_ - before), 1)
    if points == 0:
        return {"change": "no change"}
    text = f"{abs(points)} points {'higher' if points > 0 else 'lower'}"
    return {"change": text, "tone": "good" if points > 0 else "bad"}
