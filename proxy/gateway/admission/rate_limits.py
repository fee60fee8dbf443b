"""Rate limits of a key and its team, for all models or some: requests, tokens and concurrency.

The size of a token bucket is the limit of one minute, and the bucket refills evenly. Admission
takes the estimated tokens of a request; ``settle`` corrects the estimate when the usage is known.
Every outcome of a request releases its concurrency slot. A single process counts in memory; several
processes share the counts (``shared_rate_limits``).
"""

import fnmatch
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from proxy.gateway.http.errors import Header, HttpError
from proxy.gateway.snapshot.config_snapshot import NO_LIMITS, Caller, Limits, ModelLimits

MINUTE_S: Final = 60.0


@dataclass(slots=True)
class Bucket:
    """A token bucket that refills evenly, by ``size`` a minute.

    A corrected estimate may make ``left`` negative.
    """

    size: int
    left: float
    at: float

    def refill(self, now: float) -> None:
        self.left = min(self.size, self.left + (now - self.at) * self.size / MINUTE_S)
        self.at = now

    def seconds_until(self, amount: float) -> float:
        """Return the seconds until the bucket has ``amount`` or is full, whichever is first."""
        return max(0.0, (min(amount, self.size) - self.left) * MINUTE_S / self.size)


@dataclass(slots=True)
class LimitState:
    """The current rate limit counts of one key or team, for all models or some."""

    name: str
    running: int = 0  # running requests in this process
    elsewhere: int = 0  # running requests in other processes, if the counts are shared
    requests: Bucket | None = None
    tokens: Bucket | None = None

    def apply_limits(self, limits: Limits, now: float) -> None:
        """Adapt the token buckets to the configured limits, which may have changed."""
        self.requests = _resized(self.requests, limits.rpm, now)
        self.tokens = _resized(self.tokens, limits.tpm, now)


def _resized(bucket: Bucket | None, size: int | None, now: float) -> Bucket | None:
    if size is None:
        return None
    if bucket is None or bucket.size != size:
        return Bucket(size, size, now)
    bucket.refill(now)
    return bucket


@dataclass(slots=True)
class ConcurrencySlot:
    """The concurrency slot of an admitted request, in all limit states that apply to it."""

    states: tuple[LimitState, ...]
    estimate: int
    headers: tuple[Header, ...] = ()
    settled: bool = False  # whether the token estimate is corrected, or there is no estimate

    def settle(self, tokens: int | None) -> None:
        """Replace the estimate by the tokens used.

        ``tokens`` None: unknown, so the estimate stays.
        """
        if self.settled or tokens is None:
            return
        self.settled = True
        for state in self.states:
            if state.tokens is not None:
                state.tokens.left += self.estimate - tokens

    def release(self) -> None:
        """Free the concurrency slot. Call this when the request has ended."""
        for state in self.states:
            state.running -= 1


def limits_by_state(caller: Caller, model: str) -> list[tuple[str, Limits]]:
    """Return the limits of a caller's requests for a model, by the name of their limit state."""
    key, team = f"key {caller.meter}", f"team {caller.team.name}"
    return [
        (key, caller.limits),
        *_matching(key, caller.model_limits, model),
        (team, caller.team.limits),
        *_matching(team, caller.team.model_limits, model),
    ]


def _matching(
    owner: str, model_limits: Iterable[ModelLimits], model: str
) -> Iterator[tuple[str, Limits]]:
    for pattern, sizes in model_limits:
        if fnmatch.fnmatchcase(model, pattern):
            yield f"{owner} for {pattern}", sizes


