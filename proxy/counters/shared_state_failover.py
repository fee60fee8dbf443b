"""Failover of rate limit states from Redis to a store of this machine.

Each state is written to Redis and to the local store, so that during an outage of Redis the counts
continue from the last known values. After the outage the local states are written to Redis, which
may have lost its data. Each stored text has a version, ``<number>:<text>``, and the higher version
wins, so a late write of an older text has no effect.

A request does not wait for other processes that write to the local store: then its states are
written with the next ones, or when Redis becomes unavailable.
"""

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from .budget_store import StoreUnavailable
from .budget_store_failover import PAUSE_S
from .redis_limits import ScriptedChange
from .shared_state import Change, States, Texts

log = logging.getLogger("proxy.counters")

UNAVAILABLE_UNTIL: Final = "redis is unavailable until"
DIGITS: Final = re.compile(r"[0-9]{1,15}")


class LocalStates(States, Protocol):
    """A store of this machine."""

    def update(
        self, names: Sequence[str], change: Change, *, busy_s: float | None = None
    ) -> Sequence[str]:
        """Raises StoreUnavailable if another process writes longer than ``busy_s``."""
        ...


class SharedLimits(Protocol):
    """A store of all machines, such as ``RedisLimits``."""

    def change(
        self, names: Sequence[str], change: ScriptedChange, local: Texts
    ) -> tuple[bool, Sequence[str]]: ...

    def read(self, names: Sequence[str]) -> Texts: ...


class MemoryStates:
    """States in the memory of a single process."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self._lock: Final = threading.Lock()

    def update(
        self, names: Sequence[str], change: Change, *, busy_s: float | None = None
    ) -> Sequence[str]:
        del busy_s  # no other process uses the memory
        with self._lock:
            new = change([self.texts.get(name) for name in names])
            self.texts.update(zip(names, new, strict=True))
            return new

    def read(self, names: Sequence[str]) -> Texts:
        with self._lock:
            return [self.texts.get(name) for name in names]


class FailoverStates:
    """Rate limit states in ``shared``, or in ``local`` while ``shared`` is unavailable.

    All processes of a machine have the same ``local`` store. After an error of Redis, it contains
    the time until which none of these processes calls Redis again.
    """

    def __init__(
        self, shared: SharedLimits, local: LocalStates, clock: Callable[[], float] = time.time
    ) -> None:
        self.shared = shared
        self.local = local
        self._clock = clock
        # The newest texts from ``shared`` that ``local`` does not have yet, by name of the state.
        self._unwritten: dict[str, str] = {}
        self._lock = threading.Lock()

    @property
    def degraded(self) -> bool:
        return self._is_degraded(self.local.read([UNAVAILABLE_UNTIL])[0])

    def update(self, names: Sequence[str], change: ScriptedChange) -> Sequence[str]:
        until, *local = self.local.read([UNAVAILABLE_UNTIL, *names])
        if not self._is_degraded(until):
            try:
                return self._update_shared(names, change, local)
            except StoreUnavailable as exc:
                self._failed(exc)
        self._write_locally(wait=True)
        texts = self.local.update(names, lambda texts: _changed(texts, change))
        return [_split_version(text)[1] or "" for text in texts]

    def read(self, names: Sequence[str]) -> Texts:
        if not self.degraded:
            try:
                return _without_version(self.shared.read(names))
            except StoreUnavailable as exc:
                self._failed(exc)
        return _without_version(self.local.read(names))

    def _update_shared(
        self, names: Sequence[str], change: ScriptedChange, local: Texts
    ) -> Sequence[str]:
        is_changed, texts = self.shared.change(names, change, local)
        without_version = [_split_version(text)[1] for text in texts]
        if not is_changed:
            change(without_version)  # raises the refusal: it computes the same as the script
            raise StoreUnavailable("the script refused a change that the gateway allows")
        with self._lock:
            self._unwritten.update(zip(names, texts, strict=True))
        with contextlib.suppress(StoreUnavailable):
            self._write_locally(wait=False)
        return [text or "" for text in without_version]

    def _write_locally(self, *, wait: bool) -> None:
        """Write the newest known texts of the shared store to the local one.

        Keep newer texts that another process has written.
        """
        with self._lock:
            names, texts = [*self._unwritten], [*self._unwritten.values()]
            if not names:
                return
            # None cannot occur, as both are texts; ``or ""`` is for the type checker.
            self.local.update(
                names,
                lambda stored: [text or "" for text in _newer(stored, texts)],
                busy_s=None if wait else 0,
            )
            self._unwritten.clear()

    def _is_degraded(self, until: str | None) -> bool:
        return until is not None and self._clock() < float(until) <= self._clock() + PAUSE_S

    def _failed(self, exc: StoreUnavailable) -> None:
        if not self.degraded:
            log.warning("redis: %s; this machine counts limits for itself until it is back", exc)
        self.local.update([UNAVAILABLE_UNTIL], lambda _: [str(self._clock() + PAUSE_S)])


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
