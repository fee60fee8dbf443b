"""Summary, timeseries, top, latency, errors, cache, budgets and me."""

import re
from datetime import UTC, date, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from django.utils.timezone import now

from proxy.models import Budget
from proxy.reports.sums import DIMENSIONS
from tests.proxy.admin import cast

pytestmark = pytest.mark.django_db
DAY = {"from": "2026-11-20", "to": "2026-11-21"}


def test_the_summary_compares_with_the_stretch_before(ask):
    cast.price()
    ci, _ = cast.key("ci")
    cast.record(key=ci)
    cast.record(key=ci, at=cast.NOON - timedelta(days=1))
    cast.record(key=ci, closing={"outcome": "upstream_error", "status": 502, "usage": {}})
    cast.record(key=ci, closing={"outcome": "client_gone"})

    found = ask("summary", **DAY).json()

    assert (found["requests"], found["errors"], found["client_gone"]) == (3, 1, 1)
    assert found["error_rate"] == 0.333333
    assert found["cost_usd"] == "0.0015"
    assert found["cost_delta_pct"] == 100.0
    assert found["requests_delta_pct"] == 200.0
    assert found["active_keys"] == 1
    assert found["cache_hit_rate"] == 0.909091


def test_percentiles_are_within_five_per_cent_of_the_truth(ask):
    for n in range(1, 101):
        cast.record(closing={"ttft_ms": n * 10.0, "total_ms": n * 100.0})

    (row,) = ask("latency", by="team", **DAY).json()["data"]

    assert row["value"] == "platform"
    assert row["ttft_ms"]["count"] == 100
    for name, truth in (("p50", 500), ("p95", 950), ("max", 1000)):
        assert abs(row["ttft_ms"][name] - truth) <= truth * 0.05
        assert abs(row["total_ms"][name] - truth * 10) <= truth * 0.5


def test_a_timeseries_has_every_bucket(ask):
    cast.record(at=cast.NOON)
    cast.record(at=cast.NOON + timedelta(hours=2), team="research")

    found = ask("timeseries", bucket="1h", by="team", metric="requests,error_rate", **DAY).json()

    assert len(found["starting_at"]) == 24
    requests = {one["by"]: one["points"] for one in found["series"] if one["metric"] == "requests"}
    assert {team: points.index(1) for team, points in requests.items()} == {
        "platform": 12,
        "research": 14,
    }
    rates = [one["points"] for one in found["series"] if one["metric"] == "error_rate"]
    assert rates[0][0] is None  # no requests have no rate


def known(points):
    """Their sum; None where a minute has requests and nothing is known of any of them."""
    return sum(p for p in points if p) if None not in points or any(points) else None


@pytest.mark.parametrize("by", [None, *sorted(DIMENSIONS)])
def test_minutes_add_up_to_quarters(ask, by):
    ci, _ = cast.key("ci", user=cast.staff("ben"))
    cast.price()
    for seconds in (0, 59, 60, 900):
        cast.record(key=ci, at=cast.NOON + timedelta(seconds=seconds))
    cast.record(team="research", at=cast.NOON, closing={"outcome": "upstream_error", "usage": {}})
    asked = {"from": "2026-11-20T12:00Z", "to": "2026-11-20T12:30Z"}
    asked |= {"metric": "requests,errors,total_tokens,tool_calls"} | ({"by": by} if by else {})

    minutes = ask("timeseries", bucket="1m", **asked).json()
    quarters = ask("timeseries", bucket="15m", **asked).json()

    assert len(minutes["starting_at"]) == 30
    assert minutes["starting_at"][1] == "2026-11-20T12:01:00Z"
    assert [
        {**one, "points": [known(one["points"][:15]), known(one["points"][15:])]}
        for one in minutes["series"]
    ] == quarters["series"]


def test_minutes_are_for_a_day_at_most(ask):
    day = ask("timeseries", bucket="1m", **DAY)
    more = ask("timeseries", bucket="1m", **DAY | {"to": "2026-11-21T00:15Z"})

    assert len(day.json()["starting_at"]) == 1440
    assert more.status_code == 400
    assert "bucket: 1m is for a day at most" in more.json()["error"]["message"]


def called(*names):
    return cast.answer_body(
        *(
            {"type": "tool_use", "id": f"t{n}", "name": name, "input": {}}
            for n, name in enumerate(names)
        )
    )


def test_the_top_tools_are_those_of_most_requests(ask):
    cast.price()
    for names in (("Read",), ("Read", "Bash"), ("Edit", "Edit"), ()):
        told = {"tool_calls": len(names), "tool_names": sorted(set(names))}
        cast.record(answer=called(*names), closing=told)

    found = ask("top", by="tool", metric="requests", limit=1, **DAY).json()
    (edit,) = (row for row in ask("top", by="tool", **DAY).json()["data"] if row["value"] == "Edit")

    first, other = found["data"]
    assert (first["value"], first["requests"], first["share"]) == ("Read", 2, 0.5)
    assert (other["is_other"], other["requests"]) == (True, 2)
    assert (edit["tool_calls"], edit["cost_usd"], edit["cost_estimated_usd"]) == (
        2,
        "0.00075",
        None,
    )


