"""Which targets this process tries last for a while: its gateway knows, windows ask."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol


class Trouble(Protocol):
    """``until`` is on the monotonic clock."""

    failures: int
    until: float


class Knows(Protocol):
    """By upstream and the model there."""

    @property
    def troubles(self) -> Mapping[tuple[str, str], Trouble]: ...


KNOWN: Final[list[Knows]] = []
"""The gateway's cool-down, once it is imported."""


@dataclass(frozen=True, slots=True)
class Cooling:
    upstream: str
    model: str
    left_s: float
    failures: int
    """In a row."""


def cooling(clock: float | None = None) -> list[Cooling]:
    """Targets that cool now, those that cool longest first. From any thread."""
    at = time.monotonic() if clock is None else clock
    found = [
        Cooling(upstream, model, trouble.until - at, trouble.failures)
        for one in KNOWN
        for (upstream, model), trouble in list(one.troubles.items())
        if trouble.until > at
    ]
    return sorted(found, key=lambda one: (-one.left_s, one.upstream, one.model))
