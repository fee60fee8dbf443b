"""Consistency of the reports: for every zone, bucket and group, the parts add up to the total.

The ledger has requests around days with clock changes. The expected values are computed from the
single requests with Python's zoneinfo.
"""

import itertools
import random
from collections import Counter
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from django.db.models import Q
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from proxy.ledger.posting.ledger_writer import write_to_database
from proxy.models import (
    Exchange,
    UsageByCallerDay,
    UsageByCallerQuarterHour,
    UsageByModelDay,
    UsageByModelQuarterHour,
    UsageBySessionDay,
    UsageByToolDay,
    UsageDay,
    UsageQuarterHour,
    UsageSummaryDay,
)
from proxy.permissions.row_permissions import Reader
from proxy.reports.core.dimensions import DIMENSIONS
from proxy.reports.core.time_ranges import build_time_range
from proxy.reports.usage.days import GROUPS as GROUPS_OF_OUTCOMES
from proxy.reports.usage.days import STOP_DIMENSIONS
from proxy.reports.usage.rollup_queries import NoRollup, day_and_quarter_slices, rollup_slices
from tests.fakes.caches import NO_CACHE
from tests.lanes import repeat
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db

FIRST = datetime(2026, 10, 1, tzinfo=UTC)
DAYS = 34  # with clock changes in Lord Howe, Berlin and New York
ZONES = (
    "UTC",
    "Asia/Kathmandu",  # 5:45
    "Asia/Kolkata",  # 5:30
    "Europe/Berlin",  # 25 hours on 25 October
    "America/New_York",  # 25 hours on 1 November
    "America/St_Johns",  # -3:30 and a clock change
    "Australia/Lord_Howe",  # half an hour's change on 4 October
    "Pacific/Chatham",  # 13:45
    "Pacific/Apia",
    "Pacific/Kiritimati",  # 14:00
)
GROUPS = ("team", "key", "model", "outcome", "stop_reason", "user", "status", "service_tier")
COUNTS = (
    "requests",
    "errors",
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "unpriced_requests",
    "input_missing_requests",
)
CLOSINGS = (
    {},
    {"outcome": "upstream_error", "status": 529, "stop_reason": "", "usage": {}},
    {"outcome": "client_gone", "usage": {"input": 7, "output": 3, "source": "estimated"}},
    {"model_upstream": "qwen3", "upstream": "vllm"},  # without a price
    {"stop_reason": "tool_use"},
)
PROPERTY = settings(
    max_examples=repeat(fast=10, slow=200),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
spans = st.tuples(st.integers(0, DAYS - 2), st.integers(1, 20))
groups = st.lists(st.sampled_from(GROUPS), unique=True, max_size=3)


@pytest.fixture(scope="module")
def secret(module_rows):
    """The secret of a key that reads everything; the ledger has 160 requests."""
    with module_rows():
        factories.price()
        rng = random.Random(6)  # noqa: S311  # the same ledger in each run
        write_to_database(
            [
                factories.exchange_records(
                    at=FIRST + timedelta(seconds=rng.randrange(DAYS * 86_400)),
                    team=rng.choice(["platform", "research"]),
                    body=factories.request_body(
                        model=rng.choice(["claude-opus-5-5", "claude-haiku-5"])
                    ),
                    opening={"user": rng.choice(["", "ana", "ben"])},
                    closing=rng.choice(CLOSINGS),
                    with_content=False,
                )
                for _ in range(160)
            ]
        )
        return factories.key("finance", scopes=["admin"])[1]


@pytest.fixture
def get_json(client, secret, settings):
    """Return a function that returns the JSON of a report."""
    settings.CACHES = NO_CACHE  # which counts no requests, so there is no limit of their number

    def get_json(url, **query):
        answer = client.get(url, query, headers={"x-api-key": secret})
        assert answer.status_code == 200, answer.content
        return answer.json()

    return get_json


def days_of(span):
    first = (FIRST + timedelta(days=span[0])).date()
    return first, first + timedelta(days=span[1])


def requests_by_local_day(zone, first, last):
    """Count the rows of each day of the zone."""
    days = Counter(row.created.astimezone(ZoneInfo(zone)).date() for row in Exchange.objects.all())
    return {day.isoformat(): n for day, n in days.items() if first <= day < last}


def total(rows, name):
    """Sum the known values: a group without a known value has null."""
    return sum(row[name] or 0 for row in rows)


@PROPERTY
@given(
    zone=st.sampled_from(ZONES),
    span=spans,
    by=groups,
    bucket=st.sampled_from(["15m", "1h", "1d", "1w", "1mo", "all"]),
)
def test_groups_and_buckets_add_up_to_the_total_and_to_the_rows(get_json, zone, span, by, bucket):
    first, last = days_of(span)
    query = {"from": first.isoformat(), "to": last.isoformat(), "tz": zone, "limit": 10_000}

    result = get_json("/api/v1/usage/", bucket=bucket, group_by=",".join(by), **query)

    whole = get_json("/api/v1/summary/", **{k: v for k, v in query.items() if k != "limit"})
    days = requests_by_local_day(zone, first, last)
    assert total(result["data"], "requests") == sum(days.values())
    for name in COUNTS:
        assert total(result["data"], name) == (result["totals"][name] or 0)
        assert result["totals"][name] == whole[name]
    costs = [Decimal(row["cost_usd"]) for row in result["data"] if row["cost_usd"] is not None]
    assert sum(costs) == Decimal(result["totals"]["cost_usd"] or 0)


@PROPERTY
@given(zone=st.sampled_from(ZONES), span=spans)
def test_each_day_has_the_requests_of_that_day_in_the_zone(get_json, zone, span):
    first, last = days_of(span)
    query = {"from": first.isoformat(), "to": last.isoformat(), "tz": zone, "group_by": ""}

    rows = get_json("/api/v1/usage/", bucket="1d", **query)["data"]

    assert {row["date"]: row["requests"] for row in rows} == requests_by_local_day(
        zone, first, last
    )


@PROPERTY
@given(zone=st.sampled_from(ZONES), span=spans, by=st.sampled_from(GROUPS))
def test_timeseries_and_top_have_the_same_total_as_the_summary(get_json, zone, span, by):
    first, last = days_of(span)
    query = {"from": first.isoformat(), "to": last.isoformat(), "tz": zone}

    whole = get_json("/api/v1/summary/", **query)["requests"]
    series = get_json("/api/v1/timeseries/", by=by, metric="requests", bucket="1h", **query)[
        "series"
    ]
    top = get_json("/api/v1/top/", by=by, metric="requests", limit=1, **query)["data"]

    assert sum(sum(item["points"]) for item in series) == whole
    assert total(top, "requests") == whole


@settings(PROPERTY, max_examples=8)  # six requests each
@given(
    start=st.integers(0, DAYS - 2),
    by=st.sampled_from(["model", "workspace_id", "account_id", "session", "stop_reason"]),
)
def test_anthropic_reports_of_every_width_and_group_have_the_same_sums(get_json, start, by):
    first = date(2026, 10, 1) + timedelta(days=start)
    query = {
        "starting_at": f"{first}T00:00:00Z",
        "ending_at": f"{first + timedelta(days=1)}T00:00:00Z",
    }
    url = "/v1/organizations/usage_report/messages"

    answers = [
        get_json(url, bucket_width=width, limit=limit, **query, **group)
        for width, limit in (("1d", 1), ("1h", 24), ("1m", 1440))
        for group in ({}, {"group_by[]": by})
    ]

    sums = [
        [
            sum(total(bucket["results"], name) for bucket in answer["data"])
            for name in ("uncached_input_tokens", "output_tokens", "cache_read_input_tokens")
        ]
        for answer in answers
    ]
    assert all(item == sums[0] for item in sums)


@settings(PROPERTY, max_examples=6)  # a dozen requests each
@given(
    zone=st.sampled_from(ZONES),
    span=spans,
    by=groups,
    cut=st.tuples(st.sampled_from(["15m", "1h", "1d", "1w"]), st.integers(10, 60)),
)
def test_pages_of_any_length_are_the_whole_report(get_json, zone, span, by, cut):
    bucket, limit = cut
    first, last = days_of(span)
    query = {"from": first.isoformat(), "to": last.isoformat(), "tz": zone, "bucket": bucket}
    query["group_by"] = ",".join(by)
    assume(bucket != "15m" or span[1] < 10)  # at most 3000 buckets

    whole = get_json("/api/v1/usage/", limit=10_000, **query)["data"]
    paged, page = [], ""
    while page is not None:
        answer = get_json("/api/v1/usage/", limit=limit, page=page, **query)
        paged += answer["data"]
        page = answer["next_page"]

    assert paged == whole


@PROPERTY
@given(zone=st.sampled_from(ZONES), span=spans, bucket=st.sampled_from(["1h", "1d", "1w", "1mo"]))
def test_every_part_of_a_time_range_is_read_once(zone, span, bucket):
    start = datetime(2026, 10, 1, 0, 15, tzinfo=UTC) + timedelta(days=span[0])
    time_range = build_time_range(
        start, start + timedelta(days=span[1], hours=5), bucket, ZoneInfo(zone)
    )

    result = list(day_and_quarter_slices(time_range))

    assert result[0][1] == time_range.start
    assert result[-1][2] == time_range.end
    assert all(item[2] == following[1] for item, following in itertools.pairwise(result))
    for days, begins, ends in result:
        inside = [edge for edge in time_range.edges if begins < edge < ends]
        assert not days or all(edge.time() == time() for edge in (begins, ends, *inside))


@pytest.mark.parametrize(
    ("groups", "condition", "bucket", "table"),
    [
        ([], Q(), "all", UsageByModelDay),
        (["model_requested"], Q(stop_reason="end_turn"), "1d", UsageByModelDay),
        (["model_requested"], Q(), "1h", UsageByModelQuarterHour),
        (["team", "key_id"], Q(), "1d", UsageByCallerDay),
        (["team"], Q(user="ben"), "15m", UsageByCallerQuarterHour),
        (["team", "model_requested"], Q(), "1d", UsageSummaryDay),
        (["key_id", "model_requested"], Q(), "1d", UsageDay),
        (["model_requested"], Q(team="platform"), "1h", UsageQuarterHour),
        (["session_id", "team"], Q(), "1d", UsageBySessionDay),
        (["tool", "key_id"], Q(), "1d", UsageByToolDay),
    ],
)
def test_a_report_reads_the_smallest_table_with_its_columns(groups, condition, bucket, table):
    start = datetime(2026, 10, 1, tzinfo=UTC)
    time_range = build_time_range(start, start + timedelta(days=2), bucket, ZoneInfo("UTC"))

    result = {
        rows.model for rows in rollup_slices(Reader(everything=True), time_range, groups, condition)
    }

    assert result == {table}


def test_columns_without_a_rollup_table_raise():
    start = datetime(2026, 10, 1, tzinfo=UTC)
    time_range = build_time_range(start, start + timedelta(days=2), "1h", ZoneInfo("UTC"))

    with pytest.raises(NoRollup):
        list(rollup_slices(Reader(everything=True), time_range, ["session_id"]))


@settings(PROPERTY, max_examples=repeat(fast=6, slow=200))  # a dozen requests each
@given(zone=st.sampled_from(ZONES), span=spans, data=st.data())
def test_the_groups_of_every_report_add_up_to_the_total_and_to_the_rows(get_json, zone, span, data):
    """Of each report by one dimension; the errors by type have only the failed requests."""
    first, last = days_of(span)
    query = {"from": first.isoformat(), "to": last.isoformat(), "tz": zone}
    by = data.draw(st.sampled_from(sorted(DIMENSIONS)))

    def rows(name, **more):
        return get_json(f"/api/v1/{name}/", **query, **more)["data"]

    whole = get_json("/api/v1/summary/", **query)
    single = sum(requests_by_local_day(zone, first, last).values())
    assert whole["requests"] == single
    for report in ("comparison", "errors", "top"):
        if (report, by) != ("errors", "error_type"):
            assert total(rows(report, by=by), "requests") == single, report
        assert total(rows(report, by=by), "errors") == whole["errors"], report
    assert total(rows("comparison", by=by), "output_tokens") == (whole["output_tokens"] or 0)
    cached = "cache_read_input_tokens"
    assert total(rows("cache", by=by), cached) == (whole[cached] or 0)
    measured = sum(row["total_ms"]["count"] for row in rows("latency", by=by))
    assert measured == whole["total_ms"]["count"]
    costs = [row["cost_usd"] for row in rows("comparison", by=by) if row["cost_usd"] is not None]
    assert sum(map(Decimal, costs)) == Decimal(whole["cost_usd"] or 0)


@settings(PROPERTY, max_examples=repeat(fast=6, slow=200))
@given(span=spans, data=st.data())
def test_the_groups_of_the_reports_on_days_add_up_to_the_rows(get_json, span, data):
    first, last = days_of(span)
    query = {"from": first.isoformat(), "to": last.isoformat(), "limit": 10_000}
    outcomes = data.draw(st.lists(st.sampled_from(sorted(GROUPS_OF_OUTCOMES)), max_size=3))
    stops = data.draw(st.lists(st.sampled_from(sorted({*STOP_DIMENSIONS} - {"tool"})), max_size=3))

    single = sum(requests_by_local_day("UTC", first, last).values())

    for report, by in (("outcomes", outcomes), ("stop_reasons", stops)):
        answer = get_json(f"/api/v1/{report}/", group_by=",".join(by), **query)
        assert total(answer["data"], "requests") == single, (report, by)
