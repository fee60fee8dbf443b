"""The counters of limits in the memory of one process: if it serves alone, or no store works."""

import time
from collections import Counter
from collections.abc import Callable, Sequence

from .store import Kind, LimitCounters, Standing, Take, Taken


class MemoryStore(LimitCounters):
    """Slots and debts of this process. It has no leases; only the event loop calls it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: returns seconds."""
        self._clock = clock
        self._held: Counter[str] = Counter()
        self._due: dict[str, int] = {}

    def take(self, request_id: str, holder: str, takes: Sequence[Take]) -> Taken:
        del request_id, holder
        now = int(self._clock() * 1_000_000)
        standings = tuple(self._value(each, now) for each in takes)
        granted = all(each.fits(value) for each, value in zip(takes, standings, strict=True))
        if granted:
            for each, value in zip(takes, standings, strict=True):
                if each.kind is Kind.SLOTS:
                    self._held[each.counter] += each.amount
                else:
                    self._due[each.counter] = now + value.spent + each.amount
        return Taken(granted, standings)

    def add(self, holder: str, takes: Sequence[Take]) -> None:
        del holder
        for each in takes:
            counts = self._held if each.kind is Kind.SLOTS else self._due
            if each.counter in counts:
                counts[each.counter] += each.amount

    def peek(self, takes: Sequence[Take]) -> list[Standing | None]:
        now = int(self._clock() * 1_000_000)
        return [self._value(each, now) for each in takes]

    def _value(self, take: Take, now: int) -> Standing:
        if take.kind is Kind.SLOTS:
            return Standing(reserved=self._held[take.counter])
        return Standing(spent=max(0, self._due.get(take.counter, 0) - now))
