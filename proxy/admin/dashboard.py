"""The first page: what was spent, asked and answered in a stretch of time, drawn by the server.

Numbers come from the rollups; each of them leads to the requests behind it.
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

from proxy.visibility import may_open_windows, reader_of_user

from . import books
from .board import board_of
from .books import Books, Span
from .drawings import Link, charts_of
from .figures import UNKNOWN, dollars, duration, percent, plural, short_count
from .rankings import rankings_of

HOUR: Final = timedelta(hours=1)
RANGES: Final[Mapping[str, tuple[str, timedelta, str]]] = {  # -> label, length, bucket
    "24h": ("24 hours", timedelta(hours=24), "1h"),
    "7d": ("7 days", timedelta(days=7), "1h"),
    "30d": ("30 days", timedelta(days=30), "1d"),
}
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
class Asked:
    """What the form says. ``wrong``: why it cannot be so; the default range is shown then."""

    range: str
    zone: ZoneInfo
    span: Span
    start: str = ""
    end: str = ""
    wrong: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    label: str
    value: str
    url: str
    detail: str = ""
    detail_url: str = ""
    change: str = ""
    tone: str = ""
    """Of the change: good, bad or nothing."""


def context(request: HttpRequest, page: dict[str, Any]) -> dict[str, Any]:
    """What the page's template shows beside what every page of the admin has."""
    if not may_open_windows(request.user):
        return page | {"closed": True}
    asked = asked_of(request)
    reader = reader_of_user(request.user)
    found = books.read_books(reader, asked.span)
    link = links_of(asked.span)
    return page | {
        "asked": asked,
        "ranges": [(name, label) for name, (label, _, _) in RANGES.items()],
        "zones": ZONES if str(asked.zone) in ZONES else (*ZONES, str(asked.zone)),
        "own_only": not reader.may_report,
        "nothing": not found.now["requests"],
        "nothing_before": not found.before["requests"],
        "cards": cards_of(found, link),
        "charts": charts_of(found, link),
        "rankings": rankings_of(found, link),
        "board": board_of(request.user, reader, asked.zone, link),
        "as_of": found.as_of.astimezone(asked.zone) if found.as_of else None,
        "before_text": f"the {_length(asked.span)} before",
    }


def asked_of(request: HttpRequest) -> Asked:
    """The range and zone of the form, kept in the session for the next visit."""
    given = request.GET
    wrong = ""
    try:
        zone = books.zone_named(given.get("tz") or request.session.get("zone", "UTC"))
    except books.BadSpan as exc:
        zone, wrong = ZoneInfo("UTC"), str(exc)
    if request.session.get("zone", "UTC") != str(zone):
        request.session["zone"] = str(zone)
    start, end = given.get("from", "")[:32], given.get("to", "")[:32]
    if given.get("range") == "custom" or (start and not given.get("range")):
        try:
            span = _custom(start, end, zone)
            return Asked(range="custom", zone=zone, span=span, start=start, end=end, wrong=wrong)
        except books.BadSpan as exc:
            wrong = str(exc)
    name = given.get("range", "7d")
    name = name if name in RANGES else "7d"
    _, length, bucket = RANGES[name]
    last = now()
    first = last - length
    if bucket == "1d":  # whole days of the zone, today among them
        day = first.astimezone(zone).date() + timedelta(days=1)
        first = books.moment(day.isoformat(), zone, "from")
    span = books.span_of(first, last, bucket, zone)
    return Asked(range=name, zone=zone, span=span, start=start, end=end, wrong=wrong)


def _custom(start: str, end: str, zone: ZoneInfo) -> Span:
    """Days of the zone, the last one too. Raises BadSpan."""
    first = books.moment(start, zone, "from")
    last = books.moment(end, zone, "to") + timedelta(days=1) if end else now()
    last = min(last, now() + timedelta(days=1))
    length = last - first
    bucket = "1h" if length <= timedelta(days=8) else "1d" if length <= timedelta(days=92) else "1w"
    return books.span_of(first, last, bucket, zone)


