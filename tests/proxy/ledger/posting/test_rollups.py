"""Rollups equal the sums of the rows for all ranges, zones and groupings, also after amendments."""

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

from proxy.ledger.maintenance.amendments import candidates, reprice
from proxy.ledger.maintenance.verifier import verify_sums
from proxy.ledger.posting import rollups
from proxy.ledger.posting.ledger_writer import ExchangeRecords, write_to_database
from proxy.ledger.usage import latency_histogram
from proxy.ledger.usage.pricing import CLASSES
from proxy.models import (
    Exchange,
    Price,
    UsageByCallerDay,
    UsageByModelDay,
    UsageDay,
    UsageSummaryDay,
)
from proxy.permissions.row_permissions import Reader
from proxy.reports.core.time_ranges import build_time_range
from proxy.reports.usage.rollup_queries import (
    Counts,
    day_and_quarter_slices,
    rollup_slices,
    sketches,
    usage,
)
from tests.for_each import for_each
from tests.proxy.ledger.factories import closing, opening

pytestmark = pytest.mark.django_db
FIRST = datetime(2026, 10, 24, 22, 7, tzinfo=UTC)  # the night when summer time ends in Berlin
DAY = FIRST.replace(hour=0, minute=0)
ROWS = 120
EVERYTHING = Reader(everything=True)
ALL = build_time_range(FIRST, FIRST + timedelta(days=4), "all", ZoneInfo("UTC"))
GROUPINGS = [(), ("team",), ("team", "model"), ("key_id", "outcome"), ("context_window",)]
LOCAL = {  # bucket width -> value that is equal for all times in one bucket
    "15m": lambda at: (at.date(), at.hour, at.minute // 15, at.utcoffset()),
    "1h": lambda at: (at.date(), at.hour, at.utcoffset()),
    "1d": lambda at: at.date(),
    "1w": lambda at: at.isocalendar()[:2],
    "1mo": lambda at: (at.year, at.month),
}
ZONES = ["UTC", "Europe/Berlin", "Asia/Kolkata", "Asia/Kathmandu", "America/St_Johns"]


def random_records(generator: random.Random, number: int) -> ExchangeRecords:
    """Return the records of an exchange with random values, within three days."""
    at = FIRST.timestamp() + generator.random() * 3 * 86400
    source = generator.choice(["reported", "estimated", "missing"])
    known = source != "missing"
    spent = (
        {"input": generator.randrange(300_000), "output": generator.randrange(500)} if known else {}
    )
    team, key = generator.choice([("platform", 1), ("platform", 2), ("search", 3)])
    model = generator.choice(["claude-opus", "claude-haiku"])
    return ExchangeRecords(
        opening(number, created=at, team=team, key_id=key, model_requested=model, body=None),
        [],
        closing(
            number,
            finished=at + 2,
            outcome=generator.choice(["completed", "client_gone"]),
            ttft_ms=generator.expovariate(1 / 900),
            usage=spent | {"source": source},
            answer=None,
        ),
    )


@pytest.fixture
def rows() -> list[Exchange]:
    generator = random.Random(4)  # noqa: S311 -- test data
    batch = [random_records(generator, number) for number in range(ROWS)]
    for at in range(0, ROWS, 40):
        write_to_database(batch[at : at + 70])
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


def total(sums: Iterable[Counts]) -> Counter:
    found: Counter = Counter()
    for one in sums:
        for name in ("requests", "input_reported", "input_estimated", "input_missing"):
            found[name] += one[name]
    return found


RANGES = [
    (FIRST, FIRST + timedelta(days=4)),
    (DAY, DAY + timedelta(days=3)),
    (FIRST + timedelta(minutes=3), FIRST + timedelta(hours=31, minutes=41, seconds=7)),
    (FIRST + timedelta(minutes=3), FIRST + timedelta(minutes=9)),
]


def test_groups_of_a_range_add_up_to_its_rows(rows) -> None:
    for (since, until), by in itertools.product(RANGES, GROUPINGS):
        span = build_time_range(since, until, "all", ZoneInfo("UTC"))

        table = usage(EVERYTHING, span, by)

        assert total(table.values()) == expected(rows, span.start, span.end), (since, until, by)


def test_buckets_of_each_zone_contain_the_rows_of_that_local_time(rows) -> None:
    for zone, (bucket, local) in itertools.product(ZONES, LOCAL.items()):
        span = build_time_range(FIRST, FIRST + timedelta(days=4), bucket, ZoneInfo(zone))

        table = usage(EVERYTHING, span, ("team",))

        found: Counter = Counter()
        for (number, (team,)), sums in table.items():
            found[local(span.edges[number].astimezone(span.zone)), team] += sums["requests"]
        by_rows = Counter((local(r.created.astimezone(span.zone)), r.team) for r in rows)
        assert found == by_rows, (zone, bucket)


def test_filters_apply_to_each_slice(rows) -> None:
    span = build_time_range(FIRST, FIRST + timedelta(days=2), "all", ZoneInfo("UTC"))

    table = usage(EVERYTHING, span, (), Q(team="search"))

    of_search = [row for row in rows if row.team == "search"]
    assert total(table.values()) == expected(of_search, span.start, span.end)


@for_each(
    ("columns", "smallest"),
    [
        (["model_requested"], UsageByModelDay),
        (["team", "key_id"], UsageByCallerDay),
        (["team", "model_requested"], UsageSummaryDay),
        (["team", "outcome"], UsageDay),
    ],
)
def test_a_long_range_reads_the_smallest_table(columns, smallest) -> None:
    span = build_time_range(DAY, DAY + timedelta(days=30), "all", ZoneInfo("UTC"))

    assert [rows.model for rows in rollup_slices(EVERYTHING, span, columns)] == [smallest]


@given(st.integers(0, 10**4), st.integers(1, 10**4), st.sampled_from(ZONES))
def test_slices_cover_a_range_once(start: int, length: int, zone: str) -> None:
    since = DAY + start * timedelta(minutes=15)
    span = build_time_range(since, since + length * timedelta(minutes=15), "1w", ZoneInfo(zone))

    found = [(start, end) for _, start, end in day_and_quarter_slices(span)]

    assert (found[0][0], found[-1][1]) == (span.start, span.end)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(found))


