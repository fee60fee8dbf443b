"""Compute the start and end of a budget period in the budget's time zone."""

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo


class BudgetPeriod(NamedTuple):
    """The time from ``start`` up to, not including, ``end``; both in the budget's time zone."""

    start: datetime
    end: datetime


_last: Final[dict[tuple[str, str], tuple[float, float, BudgetPeriod]]] = {}
"""A cache: (kind of period, zone) -> (start, end, last result); it answers nearly every call."""


def window(period: str, zone: str, at: float) -> BudgetPeriod:
    """Return the day, week (from Monday) or month that contains ``at`` (Unix seconds).

    ``period`` is ``day``, ``week`` or ``month``; ``zone`` is an IANA time zone. Raises KeyError for
    an unknown period and ZoneInfoNotFoundError for an unknown zone.
    """
    known = _last.get((period, zone))
    if known is not None and known[0] <= at < known[1]:
        return known[2]
    local = datetime.fromtimestamp(at, UTC).astimezone(ZoneInfo(zone))
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    found = PERIODS[period](midnight)
    _last[period, zone] = (found.start.timestamp(), found.end.timestamp(), found)
    return found


def _day(midnight: datetime) -> BudgetPeriod:
    # The next local midnight: a day may have 23 to 25 hours.
    return BudgetPeriod(midnight, midnight + timedelta(days=1))


def _week(midnight: datetime) -> BudgetPeriod:
    monday = midnight - timedelta(days=midnight.weekday())
    return BudgetPeriod(monday, monday + timedelta(days=7))


def _month(midnight: datetime) -> BudgetPeriod:
    first = midnight.replace(day=1)
    return BudgetPeriod(first, (first + timedelta(days=32)).replace(day=1))


PERIODS: Final = {"day": _day, "week": _week, "month": _month}
