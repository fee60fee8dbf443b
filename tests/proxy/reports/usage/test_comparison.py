"""GET /api/v1/comparison/: models side by side, and the change since the previous period."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from proxy.reports.core.time_ranges import TimeRange
from proxy.reports.usage import metrics, reports
from proxy.reports.usage.reports import period_before
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db
DAY = {"from": "2026-11-20", "to": "2026-11-21"}


@pytest.fixture
def read(client):
    _, secret = factories.key("finance", scopes=["admin"])

    def read(**query: Any) -> Any:
        answer = client.get("/api/v1/comparison/", {**DAY, **query}, headers={"x-api-key": secret})
        assert answer.status_code == 200, answer.content
        return answer

    return read


def record(model: str = "claude-opus-5-5", days: int = 0, **closing: Any) -> None:
    factories.record(
        at=factories.NOON + timedelta(days=days),
        opening={"model_requested": model},
        closing={"upstream_ms": 8000.0, **closing},
    )


def test_a_row_has_the_cost_the_speed_and_the_cut_answers_of_a_model(read) -> None:
    factories.price()
    record()
    record(stop_reason="max_tokens")
    record("claude-haiku", outcome="upstream_error", status=502, usage={}, stop_reason="")

    opus, haiku = read().json()["data"]

    assert (opus["value"], opus["requests"], opus["cut_answers"]) == ("claude-opus-5-5", 2, 1)
    assert (opus["cut_rate"], opus["error_rate"]) == (0.5, 0)
    assert (opus["input_tokens"], opus["output_tokens"]) == (2200, 100)
    assert float(opus["cost_per_request_usd"]) == float(opus["cost_usd"]) / 2 > 0
    million = float(opus["cost_usd"]) * 1_000_000 / 2300
    assert float(opus["cost_per_million_tokens_usd"]) == pytest.approx(million, rel=1e-6)
    assert opus["ttft_p50_ms"] == pytest.approx(900, rel=0.05)
    assert opus["output_tokens_per_upstream_s"] == pytest.approx(100 / 16, rel=0.05)
    assert (haiku["error_rate"], haiku["cost_per_million_tokens_usd"]) == (1, None)
    assert haiku["output_tokens"] is None


def test_a_model_that_is_recorded_while_the_report_reads_is_left_out(read, monkeypatch) -> None:
    record()

    def read_groups(reader: Any, period: TimeRange, *args: Any) -> Any:
        groups = metrics.read_groups(reader, period, *args)
        if groups:
            record("claude-new", stop_reason="max_tokens")
        return groups

    monkeypatch.setattr(reports, "read_groups", read_groups)

    assert [row["value"] for row in read().json()["data"]] == ["claude-opus-5-5"]


def test_unknown_prices_are_not_zero(read) -> None:
    record()

    (row,) = read().json()["data"]

    assert row["unpriced_requests"] == 1
    assert row["cost_usd"] is row["cost_per_request_usd"] is None
    assert row["cost_per_million_tokens_usd"] is None


def test_changes_compare_with_the_period_before(read) -> None:
    for _ in range(3):
        record()
    record(days=-1)
    record(days=-1, stop_reason="max_tokens", ttft_ms=450.0)
    record("claude-haiku")

    answer = read().json()

    opus, haiku = answer["data"]
    assert answer["previous_from"] == "2026-11-19T00:00:00Z"
    assert (opus["requests_delta_pct"], opus["cut_rate_delta_pct"]) == (50, -100)
    assert haiku["requests_delta_pct"] is None
    assert opus["cost_delta_pct"] is None


def test_csv_and_other_dimensions(read) -> None:
    record(stop_reason="max_tokens")
    record()

    rows = read(by="client").json()["data"]
    reasons = {row["value"]: row["cut_answers"] for row in read(by="stop_reason").json()["data"]}
    header, line, *rest = b"".join(read(format="csv")).decode().splitlines()

    assert [(row["value"], row["requests"]) for row in rows] == [("claude-cli", 2)]
    assert reasons == {"end_turn": 0, "max_tokens": 1}
    assert header.startswith("value,requests,")
    assert (line.split(",")[:2], rest) == (["claude-opus-5-5", "2"], [])


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("start", "end", "before"),
    [
        ((2026, 11, 1), (2026, 12, 1), (2026, 10, 1)),
        ((2026, 1, 1), (2026, 4, 1), (2025, 10, 1)),
        ((2026, 11, 2), (2026, 11, 9), (2026, 10, 26)),
    ],
)
def test_whole_months_are_compared_with_whole_months(start, end, before) -> None:
    edges = [datetime(*day, tzinfo=BERLIN).astimezone(UTC) for day in (start, end)]

    found = period_before(TimeRange(edges, "all", BERLIN))

    assert found.end == edges[0]
    assert found.start.astimezone(BERLIN).date() == datetime(*before, tzinfo=BERLIN).date()
