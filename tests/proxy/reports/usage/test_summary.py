"""Summary, timeseries, latency, errors, cache, budgets and me."""

import re
from datetime import UTC, date, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from django.utils.timezone import now

from proxy.ledger.posting.ledger_writer import write_to_database
from proxy.models import Budget
from proxy.reports.core.dimensions import DIMENSIONS
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db
DAY = {"from": "2026-11-20", "to": "2026-11-21"}


def test_the_summary_compares_with_the_previous_period(get_report):
    factories.price()
    ci, _ = factories.key("ci")
    factories.record(key=ci)
    factories.record(key=ci, at=factories.NOON - timedelta(days=1))
    factories.record(key=ci, closing={"outcome": "upstream_error", "status": 502, "usage": {}})
    factories.record(key=ci, closing={"outcome": "client_gone"})

    report = get_report("summary", **DAY).json()

    assert (report["requests"], report["errors"], report["client_gone"]) == (3, 1, 1)
    assert report["error_rate"] == 0.333333
    assert report["cost_usd"] == "0.0015"
    assert report["cost_delta_pct"] == 100.0
    assert report["requests_delta_pct"] == 200.0
    assert report["active_keys"] == 1
    assert report["cache_hit_rate"] == 0.909091


def test_percentiles_are_within_five_percent(get_report):
    write_to_database(
        [
            factories.exchange_records(closing={"ttft_ms": n * 10.0, "total_ms": n * 100.0})
            for n in range(1, 101)
        ]
    )

    (row,) = get_report("latency", by="team", **DAY).json()["data"]

    assert row["value"] == "platform"
    assert row["ttft_ms"]["count"] == 100
    for name, truth in (("p50", 500), ("p95", 950), ("max", 1000)):
        assert abs(row["ttft_ms"][name] - truth) <= truth * 0.05
        assert abs(row["total_ms"][name] - truth * 10) <= truth * 0.5


def test_a_timeseries_has_every_bucket(get_report):
    factories.record(at=factories.NOON)
    factories.record(at=factories.NOON + timedelta(hours=2), team="research")

    report = get_report(
        "timeseries", bucket="1h", by="team", metric="requests,error_rate", **DAY
    ).json()

    assert len(report["starting_at"]) == 24
    requests = {one["by"]: one["points"] for one in report["series"] if one["metric"] == "requests"}
    assert {team: points.index(1) for team, points in requests.items()} == {
        "platform": 12,
        "research": 14,
    }
    rates = [one["points"] for one in report["series"] if one["metric"] == "error_rate"]
    assert rates[0][0] is None  # no requests, no rate


def sum_known(points):
    """Return the sum; None if no minute with requests has a known value."""
    return sum(p for p in points if p) if None not in points or any(points) else None


def test_minutes_of_each_dimension_add_up_to_quarters(get_report):
    ci, _ = factories.key("ci", user=factories.staff("ben"))
    factories.price()
    for seconds in (0, 59, 60, 900):
        factories.record(key=ci, at=factories.NOON + timedelta(seconds=seconds))
    factories.record(
        team="research", at=factories.NOON, closing={"outcome": "upstream_error", "usage": {}}
    )
    query = {"from": "2026-11-20T12:00Z", "to": "2026-11-20T12:30Z"}
    query |= {"metric": "requests,errors,total_tokens,tool_calls"}

    for by in ({}, *({"by": name} for name in DIMENSIONS)):
        minutes = get_report("timeseries", bucket="1m", **query, **by).json()
        quarters = get_report("timeseries", bucket="15m", **query, **by).json()

        assert len(minutes["starting_at"]) == 30
        assert minutes["starting_at"][1] == "2026-11-20T12:01:00Z"
        assert [
            {**one, "points": [sum_known(one["points"][:15]), sum_known(one["points"][15:])]}
            for one in minutes["series"]
        ] == quarters["series"], by


def test_minute_buckets_are_limited_to_one_day(get_report):
    day = get_report("timeseries", bucket="1m", **DAY)
    more = get_report("timeseries", bucket="1m", **DAY | {"to": "2026-11-21T00:15Z"})

    assert len(day.json()["starting_at"]) == 1440
    assert more.status_code == 400
    assert "bucket: 1m is for a day at most" in more.json()["error"]["message"]


