"""Sums add up: any range, any zone, any grouping; and they follow when a row is amended."""

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.db.models import Q
from hypothesis import given
from hypothesis import strategies as st

from proxy.models import DaySummary, DayUsage, DayWhat, DayWho, Exchange, Price
from proxy.record import latency, rollups
from proxy.record.audit import verify_sums
from proxy.record.posting import Story, post
from proxy.record.pricing import CLASSES
from proxy.record.repricing import candidates, reprice
from proxy.reports.spans import span_of
from proxy.reports.sums import Sums, pieces, sketches, stretches, usage
from proxy.visibility import Reader

from .making import closing, opening

pytestmark = pytest.mark.django_db
FIRST = datetime(2026, 10, 24, 22, 7, tzinfo=UTC)  # the night in which Berlin's clocks go back
DAY = FIRST.replace(hour=0, minute=0)
ROWS = 120
EVERYTHING = Reader(everything=True)
ALL = span_of(FIRST, FIRST + timedelta(days=4), "all", ZoneInfo("UTC"))
GROUPINGS = [(), ("team",), ("team", "model"), ("key_id", "outcome"), ("context_window",)]
LOCAL = {  # a width of buckets -> what is alike in all local times of one
    "15m": lambda at: (at.date(), at.hour, at.minute // 15, at.utcoffset()),
    "1h": lambda at: (at.date(), at.hour, at.utcoffset()),
    "1d": lambda at: at.date(),
    "1w": lambda at: at.isocalendar()[:2],
    "1mo": lambda at: (at.year, at.month),
}
ZONES = ["UTC", "Europe/Berlin", "Asia/Kolkata", "Asia/Kathmandu", "America/St_Johns"]


def told(chance: random.Random, number: int) -> Story:
    """One exchange at a random moment of three days, by a random cast."""
    at = FIRST.timestamp() + chance.random() * 3 * 86400
    source = chance.choice(["reported", "estimated", "missing"])
    known = source != "missing"
    spent = {"input": chance.randrange(300_000), "output": chance.randrange(500)} if known else {}
    team, key = chance.choice([("platform", 1), ("platform", 2), ("search", 3)])
    model = chance.choice(["claude-opus", "claude-haiku"])
    return Story(
        opening(number, created=at, team=team, key_id=key, model_requested=model, body=None),
        [],
        closing(
            number,
            finished=at + 2,
            outcome=chance.choice(["completed", "client_gone"]),
            ttft_ms=chance.expovariate(1 / 900),
            usage=spent | {"source": source},
            answer=None,
        ),
    )


@pytest.fixture
def rows() -> list[Exchange]:
    chance = random.Random(4)  # noqa: S311 -- chance, not secrecy
    stories = [told(chance, number) for number in range(ROWS)]
    for at in range(0, ROWS, 40):
        post(stories[at : at + 70])
    return list(Exchange.objects.order_by("pk"))


def expected(rows: list[Exchange], since: datetime, until: datetime) -> Counter:
    total: Counter = Counter()
    for row in rows:
        if since <= row.created < until:
            total["requests"] += 1
            if row.input_tokens is not None:
                total[f"input_{row.input_source}"] += row.input_tokens
            total["input_missing"] += row.input_tokens is None
    return total


def total(sums: Iterable[Sums]) -> Counter:
    found: Counter = Counter()
    for one in sums:
        for name in ("requests", "input_reported", "input_estimated", "input_missing"):
            found[name] += one[name]
    return found


@pytest.mark.parametrize(
    ("since", "until"),
    [
        (FIRST, FIRST + timedelta(days=4)),
        (DAY, DAY + timedelta(days=3)),
        (FIRST + timedelta(minutes=3), FIRST + timedelta(hours=31, minutes=41, seconds=7)),
        (FIRST + timedelta(minutes=3), FIRST + timedelta(minutes=9)),
    ],
)
def test_groups_of_any_range_sum_to_its_rows(rows, since, until) -> None:
    span = span_of(since, until, "all", ZoneInfo("UTC"))

    found = {by: usage(EVERYTHING, span, by) for by in GROUPINGS}

    for by, table in found.items():
        assert total(table.values()) == expected(rows, span.start, span.end), by


@pytest.mark.parametrize("zone", ZONES)
def test_buckets_of_any_zone_hold_the_rows_of_that_local_time(rows, zone) -> None:
    for bucket, local in LOCAL.items():
        span = span_of(FIRST, FIRST + timedelta(days=4), bucket, ZoneInfo(zone))

        table = usage(EVERYTHING, span, ("team",))

        found: Counter = Counter()
        for (number, (team,)), sums in table.items():
            found[local(span.edges[number].astimezone(span.zone)), team] += sums["requests"]
        asked = Counter((local(r.created.astimezone(span.zone)), r.team) for r in rows)
        assert found == asked, bucket


def test_filters_hold_in_every_stretch(rows) -> None:
    span = span_of(FIRST, FIRST + timedelta(days=2), "all", ZoneInfo("UTC"))

    table = usage(EVERYTHING, span, (), Q(team="search"))

    of_search = [row for row in rows if row.team == "search"]
    assert total(table.values()) == expected(of_search, span.start, span.end)


@pytest.mark.parametrize(
    ("columns", "smallest"),
    [
        (["model_requested"], DayWhat),
        (["team", "key_id"], DayWho),
        (["team", "model_requested"], DaySummary),
        (["team", "outcome"], DayUsage),
    ],
)
def test_a_long_range_reads_the_smallest_table(columns, smallest) -> None:
    span = span_of(DAY, DAY + timedelta(days=30), "all", ZoneInfo("UTC"))

    assert [rows.model for rows in pieces(EVERYTHING, span, columns)] == [smallest]


@given(st.integers(0, 10**4), st.integers(1, 10**4), st.sampled_from(ZONES))
def test_stretches_cover_a_range_once(start: int, length: int, zone: str) -> None:
    since = DAY + start * timedelta(minutes=15)
    span = span_of(since, since + length * timedelta(minutes=15), "1w", ZoneInfo(zone))

    found = [(start, end) for _, start, end in stretches(span)]

    assert (found[0][0], found[-1][1]) == (span.start, span.end)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(found))


