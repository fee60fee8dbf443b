"""Exact values of rate limits, with a fixed clock and without a gateway."""

import time
from types import SimpleNamespace

import pytest

from proxy.counters.memory_store import MemoryStore
from proxy.counters.store import Standing
from proxy.gateway.admission import rate_limits
from proxy.gateway.admission.rate_limits import (
    Concurrency,
    ConcurrencySlot,
    Limit,
    Limiter,
    Requests,
    Tokens,
    limits_of,
    rate_limit_headers,
)
from proxy.gateway.snapshot.config_snapshot import Caller, Limits, ModelAllowList, TeamEntry
from tests.fakes.clock import Clock

REQUESTS, TOKENS = "anthropic-ratelimit-requests", "anthropic-ratelimit-tokens"


@pytest.fixture(autouse=True)
def midnight(monkeypatch):
    """Fix Unix time at zero, so that a reset time is a number of seconds."""
    # Headers have the time of day, which is not an argument.
    clock = SimpleNamespace(time=lambda: 0.0, monotonic=time.monotonic)
    monkeypatch.setattr(rate_limits, "time", clock)


def limit(kind: type[Limit], size: int, units: int = 1) -> Limit:
    return kind("key", "key k", "limit 1 key 1", size, units)


def left(size: int, units: float) -> Standing:
    """Return the values of a bucket with these units left."""
    return Standing(spent=round((size - units) * 60_000_000 / size))


@pytest.mark.parametrize(
    ("check", "standing", "expected", "headers"),
    [
        (
            limit(Concurrency, 3), Standing(reserved=3),
            "concurrency 3, used 3; try again in 1 s, at 00:00:01Z", {},
        ),
        (
            limit(Requests, 2), left(2, 0.5),
            "rpm 2, used 2; try again in 15 s, at 00:00:15Z",
            {"limit": "2", "remaining": "0", "reset": "1970-01-01T00:00:45Z"},
        ),
        (
            limit(Requests, 6_000), left(6_000, 0.5),
            "rpm 6000, used 6000; try again in 1 s, at 00:00:01Z",  # at least 1 s
            {"limit": "6000", "remaining": "0", "reset": "1970-01-01T00:00:59Z"},
        ),
        (
            limit(Tokens, 600, 60), left(600, 40),
            "tpm 600, used 560; try again in 2 s, at 00:00:02Z",
            {"limit": "600", "remaining": "40", "reset": "1970-01-01T00:00:56Z"},
        ),
        (
            limit(Tokens, 600, 5_000), left(600, -60),  # larger than the bucket: waits for a full one
            "tpm 600, used 660; try again in 66 s, at 00:01:06Z",
            {"limit": "600", "remaining": "0", "reset": "1970-01-01T00:01:06Z"},
        ),
    ],
)  # fmt: skip
def test_a_refusal_has_all_its_values(check: Limit, standing: Standing, expected, headers):
    detail = expected.partition(" ")[0]
    assert not check.take.fits(standing)

    refusal = check.error(standing)

    kind = TOKENS if detail == "tpm" else REQUESTS
    seconds = expected.partition("again in ")[2].split()[0]
    assert (refusal.status, refusal.error_type, refusal.detail) == (429, "rate_limit_error", detail)
    assert refusal.message == f"key k is at its limit: {expected}"
    assert refusal.headers == {
        "retry-after": seconds, **{f"{kind}-{field}": text for field, text in headers.items()}
    }  # fmt: skip


@pytest.mark.parametrize(
    ("check", "standing"),
    [
        (limit(Concurrency, 3), Standing(reserved=2)),
        (limit(Requests, 2), left(2, 1.0)),
        (limit(Tokens, 600, 60), left(600, 60.0)),
        (limit(Tokens, 600, 5_000), left(600, 600.0)),
    ],
)
def test_exactly_enough_units_admit_a_request(check: Limit, standing: Standing):
    assert check.take.fits(standing)
    more = Standing(spent=standing.spent + 1, reserved=standing.reserved + 1)
    assert not check.take.fits(more)


def test_the_headers_are_of_the_bucket_with_the_smallest_share_left():
    found = [
        (limit(Requests, 10), left(10, 5.5)),
        (limit(Requests, 100), left(100, 20.0)),
        (limit(Tokens, 60), left(60, 60.0)),
    ]

    assert rate_limit_headers(found) == (
        (b"anthropic-ratelimit-requests-limit", b"100"),
        (b"anthropic-ratelimit-requests-remaining", b"20"),
        (b"anthropic-ratelimit-requests-reset", b"1970-01-01T00:00:48Z"),
        (b"anthropic-ratelimit-tokens-limit", b"60"),
        (b"anthropic-ratelimit-tokens-remaining", b"60"),
        (b"anthropic-ratelimit-tokens-reset", b"1970-01-01T00:00:00Z"),
    )


def caller_with(key_limits: Limits, team_limits: Limits) -> Caller:
    team = TeamEntry(name="t", store_full=True, models=ModelAllowList(), limits=team_limits)
    return Caller(
        key_id=1, key_name="k", meter="t/k", team=team, user="", scopes=frozenset(), models=ModelAllowList(),
        limits=key_limits, ip_allow=(), strict=False, events=frozenset(),
    )  # fmt: skip


def used(limiter: Limiter, key_limits: Limits, team_limits: Limits) -> list[float]:
    checks = limits_of(caller_with(key_limits, team_limits), 0, "")
    return [
        round(check.used(standing), 4)
        for check, standing in zip(checks, limiter.peek(checks), strict=True)
    ]


def test_a_changed_limit_has_a_full_bucket_and_an_unchanged_one_refills():
    clock = Clock(0.0)
    limiter = Limiter(MemoryStore(clock))
    for _ in range(50):
        limiter.acquire(caller_with(Limits(rpm=60), rate_limits.NO_LIMITS), 0)

    clock.at = 30.0

    assert used(limiter, Limits(rpm=60), Limits(rpm=30)) == [20, 0]
    assert used(limiter, Limits(rpm=30), Limits()) == [0]


def test_a_slot_is_settled_once_and_not_by_an_unknown_usage():
    limiter = Limiter(MemoryStore(lambda: 0.0))
    both = Limits(tpm=600), Limits(concurrency=3)
    slot = limiter.acquire(caller_with(*both), 80)

    for tokens in (None, 50, 10):
        slot.settle(tokens)

    assert slot.settled
    assert used(limiter, *both) == [50, 1]
    slot.release()
    assert used(limiter, *both) == [50, 0]


def test_usage_above_the_estimate_is_paid_off_from_the_start_of_the_request():
    clock = Clock(0.0)
    limiter = Limiter(MemoryStore(clock))
    sender = Limits(tpm=1_000), rate_limits.NO_LIMITS
    slot = limiter.acquire(caller_with(*sender), 100)
    clock.at = 30.0

    slot.settle(900)

    assert used(limiter, *sender) == [400]


def test_a_caller_without_limits_takes_nothing():
    limiter = Limiter()
    caller = caller_with(rate_limits.NO_LIMITS, rate_limits.NO_LIMITS)

    slots = [limiter.acquire(caller, 9) for _ in range(3)]

    assert all(slot.settled and slot.headers == () for slot in slots)
    assert isinstance(slots[0], ConcurrencySlot)
    slots[0].release()


def test_peek_creates_and_changes_no_state():
    limiter = Limiter(MemoryStore(lambda: 0.0))
    both = Limits(rpm=5), Limits(tpm=60)

    assert used(limiter, *both) == [0, 0]
    limiter.acquire(caller_with(*both), 9)
    assert used(limiter, *both) == used(limiter, *both) == [1, 9]
