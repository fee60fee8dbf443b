"""Limits in Redis where it answers, on this machine while it does not.

What Redis says is written down here too, so that an outage goes on from the last known counts; and
what was counted meanwhile goes back to Redis, which may have forgotten everything.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from .failover import PAUSE_S
from .states import Change, States, Texts
from .store import StoreAway

log = logging.getLogger("proxy.counters")

AWAY: Final = "redis is away until"
ALONE: Final = "!"
"""Before a text that was written while Redis was away."""


class MemoryStates:
    """Of one process that shares them with nobody."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._lock: Final = threading.Lock()

    def update(self, names: Sequence[str], change: Change) -> None:
        with self._lock:
            new = change([self._texts.get(name) for name in names])
            self._texts.update(zip(names, new, strict=True))

    def read(self, names: Sequence[str]) -> Texts:
        with self._lock:
            return [self._texts.get(name) for name in names]


class FailoverStates:
    """``States`` that asks ``shared`` first and ``local`` while that is away.

    All processes of a machine have the same ``local``, and stop and start to ask Redis together:
    a row there says until when it is left alone. What was counted without Redis is marked.
    """

    def __init__(
        self, shared: States, local: States, clock: Callable[[], float] = time.time
    ) -> None:
        self._shared = shared
        self._local = local
        self._clock = clock

    @property
    def degraded(self) -> bool:
        (until,) = self._local.read([AWAY])
        return until is not None and self._clock() < float(until) <= self._clock() + PAUSE_S

    def update(self, names: Sequence[str], change: Change) -> None:
        if not self.degraded:
            try:
                self._update_shared(names, change)
            except StoreAway as exc:
                self._failed(exc)
            else:
                return
        self._local.update(
            names, lambda texts: [ALONE + new for new in change([_bare(text) for text in texts])]
        )

    def read(self, names: Sequence[str]) -> Texts:
        if not self.degraded:
            try:
                return self._shared.read(names)
            except StoreAway as exc:
                self._failed(exc)
        return [_bare(text) for text in self._local.read(names)]

    def _update_shared(self, names: Sequence[str], change: Change) -> None:
        written: list[str] = []

        def caught_up(texts: Texts) -> Sequence[str]:
            ours = self._local.read(names)
            known = [_newer(text, mine) for text, mine in zip(texts, ours, strict=True)]
            written[:] = change(known)
            return written

        self._shared.update(names, caught_up)
        with contextlib.suppress(StoreAway):
            self._local.update(names, lambda _: written)

    def _failed(self, exc: StoreAway) -> None:
        if not self.degraded:
            log.warning("redis: %s; this machine counts limits for itself meanwhile", exc)
        self._local.update([AWAY], lambda _: [str(self._clock() + PAUSE_S)])


def _newer(text: str | None, mine: str | None) -> str | None:
    """What Redis says, unless it does not know, or has forgotten, what was counted here."""
    if mine is not None and (text is None or mine.startswith(ALONE)):
        return _bare(mine)
    return text


def _bare(text: str | None) -> str | None:
    return None if text is None else text.removeprefix(ALONE)
