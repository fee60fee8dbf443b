"""Stretches of time and the buckets in them, in any IANA zone. Half-open, UTC inside."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from django.utils.dateparse import parse_date, parse_datetime

QUARTER: Final = timedelta(minutes=15)  # what the finest rollup knows
DAY: Final = timedelta(days=1)
BUCKETS: Final = ("15m", "1h", "1d", "1w", "1mo", "all")
MINUTES: Final = "1m"
"""Finer than the rollups are: for reports that look into the requests, and a day at most."""
WIDTHS: Final = {MINUTES: timedelta(minutes=1), "15m": QUARTER, "1h": timedelta(hours=1)}
FIRST_YEAR: Final = 1970
LAST_YEAR: Final = 9990
MOST_BUCKETS: Final = 3000
MOST_DAYS: Final = 3700


class BadSpan(ValueError):
    """The message names the parameter."""


def zone_named(name: str) -> ZoneInfo:
    """Raises BadSpan. Only names: a path is no zone."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise BadSpan(
            f"tz: {name!r} is no IANA time zone; expected such as 'Europe/Berlin'"
        ) from None


def moment(text: str, zone: ZoneInfo, name: str) -> datetime:
    """RFC 3339, or a date (its first moment in the zone), as UTC."""
    cleaned = text.strip().replace(" ", "+")  # a "+" of an offset that nobody percent-encoded
    try:
        day = parse_date(cleaned)
        found = midnight(day, zone) if day else parse_datetime(cleaned)
        if found is not None and found.tzinfo is None:
            found = found.replace(tzinfo=zone)
        found = found.astimezone(UTC) if found else None
    except (ValueError, OverflowError):
        found = None
    if found is None:
        raise BadSpan(f"{name}: {text[:60]!r} is neither a date nor an RFC 3339 time")
    if not FIRST_YEAR <= found.year <= LAST_YEAR:
        told = f"is not between the years {FIRST_YEAR} and {LAST_YEAR}"
        raise BadSpan(f"{name}: {text[:60]!r} {told}")
    return found


def midnight(day: date, zone: ZoneInfo) -> datetime:
    """The first moment of a day. Where a clock change skips it, the moment after the gap."""
    local = datetime.combine(day, time(), tzinfo=zone)
    return local.astimezone(UTC)


def floor_quarter(at: datetime) -> datetime:
    return at.replace(minute=at.minute // 15 * 15, second=0, microsecond=0)


def ceil_quarter(at: datetime) -> datetime:
    floor = floor_quarter(at)
    return floor if floor == at else floor + QUARTER


@dataclass(frozen=True, slots=True)
class Span:
    """Buckets from ``edges[0]`` to ``edges[-1]``, without a gap."""

    edges: Sequence[datetime]
    bucket: str
    zone: ZoneInfo

    @property
    def start(self) -> datetime:
        return self.edges[0]

    @property
    def end(self) -> datetime:
        return self.edges[-1]

    def index(self, at: datetime) -> int:
        return bisect_right(self.edges, at) - 1

    def local(self, at: datetime) -> str:
        """RFC 3339 with the zone's offset; UTC as Z."""
        return at.astimezone(self.zone).isoformat().replace("+00:00", "Z")


def span_of(start: datetime, end: datetime, bucket: str, zone: ZoneInfo) -> Span:
    """The buckets that touch [start, end), cut at both ends to quarter hours. Raises BadSpan."""
    start, end = floor_quarter(start), ceil_quarter(end)
    if end <= start:
        moments = (at.isoformat().replace("+00:00", "Z") for at in (end, start))
        raise BadSpan(f"to: must be later than from: {' is not after '.join(moments)}")
    if end - start > timedelta(days=MOST_DAYS):
        raise BadSpan(f"from, to: more than {MOST_DAYS} days")
    if bucket == MINUTES and end - start > DAY:
        raise BadSpan("bucket: 1m is for a day at most; take wider ones")
    inner: list[datetime] = []
    for edge in _edges(start, bucket, zone):
        if edge >= end:
            break
        if edge > start:
            inner.append(edge)
        if len(inner) > MOST_BUCKETS:
            raise BadSpan(f"bucket: more than {MOST_BUCKETS} buckets; take wider ones")
    return Span([start, *inner, end], bucket, zone)


def _edges(start: datetime, bucket: str, zone: ZoneInfo) -> Iterator[datetime]:
    """Where buckets begin, from some edge at or before ``start`` on."""
    if bucket == "all":
        return
    if width := WIDTHS.get(bucket):
        edge = start
        if bucket == "1h":  # full hours of the zone's clock, which may be half past in UTC
            edge -= timedelta(minutes=start.astimezone(zone).minute)
        while True:
            yield edge
            edge += width
    day = start.astimezone(zone).date()
    if bucket == "1w":
        day -= timedelta(days=day.weekday())
    if bucket == "1mo":
        day = day.replace(day=1)
    while True:
        yield midnight(day, zone)
        day = _next(day, bucket)


def _next(day: date, bucket: str) -> date:
    if bucket == "1mo":
        return (day + timedelta(days=32)).replace(day=1)
    return day + (timedelta(days=7) if bucket == "1w" else DAY)
