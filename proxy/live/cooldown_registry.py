"""The targets in cooldown in this process: the gateway registers its state, admin pages read it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol


class FailureStreak(Protocol):
    """The failures of one target since its last success.

    ``until``: the end of its cooldown, on the monotonic clock.
    """

    failures: int
    until: float


class CooldownSource(Protocol):
    """An object with the failure streaks, by the names of upstream and upstream model."""

    @property
    def streaks(self) -> Mapping[tuple[str, str], FailureStreak]: ...


SOURCES: Final[list[CooldownSource]] = []
"""The sources of cooldown states. The gateway's cooldown adds itself when it is imported."""


@dataclass(frozen=True, slots=True)
class Cooling:
    upstream: str
    model: str
    left_s: float
    failures: int
    """The number of failed attempts in a row."""


def cooling(clock: float | None = None) -> list[Cooling]:
    """Return the targets in cooldown, sorted by remaining time, longest first. Thread-safe."""
    at = time.monotonic() if clock is None else clock
    found = [
        Cooling(upstream, model, streak.until - at, streak.failures)
        for source in SOURCES
        for (upstream, model), streak in list(source.streaks.items())
        if streak.until > at
    ]
    return sorted(found, key=lambda one: (-one.left_s, one.upstream, one.model))