def _length(span: Span) -> str:
    hours = round((span.end - span.start) / HOUR)
    if hours <= 48:
        return f"{hours} hours"
    return f"{round(hours / 24)} days"


def links_of(span: Span) -> Link:
    """Addresses of the request list, narrowed to this span or to a part of it."""
    base = reverse("admin:proxy_exchange_changelist")

    def link(start: datetime = span.start, end: datetime = span.end, **filters: Any) -> str:
        query = {"since": utc_text(start), "until": utc_text(end), "result": "closed", **filters}
        return f"{base}?{urlencode(query)}"

    return link


def utc_text(at: datetime) -> str:
    """A moment as the request list takes it: to the minute, in UTC."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M}"


def cards_of(found: Books, link: Link) -> list[Card]:
    now_, before = found.now, found.before
    hit, hit_before = books.cache_hit_rate(now_), books.cache_hit_rate(before)
    p50, p95 = found.first_byte_now
    _, p95_before = found.first_byte_before
    return [
        Card(
            label="Spend",
            value=dollars(books.cost_of(now_)),
            url=link(),
            **_lacking(found, link),
            **_change(books.cost_of(before), books.cost_of(now_)),
        ),
        Card(
            label="Tokens",
            value=short_count(books.tokens_of(now_)),
            url=link(),
            detail=f"{short_count(books.known(now_, 'output'))} of them output",
            **_change(books.tokens_of(before), books.tokens_of(now_)),
        ),
        Card(
            label="Requests",
            value=short_count(now_["requests"]),
            url=link(),
            detail=f"{short_count(now_['client_gone'])} left by the client"
            if now_["client_gone"]
            else "",
            detail_url=link(result="client_gone"),
            **_change(before["requests"], now_["requests"]),
        ),
        Card(
            label="Errors",
            value=short_count(now_["errors"]),
            url=link(result="failed"),
            detail=f"{percent(now_['errors'], now_['requests'])} of all requests",
            **_change(before["errors"], now_["errors"], more_is="bad"),
        ),
        Card(
            label="First byte, p95",
            value=duration(p95),
            url=link(),
            detail=f"p50 {duration(p50)}",
            **_change(p95_before, p95, more_is="bad"),
        ),
        Card(
            label="Cache-hit rate",
            value=UNKNOWN if hit is None else f"{100 * hit:.1f} %",
            url=link(),
            detail=f"{short_count(books.known(now_, 'cache_read'))} tokens read from caches",
            **_points(hit_before, hit),
        ),
    ]


def _lacking(found: Books, link: Link) -> dict[str, str]:
    """What the spend leaves out, and where that is."""
    if found.unpriced:
        words = f"{plural(found.unpriced, 'request')} without a price"
        return {"detail": words, "detail_url": link(cost="none")}
    ours = plural(found.now["unpriced"], "request")
    return {"detail": f"{ours} of the sandbox, without a price"} if found.now["unpriced"] else {}


def _change(before: float | None, now_: float | None, *, more_is: str = "") -> dict[str, str]:
    """In words, against the stretch before; nothing where there is nothing to compare with."""
    if not before or now_ is None:
        return {}
    part = round(100 * (now_ - before) / before)
    if part == 0:
        return {"change": "as before"}
    words = f"{abs(part):,} % {'more' if part > 0 else 'less'}" if abs(part) < 1000 else "far more"
    tone = {"bad": "bad" if part > 0 else "good"}.get(more_is, "")
    return {"change": words, "tone": tone}


def _points(before: float | None, now_: float | None) -> dict[str, str]:
    if before is None or now_ is None:
        return {}
    points = round(100 * (now_ - before), 1)
    if points == 0:
        return {"change": "as before"}
    words = f"{abs(points)} points {'higher' if points > 0 else 'lower'}"
    return {"change": words, "tone": "good" if points > 0 else "bad"}
