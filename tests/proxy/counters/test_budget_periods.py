"""Budget periods start at midnight of their time zone, also on days of 23 or 25 hours."""

from datetime import datetime
from zoneinfo import ZoneInfo

from proxy.counters.budget_periods import window
from tests.for_each import for_each

CASES = [
    ("day", "UTC", "2026-11-21T12:00", "2026-11-21", "2026-11-22"),
    ("day", "Asia/Kathmandu", "2026-11-21T00:00", "2026-11-21", "2026-11-22"),
    ("week", "Europe/Berlin", "2026-11-22T23:59", "2026-11-16", "2026-11-23"),
    ("week", "UTC", "2026-11-23T00:00", "2026-11-23", "2026-11-30"),
    ("month", "America/New_York", "2026-12-31T23:59", "2026-12-01", "2027-01-01"),
    ("month", "UTC", "2028-02-29T10:00", "2028-02-01", "2028-03-01"),
]


@for_each(("period", "zone", "at", "start", "end"), CASES)
def test_a_period_begins_and_ends_at_midnight_of_its_zone(period, zone, at, start, end):
    time_zone = ZoneInfo(zone)
    timestamp = datetime.fromisoformat(at).replace(tzinfo=time_zone).timestamp()

    found = window(period, zone, timestamp)

    assert found.start == datetime.fromisoformat(start).replace(tzinfo=time_zone)
    assert found.end == datetime.fromisoformat(end).replace(tzinfo=time_zone)
    assert found.start.timestamp() <= timestamp < found.end.timestamp()


@for_each(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25)])
def test_a_day_with_a_clock_change_has_23_or_25_hours(day, hours):
    noon = datetime.fromisoformat(f"{day}T12:00").replace(tzinfo=ZoneInfo("Europe/Berlin"))

    found = window("day", "Europe/Berlin", noon.timestamp())

    assert found.end.timestamp() - found.start.timestamp() == hours * 3600
    assert window("day", "Europe/Berlin", found.end.timestamp()).start == found.end
