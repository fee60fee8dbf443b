"""Time ranges and their buckets in any IANA time zone.

Ranges and buckets include their start but not their end. All instants are in UTC.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from django.utils.dateparse import parse_date, parse_datetime

from proxy.times import rfc3339

QUARTER: Final = timedelta(minutes=15)  # the smallest bucket of the rollup tables
DAY: Final = timedelta(days=1)
BUCKETS: Final = ("15m", "1h", "1d", "1w", "1mo", "all")
MINUTES: Final = "1m"
"""The bucket of one minute, for ranges of at most one day. The buckets of the rollup tables are
larger, so only reports that read single requests support it."""
WIDTHS: Final = {MINUTES: timedelta(minutes=1), "15m": QUARTER, "1h": timedelta(hours=1)}
FIRST_YEAR: Final = 1970
LAST_YEAR: Final = 9990
MAX_BUCKETS: Final = 3000
MAX_DAYS: Final = 3700
MAX_SUM_RANGE: Final = timedelta(days=31)
"""Maximum time range of sums by session or tool, which read single requests."""


class InvalidTimeRange(ValueError):
    """A time range is invalid. The message starts with the name of the invalid parameter."""


def load_zone(name: str) -> ZoneInfo:
    """Return the IANA time zone of this name. Raise InvalidTimeRange for any other text."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise InvalidTimeRange(
            f"tz: {name!r} is not an IANA time zone; expected a name such as 'Europe/Berlin'"
        ) from None


def parse_instant(text: str, zone: ZoneInfo, name: str) -> datetime:
    """Parse an RFC 3339 time, or a date (the start of that day in ``zone``), to UTC.

    Raise InvalidTimeRange; its message has ``name``, the name of the parameter.
    """
    cleaned = text.strip().replace(" ", "+")  # an offset's "+" that was not percent-encoded
    try:
        day = parse_date(cleaned)
        instant = midnight(day, zone) if day else parse_datetime(cleaned)
        if instant is not None and instant.tzinfo is None:
            instant = instant.replace(tzinfo=zone)
        instant = instant.astimezone(UTC) if instant else None
    except (ValueError, OverflowError):
        instant = None
    if instant is None:
        raise InvalidTimeRange(f"{name}: {text[:60]!r} is neither a date nor an RFC 3339 time")
    if not FIRST_YEAR <= instant.year <= LAST_YEAR:
        problem = f"is not between the years {FIRST_YEAR} and {LAST_YEAR}"
        raise InvalidTimeRange(f"{name}: {text[:60]!r} {problem}")
    return instant


def midnight(day: date, zone: ZoneInfo) -> datetime:
    """Return the first instant of a day in the zone, in UTC.

    If a clock change skips midnight, this is the instant of the clock change.
    """
    local = datetime.combine(day, time(), tzinfo=zone)
    return local.astimezone(UTC)


def month_bounds(text: str, zone: ZoneInfo, at: datetime) -> tuple[datetime, datetime]:
    """Return the start and the end of a month of the zone, in UTC.

    ``text``: ``2026-10``, or ``this`` or ``last`` for the month of ``at`` or the one before. Raise
    InvalidTimeRange.
    """
    first = at.astimezone(zone).date().replace(day=1)
    if text == "last":
        first = (first - DAY).replace(day=1)
    elif text != "this":
        try:
            first = date.fromisoformat(f"{text}-01")
        except ValueError:
            first = date.min
        if not FIRST_YEAR <= first.year <= LAST_YEAR:
            problem = "is not a month such as 2026-10, this or last"
            raise InvalidTimeRange(f"month: {text[:60]!r} {problem}")
    return midnight(first, zone), midnight(period_of_day(first, "1mo")[1], zone)


def floor_quarter(at: datetime) -> datetime:
    """Round a time down to a quarter of an hour."""
    return at.replace(minute=at.minute // 15 * 15, second=0, microsecond=0)


def ceil_quarter(at: datetime) -> datetime:
    """Round a time up to a quarter of an hour."""
    floor = floor_quarter(at)
    return floor if floor == at else floor + QUARTER


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A time range of contiguous buckets: bucket ``i`` is from ``edges[i]`` to ``edges[i + 1]``."""

    edges: Sequence[datetime]
    bucket: str
    zone: ZoneInfo

    @property
    def start(self) -> datetime:
        return self.edges[0]

    @property
    def end(self) -> datetime:
        return self.edges[-1]

    @property
    def as_one_bucket(self) -> "TimeRange":
        return TimeRange([self.start, self.end], "all", self.zone)

    def index(self, at: datetime) -> int:
        return bisect_right(self.edges, at) - 1

    def local(self, at: datetime) -> str:
        """Format an instant as RFC 3339 with the offset of the range's time zone; UTC as Z."""
        return at.astimezone(self.zone).isoformat().replace("+00:00", "Z")


def build_time_range(start: datetime, end: datetime, bucket: str, zone: ZoneInfo) -> TimeRange:
    """Return the range from ``start`` to ``end``, split into buckets of the time zone.

    The range is extended to full quarter hours. Raise InvalidTimeRange.
    """
    start, end = floor_quarter(start), ceil_quarter(end)
    if end <= start:
        instants = map(rfc3339, (end, start))
        raise InvalidTimeRange(f"to: must be later than from: {' is not after '.join(instants)}")
    if end - start > timedelta(days=MAX_DAYS):
        raise InvalidTimeRange(f"from, to: more than {MAX_DAYS} days")
    if bucket == MINUTES and end - start > DAY:
        raise InvalidTimeRange("bucket: 1m is for a day at most; use wider buckets")
    inner: list[datetime] = []
    for edge in _edges(start, bucket, zone):
        if edge >= end:
            break
        if edge > start:
            inner.append(edge)
        if len(inner) > MAX_BUCKETS:
            raise InvalidTimeRange(f"bucket: more than {MAX_BUCKETS} buckets; use wider ones")
    return TimeRange([start, *inner, end], bucket, zone)


def _edges(start: datetime, bucket: str, zone: ZoneInfo) -> Iterator[datetime]:
    """Yield the starts of consecutive buckets without end; the first is at or before ``start``."""
    if bucket == "all":
        return
    if width := WIDTHS.get(bucket):
        edge = start
        if bucket == "1h":  # a full hour of the zone may be half past an hour in UTC
            edge -= timedelta(minutes=start.astimezone(zone).minute)
        while True:
            yield edge
            edge += width
    day = start.astimezone(zone).date()
    while True:
        day, following = period_of_day(day, bucket)
        yield midnight(day, zone)
        day = following


def period_of_day(day: date, bucket: str) -> tuple[date, date]:
    """Return the first day of the day, week or month of ``day``, and that of the next one."""
    if bucket == "1w":
        first = day - timedelta(days=day.weekday())
        return first, first + timedelta(days=7)
    if bucket == "1mo":
        first = day.replace(day=1)
        return first, (first + timedelta(days=32)).replace(day=1)
    return day, day + DAY