def test_the_top_tools_are_for_a_month_at_most_and_of_the_callers_team(ask, client):
    cast.record(answer=called("Read"), closing={"tool_calls": 1, "tool_names": ["Read"]})
    secret = cast.key("board", of="research", scopes=["reports"])[1]
    asked = {"by": "tool", **DAY}

    foreign = client.get("/api/v1/top/", asked, headers={"x-api-key": secret}).json()
    longer = ask("top", **asked | {"from": "2026-10-01"})

    assert foreign["data"] == []
    assert longer.status_code == 400
    assert longer.json()["error"]["message"] == "by: tool is for 31 days at most"


@pytest.mark.parametrize("to", ["2026-11-21", "2026-11-20T18:00:00Z"], ids=["a day", "a part"])
@pytest.mark.parametrize("model", [None, "claude-opus-4-1"])
def test_the_top_sessions_are_those_that_weigh_most(ask, to, model):
    cast.price()
    for session, count in (("s-1", 2), ("s-2", 1), ("", 1)):
        for _ in range(count):
            cast.record(
                opening={"session_id": session}, body=cast.request_body(model="claude-opus-4-1")
            )
    asked = {"by": "session", "from": "2026-11-20", "to": to} | ({"model": model} if model else {})

    rows = ask("top", **asked).json()["data"]

    assert [(row["value"], row["requests"], row["share"]) for row in rows] == [
        ("s-1", 2, 0.5), ("", 1, 0.25), ("s-2", 1, 0.25),
    ]  # fmt: skip
    assert rows[0]["cost_usd"] == "0.0015"


def test_the_top_sessions_are_for_a_month_at_most(ask):
    answer = ask("top", by="session", **{"from": "2026-10-01", "to": "2026-11-21"})

    assert answer.json()["error"]["message"] == "by: session is for 31 days at most"


def test_errors_by_type_are_those_by_error_type(ask):
    cast.record(closing={"outcome": "upstream_error", "status": 502, "error_type": "api_error"})

    assert ask("errors", by="type", **DAY).json()["data"] == ask("errors", **DAY).json()["data"]


def test_a_number_out_of_bounds_is_told_with_its_bound(ask):
    few, many = ask("top", limit=0, **DAY), ask("requests", limit=1001, **DAY)

    assert few.json()["error"]["message"] == "limit: 0 is too little; 1 or more is expected"
    assert many.json()["error"]["message"] == "limit: 1001 is too much; 1000 or less is expected"


def test_latency_tells_how_fast_upstreams_write(ask):
    for ms in (1_000.0, 3_000.0):
        cast.record(closing={"upstream_ms": ms})  # 50 tokens each
    cast.record(team="research", closing={"upstream_ms": None})

    rows = {row["value"]: row for row in ask("latency", by="team", **DAY).json()["data"]}

    assert rows["platform"]["output_tokens_per_upstream_s"] == pytest.approx(25, rel=0.05)
    assert rows["research"]["output_tokens_per_upstream_s"] is None


CACHED = {"input": 10, "output": 1, "cache_read": 1_000_000, "source": "reported"}


def test_the_cache_report_tells_what_was_saved(ask):
    cast.price()  # 1.25 a million, 0.125 from the cache
    cast.record(closing={"usage": CACHED})
    cast.record(closing={"usage": CACHED | {"cache_read": 0}})

    (row,) = ask("cache", **DAY).json()["data"]

    assert (row["saved_usd"], row["saved_is_partial"]) == ("1.125", False)


def test_saving_goes_by_the_prices_of_each_day_and_is_less_where_writing_costs_more(ask):
    dearer = cast.price()
    dearer.pk, dearer.since = None, date(2026, 11, 21)
    dearer.input, dearer.cache_write_5m = Decimal("2.25"), Decimal("3.25")
    dearer.save()
    written = {"input": 10, "output": 1, "cache_write_5m": 2_000_000, "source": "reported"}
    cast.record(closing={"usage": CACHED})
    cast.record(closing={"usage": written}, at=cast.NOON + timedelta(days=1))

    (both,) = ask("cache", **DAY | {"to": "2026-11-22"}).json()["data"]
    (loss,) = ask("cache", **{"from": "2026-11-21", "to": "2026-11-22"}).json()["data"]

    assert (both["saved_usd"], loss["saved_usd"]) == ("-0.875", "-2")


def test_what_has_no_price_saved_nobody_knows_what(ask):
    cast.record(closing={"usage": CACHED})
    (unknown,) = ask("cache", **DAY).json()["data"]
    cast.price()
    cast.record(closing={"usage": CACHED, "model_upstream": "unpriced"})

    (partly,) = ask("cache", **DAY).json()["data"]

    assert (unknown["saved_usd"], unknown["saved_is_partial"]) == (None, True)
    assert (partly["saved_usd"], partly["saved_is_partial"]) == ("1.125", True)


