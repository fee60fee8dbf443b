"""Cooldown: a route target that failed several times in a row is tried last for a while.

A target in cooldown is never skipped: when all targets of a route are in cooldown, they are tried
in their usual order. Each process has its own state; one successful response ends a cooldown.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from proxy.live.cooldown_registry import SOURCES
from translator.dialect import UpstreamError

FAILURES: Final = 3
FIRST_S: Final = 5.0
LONGEST_S: Final = 120.0
RATE_LIMITED_S: Final = 5.0
"""The cooldown after a 429 of the upstream without ``retry-after``."""
# limited: a target with model "*" accepts any model name that a client sends
MAX_STREAKS: Final = 4_096

Key = tuple[str, str]  # name of the upstream, name of the model at the upstream
Item = TypeVar("Item")


@dataclass(slots=True)
class FailureStreak:
    failures: int = 0  # the number of failures in a row
    until: float = 0.0  # end of the cooldown, on the monotonic clock


class Cooldown:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        # Usually empty; then callers need not call ``record_success``.
        self.streaks: dict[Key, FailureStreak] = {}

    def record_failure(self, key: Key, error: UpstreamError) -> None:
        """Count a failure of a target, unless the request caused it.

        Start a cooldown if it is due.
        """
        if len(self.streaks) >= MAX_STREAKS and key not in self.streaks:
            del self.streaks[next(iter(self.streaks))]  # drop the oldest streak
        streak = self.streaks.setdefault(key, FailureStreak())
        streak.failures += 1
        if error.status == 429:
            wait = float(error.retry_after_s or RATE_LIMITED_S)
        elif streak.failures >= FAILURES:
            wait = FIRST_S * 2 ** min(streak.failures - FAILURES, 10)
        else:
            return
        streak.until = self.clock() + min(wait, LONGEST_S)

    def record_success(self, key: Key) -> None:
        self.streaks.pop(key, None)

    def is_cooling(self, key: Key) -> bool:
        streak = self.streaks.get(key)
        return streak is not None and self.clock() < streak.until

    def healthy_first(self, items: Sequence[Item], key: Callable[[Item], Key]) -> tuple[Item, ...]:
        """Return the items, with those whose target is in cooldown moved to the end."""
        if not self.streaks:
            return tuple(items)
        return tuple(sorted(items, key=lambda item: self.is_cooling(key(item))))


cooldown: Final = Cooldown()
SOURCES.append(cooldown)  # the admin dashboard reads from SOURCES which targets are in cooldown