def kept() -> list:
    return [
        [list(line) for line in table.objects.order_by("pk").values_list()]
        for table in rollups.TABLES
    ]


def test_rebuilding_from_the_rows_gives_the_same_sums(rows) -> None:
    before = kept()

    seen = rollups.rebuild(FIRST, FIRST + timedelta(days=4))

    assert seen == len(rows)
    assert kept() == before


def test_repricing_moves_rows_and_sums_together(rows) -> None:
    (before,) = usage(EVERYTHING, ALL, ()).values()
    priced = [row for row in rows if row.input_tokens is not None]
    assert before["unpriced"] == len(priced)
    Price.objects.create(model="gpt-5.2", since="2026-01-01", input="1.25", output="10")

    dry = [
        one for some in reprice(candidates(None, None, every=False), dry_run=True) for one in some
    ]
    (unchanged,) = usage(EVERYTHING, ALL, ()).values()
    wet = [
        one for some in reprice(candidates(None, None, every=False), dry_run=False) for one in some
    ]

    (after,) = usage(EVERYTHING, ALL, ()).values()
    assert unchanged == before
    assert len(dry) == len(wet) == len(priced)
    assert after["unpriced"] == 0
    assert after["cost_nanousd"] == sum(
        r.input_tokens * 1250 + r.output_tokens * 10_000 for r in priced
    )
    estimated = [row for row in priced if row.input_source == "estimated"]
    assert after["cost_estimated_nanousd"] == sum(
        row.input_tokens * 1250 + row.output_tokens * 10_000 for row in estimated
    )
    kept_so_far = kept()
    rollups.rebuild(FIRST, FIRST + timedelta(days=4))
    assert list(usage(EVERYTHING, ALL, ()).values()) == [after]
    assert kept() == kept_so_far


def test_each_table_has_the_whole_and_the_parts_of_the_cost_are_the_cost(rows) -> None:
    Price.objects.create(model="gpt-5.2", since="2026-01-01", input="1.2345678", output="0.0000007")
    for _ in reprice(candidates(None, None, every=False), dry_run=False):
        pass

    findings = [
        finding
        for day in range(5)
        for finding in verify_sums(DAY + timedelta(days=day), DAY + timedelta(days=day + 1))
    ]

    assert findings == []
    for table in rollups.TABLES:
        for line in table.objects.all():
            parts = (getattr(line, f"cost_{name}_nanousd") for name in CLASSES)
            assert sum(parts) == line.cost_nanousd


def test_a_row_that_was_late_and_one_that_is_taken_out_move_every_table(rows) -> None:
    before = kept()
    late = [told(random.Random(9), ROWS + 1)]  # noqa: S311 -- chance, not secrecy

    post(late)
    row = Exchange.objects.get(pk=late[0].opening.id)
    after = kept()
    rollups.add([row], sign=-1)

    assert after != before
    assert {table: sums_of(table) for table in rollups.TABLES} == {
        table: expected(rows, FIRST, FIRST + timedelta(days=4))["requests"]
        for table in rollups.TABLES
    }


def sums_of(table) -> int:
    return sum(table.objects.values_list("requests", flat=True))


def test_percentiles_of_a_group_are_within_five_percent(rows) -> None:
    found = sketches(EVERYTHING, ALL, ("team",))

    assert set(found) == {("platform",), ("search",)}
    for (team,), sketch in found.items():
        exact = sorted(row.ttft_ms for row in rows if row.team == team)
        for fraction in (0.01, 0.5, 0.9, 0.95, 0.99, 1.0):
            value = latency.percentile(sketch["ttft_ms"], fraction)
            rank = math.ceil(fraction * len(exact))  # the first that so many are at or below
            assert value == pytest.approx(exact[rank - 1], rel=0.05)
        assert sum(sketch["ttft_ms"].values()) == len(exact)


@given(st.floats(min_value=0.01, max_value=10_000_000))
def test_a_bucket_is_off_by_at_most_five_percent(ms: float) -> None:
    value = latency.value_of(latency.bucket_of(ms))

    assert ms <= 1 or value == pytest.approx(ms, rel=0.0501)


def test_percentiles_of_nothing_are_unknown() -> None:
    assert latency.percentile({}, 0.5) is None