def all_sums() -> list:
    return [
        [list(line) for line in table.objects.order_by("pk").values_list()]
        for table in rollups.TABLES
    ]


def rebuild() -> None:
    """Compute all sums from the rows again."""
    for table in rollups.TABLES:
        table.objects.all().delete()
    rollups.add(Exchange.objects.all())


def test_rebuilding_from_the_rows_gives_the_same_sums(rows) -> None:
    before = all_sums()

    rebuild()

    assert all_sums() == before


def test_repricing_changes_rows_and_sums_together(rows) -> None:
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
    sums_so_far = all_sums()
    rebuild()
    assert list(usage(EVERYTHING, ALL, ()).values()) == [after]
    assert all_sums() == sums_so_far


def test_each_table_has_all_rows_and_cost_parts_add_up(rows) -> None:
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


def test_a_late_row_and_its_subtraction_change_each_table(rows) -> None:
    before = all_sums()
    late = [random_records(random.Random(9), ROWS + 1)]  # noqa: S311 -- test data

    write_to_database(late)
    row = Exchange.objects.get(pk=late[0].opening.id)
    after = all_sums()
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
            value = latency_histogram.percentile(sketch["ttft_ms"], fraction)
            rank = math.ceil(fraction * len(exact))  # nearest-rank percentile
            assert value == pytest.approx(exact[rank - 1], rel=0.05)
        assert sum(sketch["ttft_ms"].values()) == len(exact)


@given(st.floats(min_value=0.01, max_value=10_000_000))
def test_a_bucket_is_off_by_at_most_five_percent(ms: float) -> None:
    value = latency_histogram.value_of(latency_histogram.bucket_of(ms))

    assert ms <= 1 or value == pytest.approx(ms, rel=0.0501)


def test_the_percentile_of_an_empty_histogram_is_unknown() -> None:
    assert latency_histogram.percentile({}, 0.5) is None
