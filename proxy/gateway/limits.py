"""Requests, tokens and concurrency of a key and its team.

Buckets hold one minute's worth and refill evenly. Tokens are taken by estimate at the door and
set right when the answer is known. The seat is given back on every way out. A process that serves
alone counts in its memory; several count together (``shared_limits``).
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from .directory import NO_LIMITS, Caller, Limits
from .refusals import Header, Refusal

MINUTE_S: Final = 60.0


@dataclass(slots=True)
class Bucket:
    """Up to ``size`` units, refilled evenly over a minute; may fall below zero by settling."""

    size: int
    left: float
    at: float

    def refill(self, now: float) -> None:
        self.left = min(self.size, self.left + (now - self.at) * self.size / MINUTE_S)
        self.at = now

    def seconds_until(self, amount: float) -> float:
        """How long until ``amount`` is there; an amount beyond the size waits for a full bucket."""
        return max(0.0, (min(amount, self.size) - self.left) * MINUTE_S / self.size)


@dataclass(slots=True)
class Meter:
    """The state of one key or one team."""

    name: str
    running: int = 0  # in this process
    elsewhere: int = 0  # in others, when they count together
    requests: Bucket | None = None
    tokens: Bucket | None = None

    def fit(self, limits: Limits, now: float) -> None:
        """Follow the configured limits, which may have changed since."""
        self.requests = _fitted(self.requests, limits.rpm, now)
        self.tokens = _fitted(self.tokens, limits.tpm, now)


def _fitted(bucket: Bucket | None, size: int | None, now: float) -> Bucket | None:
    if size is None:
        return None
    if bucket is None or bucket.size != size:
        return Bucket(size, size, now)
    bucket.refill(now)
    return bucket


@dataclass(slots=True)
class Seat:
    """What an admitted request holds: a place in each meter, and an estimate of its tokens."""

    meters: tuple[Meter, ...]
    estimate: int
    headers: tuple[Header, ...] = ()
    settled: bool = False  # or there is nothing to settle

    def settle(self, tokens: int | None) -> None:
        """Replace the estimate by what was used; None: nobody knows, the estimate stays."""
        if self.settled or tokens is None:
            return
        self.settled = True
        for meter in self.meters:
            if meter.tokens is not None:
                meter.tokens.left += self.estimate - tokens

    def leave(self) -> None:
        """The request is over, whatever became of it."""
        for meter in self.meters:
            meter.running -= 1


class Limiter:
    """All meters of this process."""

    def __init__(self) -> None:
        self._keys: dict[str, Meter] = {}
        self._teams: dict[str, Meter] = {}

    def take(self, caller: Caller, estimate: int) -> Seat:
        """Let a request in, or raise Refusal 429 that says which limit and when to come back.

        Who has the seat says when it is left.
        """
        team = caller.team
        key, whole = caller.meter, team.name
        of_key = self._keys[key] if key in self._keys else self._of_key(key)
        of_team = self._teams[whole] if whole in self._teams else self._of_team(whole)
        meters = (of_key, of_team)
        if caller.limits is NO_LIMITS and team.limits is NO_LIMITS:  # only counted: 1 call of 45
            for meter in meters:
                meter.requests = meter.tokens = None
                meter.running += 1
            return Seat(meters, estimate, settled=True)
        take(((of_key, caller.limits), (of_team, team.limits)), estimate, time.monotonic())
        return Seat(meters, estimate, headers_of(meters))

    def look(self, caller: Caller) -> tuple[Meter, Meter]:
        """Copies of the meters of a key and its team, times monotonic. It makes and changes none.

        Fresh ones, where nobody has asked yet.
        """
        key, whole = caller.meter, caller.team.name
        of_key = self._keys.get(key) or Meter(f"key {key}")
        of_team = self._teams.get(whole) or Meter(f"team {whole}")
        return _copy_of(of_key), _copy_of(of_team)

    def _of_key(self, name: str) -> Meter:
        meter = self._keys[name] = Meter(f"key {name}")
        return meter

    def _of_team(self, name: str) -> Meter:
        meter = self._teams[name] = Meter(f"team {name}")
        return meter


def _copy_of(meter: Meter) -> Meter:
    buckets = (meter.requests, meter.tokens)
    requests, tokens = (None if bucket is None else replace(bucket) for bucket in buckets)
    return replace(meter, requests=requests, tokens=tokens)


def take(pairs: Sequence[tuple[Meter, Limits]], estimate: int, now: float) -> None:
    """Take a seat in all meters, or in none: raises Refusal 429."""
    for meter, limits in pairs:
        meter.fit(limits, now)
    for meter, limits in pairs:
        _check(meter, limits, estimate)
    for meter, _ in pairs:
        _take(meter, estimate)


def _check(meter: Meter, limits: Limits, estimate: int) -> None:
    running = meter.running + meter.elsewhere
    if limits.concurrency is not None and running >= limits.concurrency:
        raise _exceeded(meter, "concurrency", limits.concurrency, running, 1.0)
    if meter.requests is not None and meter.requests.left < 1:
        used = meter.requests.size - meter.requests.left
        wait = meter.requests.seconds_until(1)
        raise _exceeded(meter, "rpm", meter.requests.size, math.ceil(used), wait)
    if meter.tokens is not None and meter.tokens.left < min(estimate, meter.tokens.size):
        used = meter.tokens.size - meter.tokens.left
        wait = meter.tokens.seconds_until(estimate)
        raise _exceeded(meter, "tpm", meter.tokens.size, math.ceil(used), wait)


def _take(meter: Meter, estimate: int) -> None:
    meter.running += 1
    if meter.requests is not None:
        meter.requests.left -= 1
    if meter.tokens is not None:
        meter.tokens.left -= estimate


def _exceeded(meter: Meter, limit: str, size: int, used: int, wait_s: float) -> Refusal:
    seconds = max(1, int(wait_s + 0.999))
    reset = datetime.fromtimestamp(time.time() + seconds, UTC).strftime("%H:%M:%SZ")
    return Refusal(
        429,
        "rate_limit_error",
        f"{meter.name} is at its limit: {limit} {size}, used {used}; try again in {seconds} s, "
        f"at {reset}",
        {
            "retry-after": str(seconds),
            **{name.decode(): text.decode() for name, text in headers_of((meter,))},
        },
        detail=limit,
    )


def headers_of(meters: tuple[Meter, ...]) -> tuple[Header, ...]:
    """Anthropic's rate limit headers, for the meter that has the least left."""
    headers: list[Header] = []
    for kind in ("requests", "tokens"):
        buckets = [b for b in (getattr(meter, kind) for meter in meters) if b is not None]
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
    return [(f"anthropic-ratelimit-{kind}-{what}".encode(), text.encode())
            for what, text in texts.items()]  # fmt: skip


limits = Limiter()
