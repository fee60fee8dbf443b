"""Exact values of rate limits, with a fixed clock and without a gateway."""

import time
from types import SimpleNamespace

import pytest

from proxy.gateway.admission import rate_limits
from proxy.gateway.admission.rate_limits import (
    Bucket,
    ConcurrencySlot,
    Limiter,
    LimitState,
    rate_limit_headers,
    take_slot,
)
from proxy.gateway.http.errors import HttpError
from proxy.gateway.snapshot.config_snapshot import Caller, Limits, ModelAllowList, TeamEntry

NOW = 1_000.0  # monotonic
REQUESTS, TOKENS = "anthropic-ratelimit-requests", "anthropic-ratelimit-tokens"


@pytest.fixture(autouse=True)
def midnight(monkeypatch):
    """Fix Unix time at zero, so that a reset time is a number of seconds."""
    # Headers have the time of day, which is not an argument.
    clock = SimpleNamespace(time=lambda: 0.0, monotonic=time.monotonic)
    monkeypatch.setattr(rate_limits, "time", clock)


def limit_state(requests=None, tokens=None, running=0, elsewhere=0) -> LimitState:
    """Return a state; each bucket is given as its size and the remaining units."""
    pair = (each and Bucket(*each, NOW) for each in (requests, tokens))
    return LimitState("key k", running, elsewhere, *pair)


@pytest.mark.parametrize(
    ("state", "limit", "estimate", "expected", "headers"),
    [
        (
            {"running": 1, "elsewhere": 2}, Limits(concurrency=3), 0,
            "concurrency 3, used 3; try again in 1 s, at 00:00:01Z", {},
        ),
        (
            {"requests": (2, 0.5)}, Limits(rpm=2), 0,
            "rpm 2, used 2; try again in 15 s, at 00:00:15Z",
            {"limit": "2", "remaining": "0", "reset": "1970-01-01T00:00:45Z"},
        ),
        (
            {"requests": (6_000, 0.5)}, Limits(rpm=6_000), 0,
            "rpm 6000, used 6000; try again in 1 s, at 00:00:01Z",  # at least 1 s
            {"limit": "6000", "remaining": "0", "reset": "1970-01-01T00:00:59Z"},
        ),
        (
            {"tokens": (600, 40)}, Limits(tpm=600), 60,
            "tpm 600, used 560; try again in 2 s, at 00:00:02Z",
            {"limit": "600", "remaining": "40", "reset": "1970-01-01T00:00:56Z"},
        ),
        (
            {"tokens": (600, -60.0)}, Limits(tpm=600), 5_000,  # larger than the bucket: waits for a full one
            "tpm 600, used 660; try again in 66 s, at 00:01:06Z",
            {"limit": "600", "remaining": "0", "reset": "1970-01-01T00:01:06Z"},
        ),
    ],
)  # fmt: skip
def test_a_refusal_has_all_its_values(state, limit, estimate, expected, headers):
    detail = expected.partition(" ")[0]
    full = limit_state(**state)
    before = full.running

    with pytest.raises(HttpError) as caught:
        take_slot([(full, limit)], estimate, NOW)

    refusal = caught.value
    kind = TOKENS if detail == "tpm" else REQUESTS
    seconds = expected.partition("again in ")[2].split()[0]
    assert (refusal.status, refusal.error_type, refusal.detail) == (429, "rate_limit_error", detail)
    assert refusal.message == f"key k is at its limit: {expected}"
    assert refusal.headers == {
        "retry-after": seconds, **{f"{kind}-{field}": text for field, text in headers.items()}
    }  # fmt: skip
    assert full.running == before


