"""The threads' socket to the writer of their spool: whoever speaks on it waits for the answer."""

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from . import spool_talk
from .lines import RETRY_S, Line, Outcome
from .records import KIND, Record, encode
from .spool_talk import JOB

if TYPE_CHECKING:
    from .spool import Spool

WAIT_S: Final = 30.0
READ_BYTES: Final = 64 * 1024  # what a job found may be long


class ThreadLine(Line):
    """The threads'. Each waits for its answer, one after the other."""

    _wakes = False

    def __init__(self, spool: "Spool") -> None:
        super().__init__(spool)
        self._lock = threading.Lock()
        self._listens = Outcome()

    def join(self) -> None:
        """Returns when the writer listens. Raises SpoolUnavailable when it does not in time."""
        self._wait(self._listens)

    def append(self, records: Sequence[Record]) -> None:
        """All are said before the first is waited for: they share a commit, or few."""
        now = time.time()
        for outcome in self._ask(
            [(KIND[type(record)], now, record.id, encode(record)) for record in records]
        ):
            if outcome.error is not None:
                raise outcome.error

    def call(self, job: str, arguments: tuple[Any, ...]) -> Any:
        (told,) = self._ask([(JOB, 0, job, json.dumps(arguments).encode())])
        result = json.loads(told.result)
        if "fault" in result:
            raise sqlite3.OperationalError(result["fault"])
        return result["is"]

    def _ask(self, some: Sequence[tuple[int, float, str, bytes]]) -> list[Outcome]:
        """Say all of it, then wait for each answer. Each: kind, time, name and body."""
        waiting = {self._spool.number(): Outcome() for _ in some}
        said = [spool_talk.say(number, *each) for number, each in zip(waiting, some, strict=True)]
        with self._lock:
            for number, each in zip(waiting, said, strict=True):
                self._open[number] = each, waiting[number]
            try:
                self._say(said)
                for outcome in waiting.values():
                    self._wait(outcome)
            finally:
                for number in waiting:
                    self._open.pop(number, None)
        return [*waiting.values()]

    def _say(self, some: list[bytes]) -> None:
        if self._link is not None:
            self._link.settimeout(None)  # half a record would spoil all that follow
            with contextlib.suppress(OSError):  # its end is heard, and its successor told all again
                self._link.sendall(b"".join(some))

    def _wait(self, outcome: Outcome) -> None:
        deadline = time.monotonic() + WAIT_S
        while not outcome.done:
            if time.monotonic() > deadline or (self._link is None and self._spool.ending):
                raise self._spool.refusal()
            if self._link is None:
                self._replace()
                continue
            self._link.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                heard = self._link.recv(READ_BYTES)
            except TimeoutError:
                continue
            except OSError:
                heard = b""
            if heard:
                self._hear(heard)
            else:
                self._link.close()
                self._link = None

    def _replace(self) -> None:
        fresh = self.taken() if self._spool.renew(self._life) else None
        if fresh is not None:
            self._say(self._take(fresh))
        else:
            time.sleep(RETRY_S / 10)

    def _ready(self, _: bytes) -> None:
        self._listens.done = True

    def finish(self) -> None:
        fresh = self.taken()
        for link in (self._link, fresh and fresh.link):
            if link is not None:
                link.close()
        self._link = None