def test_the_top_has_the_rest_as_one_row_and_shares_add_up(ask):
    for team, count in (("a", 3), ("b", 2), ("c", 1), ("d", 1)):
        for _ in range(count):
            cast.record(team=team)

    rows = ask("top", by="team", metric="requests", limit=2, **DAY).json()["data"]

    assert [(row["value"], row["requests"], row["is_other"]) for row in rows] == [
        ("a", 3, False),
        ("b", 2, False),
        (None, 2, True),
    ]
    assert sum(row["share"] for row in rows) == pytest.approx(1, abs=1e-5)


def test_clients_that_left_are_no_errors(ask):
    cast.record(closing={"outcome": "client_gone"})
    cast.record(
        closing={"outcome": "upstream_timeout", "status": 504, "error_type": "timeout_error"}
    )

    rows = {row["value"]: row for row in ask("errors", by="outcome", **DAY).json()["data"]}

    assert (rows["client_gone"]["errors"], rows["client_gone"]["client_gone"]) == (0, 1)
    assert rows["upstream_timeout"]["error_rate"] == 1.0


def test_the_cache_rate_is_of_all_prompt_tokens(ask):
    cast.record(
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

    (row,) = ask("cache", **DAY).json()["data"]

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
def test_lists_leave_as_csv_and_ndjson(ask, route, kind):
    cast.record(opening={"session_id": "s"})
    cast.record(closing={"outcome": "upstream_error", "error_type": "api_error"})
    Budget.objects.create(team=cast.team(), usd=5)

    answer = ask(route, format=kind, **({} if route == "budgets" else DAY))
    lines = answer.content.decode().splitlines()

    assert answer["Content-Disposition"] == f'attachment; filename="{route}.{kind}"'
    assert len(lines) >= (2 if kind == "csv" else 1)


def test_a_budget_says_what_is_left_and_when_it_turns(ask):
    cast.price()
    ci, _ = cast.key("ci")
    today = now().astimezone(ZoneInfo("Asia/Kathmandu")).replace(hour=0, minute=0, second=0)
    cast.record(key=ci, at=max(now() - timedelta(minutes=1), today.astimezone(UTC)))
    soft = Budget.objects.create(
        key=ci, usd="0.001", period="day", zone="Asia/Kathmandu", hard=False
    )

    (row,) = ask("budgets").json()["data"]
    alone = ask(f"budgets/{soft.pk}/status").json()

    assert (row["spent_usd"], row["limit_usd"], row["left_usd"]) == ("0.00075", "0.001", "0.00025")
    assert row["owner"] == "key:platform/ci"
    assert row["resets_at"].endswith("18:15:00Z")
    assert alone["id"] == f"budget_{soft.pk}"
    assert alone["state"] == "ok"


@pytest.mark.parametrize("ident", ["budget_{}", "{}", "budget_0{}"])
def test_a_budget_is_found_by_the_id_that_the_list_has(ask, ident):
    budget = Budget.objects.create(team=cast.team(), usd=9)

    (row,) = ask("budgets").json()["data"]
    one = ask(f"budgets/{ident.format(budget.pk)}/status").json()

    assert row["id"] == one["id"] == f"budget_{budget.pk}"


@pytest.mark.parametrize("ident", ["budget_", "budget_-1", "soft", "9" * 19, "1" * 5000, "²"])
def test_what_is_no_budgets_id_is_not_found(ask, ident):
    assert ask(f"budgets/{ident}/status").status_code == 404


def test_me_shows_an_ordinary_key_its_own_use_and_budgets(client):
    mine, secret = cast.key("mine", limits={"rpm": 5})
    other, _ = cast.key("other")
    Budget.objects.create(team=mine.team, usd=9)
    Budget.objects.create(key=other, usd=1)
    cast.record(key=mine, at=now() - timedelta(minutes=1))
    cast.record(key=other, at=now() - timedelta(minutes=1))

    found = client.get("/api/v1/me", headers={"x-api-key": secret}).json()

    assert (found["name"], found["team"], found["limits"]) == ("mine", "platform", {"rpm": 5})
    assert [budget["limit_usd"] for budget in found["budgets"]] == ["9"]
    assert found["this_month"]["requests"] == 1 or now().minute == 0


def test_every_view_and_its_columns_are_in_the_schema(client):
    schema = client.get("/api/v1/schema/").json()
    page = client.get("/api/v1/docs/").content.decode()

    from proxy.reports.catalogue import VIEWS

    paths = {path.replace("{", "<str:").replace("}", ">") for path in schema["paths"]}
    ours = {path for path in paths if path.startswith("/api/v1/")}
    assert {f"/api/v1/{re.sub('<[a-z]+:', '<str:', route)}/" for route in VIEWS} == ours
    assert "/v1/organizations/usage_report/messages" in paths
    assert "cost_is_floor" in schema["components"]["schemas"]["UsageRow"]["properties"]
    assert "cost_is_floor" in page
