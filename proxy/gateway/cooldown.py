"""Targets that failed several times in a row are tried last for a while.

Never left out: when all of a route's targets are cooling they are tried in their usual order, so a
cool-down can only help. Each process learns for itself; one good answer ends it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from proxy.live.cooling import KNOWN
from translator.dialect import UpstreamError

FAILURES: Final = 3
FIRST_S: Final = 5.0
LONGEST_S: Final = 120.0
RATE_LIMITED_S: Final = 5.0
"""For a 429 that does not say how long."""
MOST_KEPT: Final = 4_096  # a target of "*" has as many models as clients can think of

Key = tuple[str, str]  # upstream, model there
Item = TypeVar("Item")


@dataclass(slots=True)
class Trouble:
    failures: int = 0  # in a row
    until: float = 0.0  # on the monotonic clock


class Cooldown:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.troubles: dict[Key, Trouble] = {}  # mostly none: nobody need tell of an answer then

    def failed(self, key: Key, error: UpstreamError) -> None:
        """The target could not answer, and another might have."""
        if len(self.troubles) >= MOST_KEPT and key not in self.troubles:
            del self.troubles[next(iter(self.troubles))]  # the oldest
        trouble = self.troubles.setdefault(key, Trouble())
        trouble.failures += 1
        if error.status == 429:
            wait = float(error.retry_after_s or RATE_LIMITED_S)
        elif trouble.failures >= FAILURES:
            wait = FIRST_S * 2 ** min(trouble.failures - FAILURES, 10)
        else:
            return
        trouble.until = self._clock() + min(wait, LONGEST_S)

    def answered(self, key: Key) -> None:
        self.troubles.pop(key, None)

    def is_cooling(self, key: Key) -> bool:
        trouble = self.troubles.get(key)
        return trouble is not None and self._clock() < trouble.until

    def healthy_first(self, items: Sequence[Item], key: Callable[[Item], Key]) -> tuple[Item, ...]:
        """The same items; those that cool are moved behind the others."""
        if not self.troubles:
            return tuple(items)
        return tuple(sorted(items, key=lambda item: self.is_cooling(key(item))))


cooldown: Final = Cooldown()
KNOWN.append(cooldown)  # for who looks after the upstreams
