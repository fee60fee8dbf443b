"""Numbers that can be believed: whatever the zone, bucket and group, the parts are the whole.

The ledger is filled once around days on which clocks change; each question is answered again here,
request by request, with nothing but Python's zoneinfo.
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

from proxy.models import (
    DaySession,
    DaySummary,
    DayUsage,
    DayWhat,
    DayWho,
    Exchange,
    QuarterUsage,
    QuarterWhat,
    QuarterWho,
)
from proxy.record.posting import post
from proxy.reports.access import ReaderThrottle
from proxy.reports.spans import span_of
from proxy.reports.sums import NoRollup, pieces, stretches
from proxy.visibility import Reader
from tests.proxy.admin import cast

pytestmark = pytest.mark.django_db

FIRST = datetime(2026, 10, 1, tzinfo=UTC)
DAYS = 34  # Lord Howe's and Auckland's spring, Berlin's and New York's autumn
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
SUMMED = (
    "requests",
    "errors",
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "unpriced_requests",
    "input_missing_requests",
)
ENDS = (
    {},
    {"outcome": "upstream_error", "status": 529, "stop_reason": "", "usage": {}},
    {"outcome": "client_gone", "usage": {"input": 7, "output": 3, "source": "estimated"}},
    {"model_upstream": "qwen3", "upstream": "vllm"},  # without a price
    {"stop_reason": "tool_use"},
)
QUESTIONS = settings(
    max_examples=25,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
spans = st.tuples(st.integers(0, DAYS - 2), st.integers(1, 20))
groups = st.lists(st.sampled_from(GROUPS), unique=True, max_size=3)


@pytest.fixture
def ask(client, monkeypatch):
    """Answers of the reports over a ledger of 160 requests."""
    monkeypatch.setattr(ReaderThrottle, "rate", "100000/s")
    cast.price()
    secret = cast.key("finance", scopes=["admin"])[1]
    chance = random.Random(6)  # noqa: S311  # the same ledger each time, nothing secret
    post(
        [
            cast.story(
                at=FIRST + timedelta(seconds=chance.randrange(DAYS * 86_400)),
                team=chance.choice(["platform", "research"]),
                body=cast.request_body(model=chance.choice(["claude-opus-5-5", "claude-haiku-5"])),
                opening={"user": chance.choice(["", "ana", "ben"])},
                closing=chance.choice(ENDS),
                kept=False,
            )
            for _ in range(160)
        ]
    )

    def ask(url, **query):
        answer = client.get(url, query, headers={"x-api-key": secret})
        assert answer.status_code == 200, answer.content
        return answer.json()

    return ask


def asked_days(span):
    first = (FIRST + timedelta(days=span[0])).date()
    return first, first + timedelta(days=span[1])


def requests_by_local_day(zone, first, last):
    """Counted anew, from the rows: how many requests each day of the zone has."""
    days = Counter(row.created.astimezone(ZoneInfo(zone)).date() for row in Exchange.objects.all())
    return {day.isoformat(): n for day, n in days.items() if first <= day < last}


def total(rows, name):
    """Of what is known: a group in which nothing is says null."""
    return sum(row[name] or 0 for row in rows)


@QUESTIONS
@given(
    zone=st.sampled_from(ZONES),
    span=spans,
    by=groups,
    bucket=st.sampled_from(["15m", "1h", "1d", "1w", "1mo", "all"]),
)
def test_groups_and_buckets_add_up_to_the_total_and_to_the_rows(ask, zone, span, by, bucket):
    first, last = asked_days(span)
    query = {"from": first.isoformat(), "to": last.isoformat(), "tz": zone, "limit": 10_000}

    found = ask("/api/v1/usage/", bucket=bucket, group_by=",".join(by), **query)

    whole = ask("/api/v1/summary/", **{k: v for k, v in query.items() if k != "limit"})
    days = requests_by_local_day(zone, first, last)
    assert total(found["data"], "requests") == sum(days.values())
    for name in SUMMED:
        assert total(found["data"], name) == (found["totals"][name] or 0)
        assert found["totals"][name] == whole[name]
    costs = [Decimal(row["cost_usd"]) for row in found["data"] if row["cost_usd"] is not None]
    assert sum(costs) == Decimal(found["totals"]["cost_usd"] or 0)


@QUESTIONS
@given(zone=st.sampled_from(ZONES), span=spans)
def test_each_day_has_the_requests_of_that_day_in_the_zone(ask, zone, span):
    first, last = asked_days(span)
    query = {"from": first.isoformat(), "to": last.isoformat(), "tz": zone, "group_by": ""}

    rows = ask("/api/v1/usage/", bucket="1d", **query)["data"]

    assert {row["date"]: row["requests"] for row in rows} == requests_by_local_day(
        zone, first, last
    )


@QUESTIONS
@given(zone=st.sampled_from(ZONES), span=spans, by=st.sampled_from(GROUPS))
def test_a_timeseries_and_the_top_say_the_same_as_the_summary(ask, zone, span, by):
    first, last = asked_days(span)
    query = {"from": first.isoformat(), "to": last.isoformat(), "tz": zone}

    whole = ask("/api/v1/summary/", **query)["requests"]
    series = ask("/api/v1/timeseries/", by=by, metric="requests", bucket="1h", **query)["series"]
    top = ask("/api/v1/top/", by=by, metric="requests", limit=1, **query)["data"]

    assert sum(sum(one["points"]) for one in series) == whole
    assert total(top, "requests") == whole


@settings(QUESTIONS, max_examples=8)  # six questions each
@given(
    start=st.integers(0, DAYS - 2),
    by=st.sampled_from(["model", "workspace_id", "account_id", "session", "stop_reason"]),
)
def test_anthropics_reports_of_every_width_and_group_say_the_same(ask, start, by):
    first = date(2026, 10, 1) + timedelta(days=start)
    query = {
        "starting_at": f"{first}T00:00:00Z",
        "ending_at": f"{first + timedelta(days=1)}T00:00:00Z",
    }
    url = "/v1/organizations/usage_report/messages"

    answers = [
        ask(url, bucket_width=width, limit=limit, **query, **group)
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
    assert all(one == sums[0] for one in sums)


@settings(QUESTIONS, max_examples=6)  # a dozen questions each
@given(
    zone=st.sampled_from(ZONES),
    span=spans,
    by=groups,
    cut=st.tuples(st.sampled_from(["15m", "1h", "1d", "1w"]), st.integers(10, 60)),
)
def test_pages_of_any_length_are_the_whole_report(ask, zone, span, by, cut):
    bucket, limit = cut
    first, last = asked_days(span)
    query = {"from": first.isoformat(), "to": last.isoformat(), "tz": zone, "bucket": bucket}
    query["group_by"] = ",".join(by)
    assume(bucket != "15m" or span[1] < 10)  # at most 3000 buckets

    whole = ask("/api/v1/usage/", limit=10_000, **query)["data"]
    paged, page = [], ""
    while page is not None:
        answer = ask("/api/v1/usage/", limit=limit, page=page, **query)
        paged += answer["data"]
        page = answer["next_page"]

    assert paged == whole


@QUESTIONS
@given(zone=st.sampled_from(ZONES), span=spans, bucket=st.sampled_from(["1h", "1d", "1w", "1mo"]))
def test_every_stretch_is_read_once(zone, span, bucket):
    start = datetime(2026, 10, 1, 0, 15, tzinfo=UTC) + timedelta(days=span[0])
    asked = span_of(start, start + timedelta(days=span[1], hours=5), bucket, ZoneInfo(zone))

    found = list(stretches(asked))

    assert found[0][1] == asked.start
    assert found[-1][2] == asked.end
    assert all(one[2] == following[1] for one, following in itertools.pairwise(found))
    for days, begins, ends in found:
        inside = [edge for edge in asked.edges if begins < edge < ends]
        assert not days or all(edge.time() == time() for edge in (begins, ends, *inside))


@pytest.mark.parametrize(
    ("groups", "condition", "bucket", "table"),
    [
        ([], Q(), "all", DayWhat),
        (["model_requested"], Q(stop_reason="end_turn"), "1d", DayWhat),
        (["model_requested"], Q(), "1h", QuarterWhat),
        (["team", "key_id"], Q(), "1d", DayWho),
        (["team"], Q(user="ben"), "15m", QuarterWho),
        (["team", "model_requested"], Q(), "1d", DaySummary),
        (["key_id", "model_requested"], Q(), "1d", DayUsage),
        (["model_requested"], Q(team="platform"), "1h", QuarterUsage),
        (["session_id", "team"], Q(), "1d", DaySession),
    ],
)
def test_a_report_reads_the_smallest_table_that_knows_its_columns(groups, condition, bucket, table):
    start = datetime(2026, 10, 1, tzinfo=UTC)
    asked = span_of(start, start + timedelta(days=2), bucket, ZoneInfo("UTC"))

    found = {rows.model for rows in pieces(Reader(everything=True), asked, groups, condition)}

    assert found == {table}


def test_what_no_table_knows_is_said():
    start = datetime(2026, 10, 1, tzinfo=UTC)
    asked = span_of(start, start + timedelta(days=2), "1h", ZoneInfo("UTC"))

    with pytest.raises(NoRollup):
        list(pieces(Reader(everything=True), asked, ["session_id"]))
