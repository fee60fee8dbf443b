"""When a budget's period begins and ends, in its own time zone."""

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo


class Window(NamedTuple):
    """From ``start`` up to, not including, ``end``; both in the budget's zone."""

    start: datetime
    end: datetime


_last: Final[dict[tuple[str, str], tuple[float, float, Window]]] = {}
"""The window asked for last, by period and zone: nearly every request falls into it."""


def window(period: str, zone: str, at: float) -> Window:
    """The day, week (from Monday) or month around ``at`` (Unix seconds).

    Raises KeyError for another period and ZoneInfoNotFoundError for a zone that does not exist.
    """
    known = _last.get((period, zone))
    if known is not None and known[0] <= at < known[1]:
        return known[2]
    here = datetime.fromtimestamp(at, UTC).astimezone(ZoneInfo(zone))
    midnight = here.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    made = PERIODS[period](midnight)
    _last[period, zone] = (made.start.timestamp(), made.end.timestamp(), made)
    return made


def _day(midnight: datetime) -> Window:
    return Window(midnight, midnight + timedelta(days=1))  # the wall clock's day: 23 to 25 hours


def _week(midnight: datetime) -> Window:
    monday = midnight - timedelta(days=midnight.weekday())
    return Window(monday, monday + timedelta(days=7))


def _month(midnight: datetime) -> Window:
    first = midnight.replace(day=1)
    return Window(first, (first + timedelta(days=32)).replace(day=1))


PERIODS: Final = {"day": _day, "week": _week, "month": _month}