class Limiter:
    """The rate limits of keys and teams, counted in this process."""

    def __init__(self) -> None:
        self._keys: dict[str, LimitState] = {}
        self.teams: dict[str, LimitState] = {}
        self._models: dict[str, LimitState] = {}  # limits by model, by the name of the state

    def acquire(self, caller: Caller, estimate: int, model: str = "") -> ConcurrencySlot:
        """Take a concurrency slot, which the calling code must release.

        Raises HttpError 429, which names the limit and when to retry.
        """
        team = caller.team
        key, team_name = caller.meter, team.name
        key_state = self._keys[key] if key in self._keys else self._add_key(key)
        team_state = self.teams[team_name] if team_name in self.teams else self._add_team(team_name)
        if caller.model_limits or team.model_limits:
            return self._acquire_for_model(caller, estimate, model)
        states = (key_state, team_state)
        # A caller without limits needs no buckets.
        if caller.limits is NO_LIMITS and team.limits is NO_LIMITS:
            for state in states:
                state.requests = state.tokens = None
                state.running += 1
            return ConcurrencySlot(states, estimate, settled=True)
        take_slot(
            ((key_state, caller.limits), (team_state, team.limits)), estimate, time.monotonic()
        )
        return ConcurrencySlot(states, estimate, rate_limit_headers(states))

    def _acquire_for_model(self, caller: Caller, estimate: int, model: str) -> ConcurrencySlot:
        """Take a slot for a caller that has limits by model. Raises HttpError 429."""
        pairs = [
            (self._find(caller, name) or self._models.setdefault(name, LimitState(name)), sizes)
            for name, sizes in limits_by_state(caller, model)
        ]
        take_slot(pairs, estimate, time.monotonic())
        states = tuple(state for state, _ in pairs)
        return ConcurrencySlot(states, estimate, rate_limit_headers(states))

    def peek(self, caller: Caller, model: str = "") -> tuple[LimitState, ...]:
        """Return copies of the limit states of ``limits_by_state``, with monotonic times.

        A state that has had no request yet is empty. Nothing is created or changed.
        """
        names = [name for name, _ in limits_by_state(caller, model)]
        return tuple(_copy(self._find(caller, name) or LimitState(name)) for name in names)

    def _find(self, caller: Caller, name: str) -> LimitState | None:
        """Return the limit state with this name, if it exists."""
        if name == f"key {caller.meter}":
            return self._keys.get(caller.meter)
        if name == f"team {caller.team.name}":
            return self.teams.get(caller.team.name)
        return self._models.get(name)

    def _add_key(self, name: str) -> LimitState:
        state = self._keys[name] = LimitState(f"key {name}")
        return state

    def _add_team(self, name: str) -> LimitState:
        state = self.teams[name] = LimitState(f"team {name}")
        return state


def _copy(state: LimitState) -> LimitState:
    buckets = (state.requests, state.tokens)
    requests, tokens = (None if bucket is None else replace(bucket) for bucket in buckets)
    return replace(state, requests=requests, tokens=tokens)


def take_slot(pairs: Sequence[tuple[LimitState, Limits]], estimate: int, now: float) -> None:
    """Take a concurrency slot in all limit states, or in none of them. Raises HttpError 429."""
    for state, limits in pairs:
        state.apply_limits(limits, now)
    for state, limits in pairs:
        _check(state, limits, estimate)
    for state, _ in pairs:
        _take(state, estimate)


def _check(state: LimitState, limits: Limits, estimate: int) -> None:
    running = state.running + state.elsewhere
    if limits.concurrency is not None and running >= limits.concurrency:
        raise _exceeded(state, "concurrency", limits.concurrency, running, 1.0)
    if state.requests is not None and state.requests.left < 1:
        used = state.requests.size - state.requests.left
        wait = state.requests.seconds_until(1)
        raise _exceeded(state, "rpm", state.requests.size, math.ceil(used), wait)
    if state.tokens is not None and state.tokens.left < min(estimate, state.tokens.size):
        used = state.tokens.size - state.tokens.left
        wait = state.tokens.seconds_until(estimate)
        raise _exceeded(state, "tpm", state.tokens.size, math.ceil(used), wait)


def _take(state: LimitState, estimate: int) -> None:
    state.running += 1
    if state.requests is not None:
        state.requests.left -= 1
    if state.tokens is not None:
        state.tokens.left -= estimate


def _exceeded(state: LimitState, limit: str, size: int, used: int, wait_s: float) -> HttpError:
    seconds = max(1, int(wait_s + 0.999))
    reset = datetime.fromtimestamp(time.time() + seconds, UTC).strftime("%H:%M:%SZ")
    return HttpError(
        429,
        "rate_limit_error",
        f"{state.name} is at its limit: {limit} {size}, used {used}; try again in {seconds} s, "
        f"at {reset}",
        {
            "retry-after": str(seconds),
            **{name.decode(): text.decode() for name, text in rate_limit_headers((state,))},
        },
        detail=limit,
    )


def rate_limit_headers(states: tuple[LimitState, ...]) -> tuple[Header, ...]:
    """Return Anthropic's rate limit headers.

    They describe the bucket with the smallest share left.
    """
    headers: list[Header] = []
    for kind in ("requests", "tokens"):
        buckets = [b for b in (getattr(state, kind) for state in states) if b is not None]
        if buckets:
            tightest = min(buckets, key=lambda bucket: bucket.left / bucket.size)
            headers += _bucket_headers(kind, tightest)
    return tuple(headers)


def _bucket_headers(kind: str, bucket: Bucket) -> list[Header]:
    full_at = datetime.fromtimestamp(time.time() + bucket.seconds_until(bucket.size), UTC)
    texts = {
        "limit": str(bucket.size),
        "remaining": str(max(0, int(bucket.left))),
        "reset": full_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return [(f"anthropic-ratelimit-{kind}-{field}".encode(), text.encode())
            for field, text in texts.items()]  # fmt: skip


limits = Limiter()