def test_errors_by_type_equals_errors_by_error_type(get_report):
    factories.record(
        closing={"outcome": "upstream_error", "status": 502, "error_type": "api_error"}
    )

    assert (
        get_report("errors", by="type", **DAY).json()["data"]
        == get_report("errors", **DAY).json()["data"]
    )


def test_a_number_out_of_bounds_names_the_bound(get_report):
    few, many = get_report("top", limit=0, **DAY), get_report("requests", limit=1001, **DAY)

    assert few.json()["error"]["message"] == "limit: 0 is too small; the minimum is 1"
    assert many.json()["error"]["message"] == "limit: 1001 is too large; the maximum is 1000"


def test_latency_has_output_tokens_per_upstream_second(get_report):
    for ms in (1_000.0, 3_000.0):
        factories.record(closing={"upstream_ms": ms})  # 50 tokens each
    factories.record(team="research", closing={"upstream_ms": None})

    rows = {row["value"]: row for row in get_report("latency", by="team", **DAY).json()["data"]}

    assert rows["platform"]["output_tokens_per_upstream_s"] == pytest.approx(25, rel=0.05)
    assert rows["research"]["output_tokens_per_upstream_s"] is None


CACHED = {"input": 10, "output": 1, "cache_read": 1_000_000, "source": "reported"}


def test_the_cache_report_has_the_saving(get_report):
    factories.price()  # 1.25 a million, 0.125 from the cache
    factories.record(closing={"usage": CACHED})
    factories.record(closing={"usage": CACHED | {"cache_read": 0}})

    (row,) = get_report("cache", **DAY).json()["data"]

    assert (row["saved_usd"], row["saved_is_partial"]) == ("1.125", False)


def test_the_saving_uses_the_prices_of_each_day_and_can_be_negative(get_report):
    dearer = factories.price()
    dearer.pk, dearer.since = None, date(2026, 11, 21)
    dearer.input, dearer.cache_write_5m = Decimal("2.25"), Decimal("3.25")
    dearer.save()
    written = {"input": 10, "output": 1, "cache_write_5m": 2_000_000, "source": "reported"}
    factories.record(closing={"usage": CACHED})
    factories.record(closing={"usage": written}, at=factories.NOON + timedelta(days=1))

    (both,) = get_report("cache", **DAY | {"to": "2026-11-22"}).json()["data"]
    (loss,) = get_report("cache", **{"from": "2026-11-21", "to": "2026-11-22"}).json()["data"]

    assert (both["saved_usd"], loss["saved_usd"]) == ("-0.875", "-2")


def test_the_saving_without_a_price_is_null_and_partial(get_report):
    factories.record(closing={"usage": CACHED})
    (unknown,) = get_report("cache", **DAY).json()["data"]
    factories.price()
    factories.record(closing={"usage": CACHED, "model_upstream": "unpriced"})

    (partly,) = get_report("cache", **DAY).json()["data"]

    assert (unknown["saved_usd"], unknown["saved_is_partial"]) == (None, True)
    assert (partly["saved_usd"], partly["saved_is_partial"]) == ("1.125", True)


def test_client_disconnects_are_not_errors(get_report):
    factories.record(closing={"outcome": "client_gone"})
    factories.record(
        closing={"outcome": "upstream_timeout", "status": 504, "error_type": "timeout_error"}
    )

    rows = {row["value"]: row for row in get_report("errors", by="outcome", **DAY).json()["data"]}

    assert (rows["client_gone"]["errors"], rows["client_gone"]["client_gone"]) == (0, 1)
    assert rows["upstream_timeout"]["error_rate"] == 1.0


def test_the_cache_hit_rate_is_the_share_of_all_prompt_tokens(get_report):
    factories.record(
        closing={
            "usage": {
                "input": 10,
                "output": 1,
                "cache_read": 80,
                "cache_write_5m": 10,
                "source": "reported",
            }
        }
    )

    (row,) = get_report("cache", **DAY).json()["data"]

    assert row["cache_hit_rate"] == 0.8


