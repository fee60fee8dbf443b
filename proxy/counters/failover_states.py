"""Limits in Redis where it answers, on this machine while it does not.

What Redis says is written down here too, so that an outage goes on from the last known counts; and
what was counted meanwhile goes back to Redis, which may have forgotten everything. Before each text
stands the number of its change, ``<number>:<text>``, and the higher number wins wherever two meet:
who is late with an older text undoes nothing.
"""

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from .failover import PAUSE_S
from .states import Change, States, Texts
from .store import StoreAway

log = logging.getLogger("proxy.counters")

AWAY: Final = "redis is away until"
DIGITS: Final = re.compile(r"[0-9]{1,15}")


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
    a row there says until when it is left alone.
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
        self._local.update(names, lambda texts: _changed(texts, change))

    def read(self, names: Sequence[str]) -> Texts:
        if not self.degraded:
            try:
                return _bare(self._shared.read(names))
            except StoreAway as exc:
                self._failed(exc)
        return _bare(self._local.read(names))

    def _update_shared(self, names: Sequence[str], change: Change) -> None:
        written: list[str] = []

        def caught_up(texts: Texts) -> Sequence[str]:
            written[:] = _changed(_newer(texts, self._local.read(names)), change)
            return written

        self._shared.update(names, caught_up)
        with contextlib.suppress(StoreAway):
            # Others may have written since; all have a number, so none of these is None.
            self._local.update(names, lambda texts: [text or "" for text in _newer(texts, written)])

    def _failed(self, exc: StoreAway) -> None:
        if not self.degraded:
            log.warning("redis: %s; this machine counts limits for itself meanwhile", exc)
        self._local.update([AWAY], lambda _: [str(self._clock() + PAUSE_S)])


def _parted(text: str | None) -> tuple[int, str | None]:
    """The number of a text, and the text. What nobody of us can have written is nothing."""
    number, colon, bare = (text or "").partition(":")
    return (int(number), bare) if colon and DIGITS.fullmatch(number) else (0, None)


def _changed(texts: Sequence[str | None], change: Change) -> list[str]:
    parted = [_parted(text) for text in texts]
    new = change([bare for _, bare in parted])
    return [f"{number + 1}:{text}" for (number, _), text in zip(parted, new, strict=True)]


def _newer(texts: Sequence[str | None], others: Sequence[str | None]) -> Texts:
    """Of each two texts the one that was changed more often; one that Redis forgot is back."""
    return [
        text if _parted(text)[0] > _parted(other)[0] else other
        for text, other in zip(texts, others, strict=True)
    ]


def _bare(texts: Texts) -> Texts:
    return [_parted(text)[1] for text in texts]
