"""The figures of limits, to the second and to the unit: no gateway, no machine that is busy."""

import pytest

from proxy.gateway import limits
from proxy.gateway.directory import Caller, Globs, Limits, TeamEntry
from proxy.gateway.limits import Bucket, Limiter, Meter, Seat, headers_of, take
from proxy.gateway.refusals import Refusal

NOW = 1_000.0  # monotonic
REQUESTS, TOKENS = "anthropic-ratelimit-requests", "anthropic-ratelimit-tokens"


@pytest.fixture(autouse=True)
def midnight(monkeypatch):
    """Unix time stands still at zero, so that a reset is a number of seconds."""
    monkeypatch.setattr(limits.time, "time", lambda: 0.0)


def meter(requests=None, tokens=None, running=0, elsewhere=0) -> Meter:
    """A bucket is its size and what is left of it."""
    pair = (each and Bucket(*each, NOW) for each in (requests, tokens))
    return Meter("key k", running, elsewhere, *pair)


@pytest.mark.parametrize(
    ("state", "limit", "asked", "told", "headers"),
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
            "rpm 6000, used 6000; try again in 1 s, at 00:00:01Z",  # never a second of nothing
            {"limit": "6000", "remaining": "0", "reset": "1970-01-01T00:00:59Z"},
        ),
        (
            {"tokens": (600, 40)}, Limits(tpm=600), 60,
            "tpm 600, used 560; try again in 2 s, at 00:00:02Z",
            {"limit": "600", "remaining": "40", "reset": "1970-01-01T00:00:56Z"},
        ),
        (
            {"tokens": (600, -60.0)}, Limits(tpm=600), 5_000,  # more than fits: a full one
            "tpm 600, used 660; try again in 66 s, at 00:01:06Z",
            {"limit": "600", "remaining": "0", "reset": "1970-01-01T00:01:06Z"},
        ),
    ],
)  # fmt: skip
def test_a_refusal_tells_all_its_figures(state, limit, asked, told, headers):
    detail = told.partition(" ")[0]
    full = meter(**state)
    before = full.running

    with pytest.raises(Refusal) as caught:
        take([(full, limit)], asked, NOW)

    refusal = caught.value
    kind = TOKENS if detail == "tpm" else REQUESTS
    seconds = told.partition("again in ")[2].split()[0]
    assert (refusal.status, refusal.error_type, refusal.detail) == (429, "rate_limit_error", detail)
    assert refusal.message == f"key k is at its limit: {told}"
    assert refusal.headers == {
        "retry-after": seconds, **{f"{kind}-{what}": text for what, text in headers.items()}
    }  # fmt: skip
    assert full.running == before


@pytest.mark.parametrize(
    ("state", "limit", "asked"),
    [
        ({"running": 1, "elsewhere": 1}, Limits(concurrency=3), 0),
        ({"requests": (2, 1.0)}, Limits(rpm=2), 0),
        ({"tokens": (600, 60.0)}, Limits(tpm=600), 60),
        ({"tokens": (600, 600.0)}, Limits(tpm=600), 5_000),
    ],
)
def test_what_is_just_enough_lets_in(state, limit, asked):
    just = meter(**state)
    before = just.running

    take([(just, limit)], asked, NOW)

    assert just.running == before + 1
    assert [bucket.left for bucket in (just.requests, just.tokens) if bucket] == (
        [state["tokens"][1] - asked] if "tokens" in state else [0.0] * ("requests" in state)
    )


def test_headers_are_of_the_meter_that_has_the_least_left_of_its_own():
    key, team = meter(requests=(10, 5.5)), meter(requests=(100, 20.0), tokens=(60, 60.0))

    assert headers_of((key, team)) == (
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
def test_a_limit_that_was_changed_begins_anew_and_one_that_was_not_refills(rpm, size, left):
    changed = meter(requests=(60, 10.0))

    changed.fit(Limits(rpm=rpm), NOW + 30)

    bucket = changed.requests
    assert (bucket and bucket.size, bucket and bucket.left) == (size, left)
    assert bucket is None or bucket.at == NOW + 30


def test_a_seat_is_settled_once_and_not_by_what_nobody_knows():
    key, team = meter(tokens=(600, 100.0)), meter()
    seat = Seat((key, team), estimate=80)

    for used in (None, 50, 10):
        seat.settle(used)

    assert key.tokens.left == 130
    assert seat.settled


def asking(of_key: Limits, of_team: Limits) -> Caller:
    team = TeamEntry(name="t", store_full=True, models=Globs(), limits=of_team)
    return Caller(
        key_id=1, key_name="k", meter="t/k", team=team, user="", scopes=frozenset(), models=Globs(),
        limits=of_key, ip_allow=(), strict=False, events=frozenset(),
    )  # fmt: skip


def test_who_has_no_limits_is_only_counted():
    caller = asking(limits.NO_LIMITS, limits.NO_LIMITS)
    limiter = Limiter()

    seats = [limiter.take(caller, 9) for _ in range(3)]

    key, team = seats[0].meters
    assert (key.name, team.name) == ("key t/k", "team t")
    assert all(seat.settled and seat.headers == () for seat in seats)
    assert all(seat.meters == (key, team) for seat in seats)
    assert (key.running, team.running, key.requests, team.tokens) == (3, 3, None, None)
    seats[0].leave()
    assert (key.running, team.running) == (2, 2)


def test_who_looks_at_meters_makes_none_and_changes_none():
    caller = asking(Limits(rpm=5), Limits(tpm=60))
    limiter = Limiter()

    assert limiter.look(caller) == (Meter("key t/k"), Meter("team t"))
    seat = limiter.take(caller, 9)
    key, team = limiter.look(caller)
    assert (key, team) == seat.meters
    key.requests.left = team.tokens.left = team.running = 0
    assert [bucket.left for bucket in (seat.meters[0].requests, seat.meters[1].tokens)] == [4, 51]
    assert seat.meters[1].running == 1
    assert limiter.take(caller, 0).meters == seat.meters