@pytest.mark.parametrize(
    "route",
    [
        "summary",
        "timeseries",
        "top",
        "latency",
        "errors",
        "cache",
        "budgets",
        "usage",
        "requests",
        "sessions",
    ],
)
@pytest.mark.parametrize("kind", ["csv", "ndjson"])
def test_lists_can_be_downloaded_as_csv_and_ndjson(get_report, route, kind):
    factories.record(opening={"session_id": "s"})
    factories.record(closing={"outcome": "upstream_error", "error_type": "api_error"})
    Budget.objects.create(team=factories.team(), usd=5)

    answer = get_report(route, format=kind, **({} if route == "budgets" else DAY))
    lines = answer.content.decode().splitlines()

    assert answer["Content-Disposition"] == f'attachment; filename="{route}.{kind}"'
    assert len(lines) >= (2 if kind == "csv" else 1)


def test_a_budget_has_the_amount_left_and_the_reset_time(get_report):
    factories.price()
    ci, _ = factories.key("ci")
    today = now().astimezone(ZoneInfo("Asia/Kathmandu")).replace(hour=0, minute=0, second=0)
    factories.record(key=ci, at=max(now() - timedelta(minutes=1), today.astimezone(UTC)))
    soft = Budget.objects.create(
        key=ci, usd="0.001", period="day", zone="Asia/Kathmandu", hard=False
    )

    (row,) = get_report("budgets").json()["data"]
    alone = get_report(f"budgets/budget_{soft.pk}/status").json()

    assert (row["spent_usd"], row["limit_usd"], row["left_usd"]) == ("0.00075", "0.001", "0.00025")
    assert row["owner"] == "key:platform/ci"
    assert row["resets_at"].endswith("18:15:00Z")
    assert alone["id"] == f"budget_{soft.pk}"
    assert alone["state"] == "ok"


def test_a_budget_is_found_by_the_id_in_the_list(get_report):
    budget = Budget.objects.create(team=factories.team(), usd=9)

    (row,) = get_report("budgets").json()["data"]
    one = get_report(f"budgets/{row['id']}/status").json()

    assert row["id"] == one["id"] == f"budget_{budget.pk}"


@pytest.mark.parametrize(
    "ident",
    ["budget_", "budget_-1", "soft", "1", "budget_" + "9" * 19, "budget_" + "1" * 5000, "budget_²"],
)
def test_an_invalid_budget_id_is_404(get_report, ident):
    assert get_report(f"budgets/{ident}/status").status_code == 404


def test_me_has_the_usage_and_budgets_of_the_callers_key(client):
    mine, secret = factories.key("mine", limits={"rpm": 5})
    other, _ = factories.key("other")
    Budget.objects.create(team=mine.team, usd=9)
    Budget.objects.create(key=other, usd=1)
    factories.record(key=mine, at=now())
    factories.record(key=other, at=now())

    report = client.get("/api/v1/me", headers={"x-api-key": secret}).json()

    assert (report["id"], report["name"], report["limits"]) == (
        f"apikey_{mine.pk}",
        "mine",
        {"rpm": 5},
    )
    assert report["team"] == {"id": "platform", "name": "platform"}
    assert [budget["limit_usd"] for budget in report["budgets"]] == ["9"]
    assert report["this_month"]["requests"] == 1


def test_every_view_and_its_columns_are_in_the_schema(client):
    schema = client.get("/api/v1/schema/").json()

    from proxy.reports.urls import VIEWS, VIEWSETS

    paths = {path.replace("{", "<str:").replace("}", ">") for path in schema["paths"]}
    ours = {path for path in paths if path.startswith("/api/v1/")}
    routes = {f"/api/v1/{re.sub('<[a-z]+:', '<str:', route)}/" for route in VIEWS}
    routes |= {f"/api/v1/{one.resource}/" for one in VIEWSETS} | {"/api/v1/"}
    rows = {one: f"/api/v1/{one.resource}/<str:{one.lookup_url_kwarg}>/" for one in VIEWSETS}
    routes |= {*rows.values()}
    routes |= {
        f"{row}{action.url_path}/"
        for one, row in rows.items()
        for action in one.get_extra_actions()
    }
    assert routes == ours
    assert "/v1/organizations/usage_report/messages" in paths
    assert "cost_is_floor" in schema["components"]["schemas"]["UsageRow"]["properties"]
