"""The numbers of this worker, and of all workers of the node: one small file each.

The hot path only appends what ended to a queue. A thread counts it each second and writes the sums
into ``metrics-<slot>.json``; whichever worker is asked adds up all files. A file outlives its
worker, and the next one in the slot goes on from it, so a sum never falls while the node runs.
Gauges count only while their worker lives.
"""

import contextlib
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from .catalogue import CONNECTIONS, IN_FLIGHT, Metric
from .connections import closed
from .requests import Ended, count
from .tally import Labels, Series, Tally, exposition

log = logging.getLogger("proxy.metrics")

EVERY_S: Final = 1.0
PROOF_S: Final = 5.0  # an idle worker writes so often that it lives
DEAD_AFTER_S: Final = 15.0


class Shelved(msgspec.Struct):
    """A worker's file."""

    pid: int
    at: float  # Unix seconds
    in_flight: int
    series: dict[str, list[tuple[tuple[str, ...], list[float]]]]

    @property
    def living(self) -> bool:
        if time.time() - self.at > DEAD_AFTER_S:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True

    def sums(self) -> dict[str, Series]:
        return {name: dict(values) for name, values in self.series.items()}


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Shelved).decode


class WorkerMetrics:
    """``start`` it in a directory and slot, tell it what ``ended``, ask for its ``text``."""

    def __init__(self, in_flight: Callable[[], int]) -> None:
        self._in_flight = in_flight
        self._ended: deque[Ended] = deque()
        self.ended: Callable[[Ended], None] = self._ended.append  # on the hot path: nothing else
        self._tally = Tally()
        self._lock = threading.Lock()  # around the tally
        self._fresh = False  # something was counted that the file does not say
        self._path: Path | None = None
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._closed: Counter[str] = Counter()  # what the sums have of ``closed``
        self._written = (-1, 0.0)  # requests in flight then, and when

    def start(self, directory: Path, slot: int) -> None:
        """Again is fine."""
        with self._lock:
            if self._thread is not None:
                return
            self._path = directory / f"metrics-{slot}.json"
            self._tally = Tally()
            if before := _read(self._path):
                self._tally.merge(before.sums())
            self._ending.clear()
            self._thread = threading.Thread(target=self._work, name="metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._ending.set()
            thread.join(5)
            self._path = None

    def add(self, metric: Metric, labels: Labels = (), amount: int = 1) -> None:
        """Add to a counter of what is rare; from any thread."""
        with self._lock:
            self._tally.add(metric, labels, amount)
            self._fresh = True

    def text(self, directory: Path) -> str:
        """All workers' numbers as Prometheus reads them; this one's are of this moment."""
        total = Tally()
        with self._lock:
            self._count()
            own = self._path
            total.merge(self._tally.series)
        if own is not None:
            total.add(IN_FLIGHT, (_slot(own),), self._in_flight())
        for path, shelved in _others(directory, own):
            total.merge(shelved.sums())
            if shelved.living:
                total.add(IN_FLIGHT, (_slot(path),), shelved.in_flight)
        return "\n".join(exposition(total.series)) + "\n"

    def _work(self) -> None:
        while True:
            last = self._ending.wait(EVERY_S)
            try:
                self._write()
            except OSError as exc:  # a full disk must not end the thread
                log.warning("the numbers cannot be written now: %s", exc.strerror)
            if last:
                return

    def _count(self) -> None:
        """Under the lock."""
        while self._ended:
            self._fresh = True
            try:
                count(self._tally, self._ended.popleft())
            except Exception:  # one odd record must not cost the others
                log.exception("a request could not be counted")
        for reason, times in list(closed.items()):
            if times != self._closed[reason]:
                self._fresh = True
                self._tally.add(CONNECTIONS, (reason,), times - self._closed[reason])
                self._closed[reason] = times

    def _write(self) -> None:
        path, now = self._path, time.time()
        in_flight = 0 if self._ending.is_set() else self._in_flight()
        with self._lock:
            self._count()
            said, at = self._written
            if path is None or not (self._fresh or said != in_flight or now - at > PROOF_S):
                return
            series = {name: list(values.items()) for name, values in self._tally.series.items()}
            raw = _encode(Shelved(os.getpid(), now, in_flight, series))
            self._fresh = False
        fresh = path.with_suffix(".new")
        fresh.write_bytes(raw)
        fresh.replace(path)
        self._written = (in_flight, now)


def _slot(path: Path) -> str:
    return path.stem.removeprefix("metrics-")


def _others(directory: Path, own: Path | None) -> Iterator[tuple[Path, Shelved]]:
    for path in sorted(directory.glob("metrics-*.json")):
        if path != own and (shelved := _read(path)):
            yield path, shelved


def _read(path: Path) -> Shelved | None:
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return _decode(path.read_bytes())
    return None
