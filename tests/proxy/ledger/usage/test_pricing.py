"""Costs are exact integers; unknown costs are None."""

from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.ledger.usage.pricing import (
    PriceList,
    charge_of,
    cost_of,
    estimated_attempts_cost,
    failed_attempts_cost,
    name_of_usage,
    source_of,
    variant_of,
)
from proxy.models import Price, Upstream
from proxy.money import usd
from tests.for_each import for_each

PRICE = {"input": "1.25", "output": "10", "cache_read": "0.125", "cache_write_5m": None,
         "cache_write_1h": "2.5"}  # fmt: skip


def test_each_class_has_its_price_and_a_missing_cache_price_is_the_input_price() -> None:
    usage = {"input": 3, "output": 5, "cache_read": 7, "cache_write_5m": 11, "cache_write_1h": 13}

    cost = cost_of(usage | {"source": "reported"}, PRICE)

    assert cost is not None
    assert cost.parts == {
        "input": 3750,
        "output": 50_000,
        "cache_read": 875,
        "cache_write_5m": 13_750,
        "cache_write_1h": 32_500,
    }
    assert cost.total == sum(cost.parts.values())
    assert cost.estimated == 0


@for_each("usage", [{}, {"input": 5}, {"output": 5}, {"input": None, "output": 1}])
def test_unknown_tokens_have_no_cost(usage: dict) -> None:
    assert cost_of(usage, PRICE) is None


def test_without_a_price_the_cost_is_unknown_and_not_zero() -> None:
    assert cost_of({"input": 1, "output": 1}, None) is None


FAILED = [
    {"upstream": "a", "usage": {"source": "reported"}, "cost_nanousd": 30},
    {"upstream": "b", "usage": {"source": "reported", "output_source": "estimated"},
     "cost_nanousd": 400},
    {"upstream": "c"},
]  # fmt: skip


def test_failed_attempts_are_added_to_the_cost() -> None:
    usage = {"input": 1, "output": 1, "source": "reported"}

    assert (failed_attempts_cost(FAILED), estimated_attempts_cost(FAILED)) == (430, 400)
    assert charge_of(usage, PRICE, FAILED) == 11_250 + 430
    assert charge_of(usage, PRICE) == 11_250
    assert charge_of(usage, None, FAILED) == charge_of({}, PRICE, FAILED) == 430


@for_each("attempts", [(), FAILED[2:]])
def test_without_a_known_cost_the_total_is_unknown_and_not_zero(attempts) -> None:
    assert charge_of({}, PRICE, attempts) is None
    assert charge_of({"input": 1, "output": 1}, {"input": "0", "output": "0"}, attempts) == 0


def test_a_free_model_costs_zero() -> None:
    free = cost_of({"input": 1, "output": 1}, {"input": "0", "output": "0"})

    assert free is not None
    assert free.total == 0


def test_the_estimated_part_of_a_cost_is_separate() -> None:
    usage = {"input": 10, "output": 10, "source": "reported", "output_source": "estimated"}

    cost = cost_of(usage, PRICE)

    assert cost is not None
    assert (cost.total, cost.estimated) == (112_500, 100_000)
    assert [source_of(usage, n) for n in ("input", "output", "reasoning")] == [
        "reported",
        "estimated",
        "missing",
    ]


@given(st.integers(min_value=0, max_value=2**62))
def test_dollars_are_exact_decimals(nano: int) -> None:
    text = usd(nano)

    assert Decimal(text) * 10**9 == nano


@pytest.mark.django_db
def test_the_newest_price_of_the_day_applies_and_that_of_the_upstream_wins() -> None:
    openai = Upstream.objects.create(name="openai", dialect="responses", base_url="https://x.test")
    for upstream, since, usd_in in (
        (None, "2026-01-01", "1"),
        (None, "2026-06-01", "2"),
        (openai, "2026-03-01", "3"),
    ):
        Price.objects.create(upstream=upstream, model="m", since=since, input=usd_in, output="1")
    prices = PriceList.load()

    def price_on(upstream: str, day: str) -> str | None:
        price = prices.at(upstream, "m", date.fromisoformat(day))
        return price and str(Decimal(price["input"]).normalize())

    assert price_on("azure", "2025-12-31") is None
    assert price_on("azure", "2026-05-31") == "1"
    assert price_on("azure", "2026-06-01") == "2"
    assert price_on("openai", "2026-02-01") == "1"
    assert price_on("openai", "2026-07-01") == "3"
    assert prices.at("openai", "other", date(2026, 7, 1)) is None


DAY = date(2026, 3, 1)
VARIANTS = {
    "1": {},
    "2": {"speed": "fast"},
    "3": {"service_tier": "flex"},
    "4": {"inference_geo": "us"},
    "5": {"speed": "fast", "inference_geo": "us"},
}
"""Input price -> the dimensions of its row."""
OPUS = PriceList(
    [
        *(
            Price(model="opus", since=date(2026, 1, 1), input=Decimal(usd), output=9, **dimensions)
            for usd, dimensions in VARIANTS.items()
        ),
        Price(model="opus", since=date(2026, 6, 1), input=7, output=9, service_tier="priority"),
        Price(model="haiku", since=date(2026, 1, 1), input=Decimal(8), output=9),
    ]
)


def iteration(kind: str, model: str | None = None) -> dict:
    return {"type": kind, "model": model, "input": 1, "output": 1}


COMPACTED = [iteration("compaction"), iteration("message")]
FELL_BACK = [iteration("fallback_message", "haiku")]
ADVISED = [iteration("message", "haiku"), iteration("advisor_message", "opus")]


@for_each(
    ("usage", "usd", "name"),
    [
        ({}, "1", "opus"),
        ({"service_tier": "standard", "speed": "standard", "inference_geo": "global"}, "1", "opus"),
        ({"inference_geo": "not_available"}, "1", "opus"),
        ({"speed": "fast", "service_tier": "standard"}, "2", "opus speed=fast"),
        ({"service_tier": "flex"}, "3", "opus service_tier=flex"),
        ({"inference_geo": "us"}, "4", "opus inference_geo=us"),
        ({"speed": "fast", "inference_geo": "us"}, "5", "opus speed=fast inference_geo=us"),
        # A variant without a price has no cost: another price would be a guess.
        ({"service_tier": "batch"}, None, "opus service_tier=batch"),
        ({"service_tier": "priority"}, None, "opus service_tier=priority"),  # priced from June
        ({"service_tier": "flex", "speed": "fast"}, None, "opus service_tier=flex speed=fast"),
        ({"iterations": COMPACTED}, "1", "opus"),
        ({"iterations": FELL_BACK}, "8", "haiku"),
        ({"iterations": ADVISED}, None, "haiku+opus"),
    ],
)
def test_each_tier_speed_and_region_has_its_own_price(usage, usd, name) -> None:
    price = OPUS.of_usage("any", "opus", DAY, usage)

    assert (price and price["input"]) == usd
    assert name_of_usage(usage, "opus") == name


@for_each(
    ("asked", "usd"),
    [
        ({}, {"1", "3", "4"}),
        ({"speed": "fast"}, {"2", "5"}),
        ({"inference_geo": "eu"}, {None, "1", "3", "4"}),
    ],
)
def test_the_worst_case_may_have_any_tier_or_region_but_only_the_speed_asked_for(asked, usd):
    found = OPUS.possible("any", "opus", DAY, variant_of(asked))

    assert {price and price["input"] for price in found} == usd
