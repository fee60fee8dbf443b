"""Failover of rate limit states from Redis to a store of this machine.

Each state is written to Redis and to the local store, so that during an outage of Redis the counts
continue from the last known values. After the outage the local states are written to Redis, which
may have lost its data. Each stored text has a version, ``<number>:<text>``, and the higher version
wins, so a late write of an older text has no effect.
"""

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from .budget_store import StoreUnavailable
from .budget_store_failover import PAUSE_S
from .shared_state import Change, States, Texts

log = logging.getLogger("proxy.counters")

UNAVAILABLE_UNTIL: Final = "redis is unavailable until"
DIGITS: Final = re.compile(r"[0-9]{1,15}")


class MemoryStates:
    """States in the memory of a single process."""

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
    """A ``States`` store that uses ``shared``, or ``local`` while ``shared`` is unavailable.

    All processes of a machine have the same ``local`` store. After an error of Redis, it contains
    the time until which none of these processes calls Redis again.
    """

    def __init__(
        self, shared: States, local: States, clock: Callable[[], float] = time.time
    ) -> None:
        self._shared = shared
        self._local = local
        self._clock = clock

    @property
    def degraded(self) -> bool:
        (until,) = self._local.read([UNAVAILABLE_UNTIL])
        return until is not None and self._clock() < float(until) <= self._clock() + PAUSE_S

    def update(self, names: Sequence[str], change: Change) -> None:
        if not self.degraded:
            try:
                self._update_shared(names, change)
            except StoreUnavailable as exc:
                self._failed(exc)
            else:
                return
        self._local.update(names, lambda texts: _changed(texts, change))

    def read(self, names: Sequence[str]) -> Texts:
        if not self.degraded:
            try:
                return _without_version(self._shared.read(names))
            except StoreUnavailable as exc:
                self._failed(exc)
        return _without_version(self._local.read(names))

    def _update_shared(self, names: Sequence[str], change: Change) -> None:
        written: list[str] = []

        def change_newest(texts: Texts) -> Sequence[str]:
            written[:] = _changed(_newer(texts, self._local.read(names)), change)
            return written

        self._shared.update(names, change_newest)
        with contextlib.suppress(StoreUnavailable):
            # Keep newer texts that another process has written in the meantime. None cannot occur,
            # as every written text has a version of at least 1; ``or ""`` is for the type checker.
            self._local.update(names, lambda texts: [text or "" for text in _newer(texts, written)])

    def _failed(self, exc: StoreUnavailable) -> None:
        if not self.degraded:
            log.warning("redis: %s; this machine counts limits for itself until it is back", exc)
        self._local.update([UNAVAILABLE_UNTIL], lambda _: [str(self._clock() + PAUSE_S)])


def _split_version(text: str | None) -> tuple[int, str | None]:
    """Split a stored text into version and text; return (0, None) for a malformed one."""
    number, colon, text_only = (text or "").partition(":")
    return (int(number), text_only) if colon and DIGITS.fullmatch(number) else (0, None)


def _changed(texts: Sequence[str | None], change: Change) -> list[str]:
    versioned = [_split_version(text) for text in texts]
    new = change([text_only for _, text_only in versioned])
    return [f"{number + 1}:{text}" for (number, _), text in zip(versioned, new, strict=True)]


def _newer(texts: Sequence[str | None], others: Sequence[str | None]) -> Texts:
    """Return the text with the higher version of each pair."""
    return [
        text if _split_version(text)[0] > _split_version(other)[0] else other
        for text, other in zip(texts, others, strict=True)
    ]


def _without_version(texts: Texts) -> Texts:
    return [_split_version(text)[1] for text in texts]