@pytest.mark.parametrize(
    ("state", "limit", "estimate"),
    [
        ({"running": 1, "elsewhere": 1}, Limits(concurrency=3), 0),
        ({"requests": (2, 1.0)}, Limits(rpm=2), 0),
        ({"tokens": (600, 60.0)}, Limits(tpm=600), 60),
        ({"tokens": (600, 600.0)}, Limits(tpm=600), 5_000),
    ],
)
def test_exactly_enough_units_admit_a_request(state, limit, estimate):
    just = limit_state(**state)
    before = just.running

    take_slot([(just, limit)], estimate, NOW)

    assert just.running == before + 1
    assert [bucket.left for bucket in (just.requests, just.tokens) if bucket] == (
        [state["tokens"][1] - estimate] if "tokens" in state else [0.0] * ("requests" in state)
    )


def test_the_headers_are_of_the_bucket_with_the_smallest_share_left():
    key, team = (
        limit_state(requests=(10, 5.5)),
        limit_state(requests=(100, 20.0), tokens=(60, 60.0)),
    )

    assert rate_limit_headers((key, team)) == (
        (b"anthropic-ratelimit-requests-limit", b"100"),
        (b"anthropic-ratelimit-requests-remaining", b"20"),
        (b"anthropic-ratelimit-requests-reset", b"1970-01-01T00:00:48Z"),
        (b"anthropic-ratelimit-tokens-limit", b"60"),
        (b"anthropic-ratelimit-tokens-remaining", b"60"),
        (b"anthropic-ratelimit-tokens-reset", b"1970-01-01T00:00:00Z"),
    )


@pytest.mark.parametrize(
    ("rpm", "size", "left"), [(60, 60, 40.0), (30, 30, 30), (None, None, None)]
)
def test_a_changed_limit_has_a_full_bucket_and_an_unchanged_one_refills(rpm, size, left):
    changed = limit_state(requests=(60, 10.0))

    changed.apply_limits(Limits(rpm=rpm), NOW + 30)

    bucket = changed.requests
    assert (bucket and bucket.size, bucket and bucket.left) == (size, left)
    assert bucket is None or bucket.at == NOW + 30


def test_a_slot_is_settled_once_and_not_by_an_unknown_usage():
    key, team = limit_state(tokens=(600, 100.0)), limit_state()
    slot = ConcurrencySlot((key, team), estimate=80)

    for used in (None, 50, 10):
        slot.settle(used)

    assert key.tokens.left == 130
    assert slot.settled


def caller_with(key_limits: Limits, team_limits: Limits) -> Caller:
    team = TeamEntry(name="t", store_full=True, models=ModelAllowList(), limits=team_limits)
    return Caller(
        key_id=1, key_name="k", meter="t/k", team=team, user="", scopes=frozenset(), models=ModelAllowList(),
        limits=key_limits, ip_allow=(), strict=False, events=frozenset(),
    )  # fmt: skip


def test_a_caller_without_limits_is_only_counted():
    caller = caller_with(rate_limits.NO_LIMITS, rate_limits.NO_LIMITS)
    limiter = Limiter()

    slots = [limiter.acquire(caller, 9) for _ in range(3)]

    key, team = slots[0].states
    assert (key.name, team.name) == ("key t/k", "team t")
    assert all(slot.settled and slot.headers == () for slot in slots)
    assert all(slot.states == (key, team) for slot in slots)
    assert (key.running, team.running, key.requests, team.tokens) == (3, 3, None, None)
    slots[0].release()
    assert (key.running, team.running) == (2, 2)


def test_peek_creates_and_changes_no_state():
    caller = caller_with(Limits(rpm=5), Limits(tpm=60))
    limiter = Limiter()

    assert limiter.peek(caller) == (LimitState("key t/k"), LimitState("team t"))
    slot = limiter.acquire(caller, 9)
    key, team = limiter.peek(caller)
    assert (key, team) == slot.states
    key.requests.left = team.tokens.left = team.running = 0
    assert [bucket.left for bucket in (slot.states[0].requests, slot.states[1].tokens)] == [4, 51]
    assert slot.states[1].running == 1
    assert limiter.acquire(caller, 0).states == slot.states
