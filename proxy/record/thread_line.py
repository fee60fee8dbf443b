"""The threads' socket to the writer of their spool: whoever speaks on it waits for the answer."""

import contextlib
import json
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from . import spool_talk
from .lines import READ_BYTES, RETRY_S, Line, Outcome
from .records import KIND, Record, encode
from .spool_talk import JOB

if TYPE_CHECKING:
    from .spool import Spool

WAIT_S: Final = 30.0


class ThreadLine(Line):
    """The threads'. Each waits for its answer, one after the other."""

    def __init__(self, spool: "Spool") -> None:
        super().__init__(spool)
        self._lock = threading.Lock()
        self._listens = Outcome()

    def join(self) -> None:
        """Returns when the writer listens. Raises SpoolUnavailable when it does not in time."""
        self._wait(self._listens)

    def append(self, record: Record) -> None:
        name, body = KIND[type(record)], encode(record)
        if error := self._ask(name, time.time(), record.id, body).error:
            raise error

    def call(self, job: str, arguments: tuple[Any, ...]) -> Any:
        told = self._ask(JOB, 0, job, json.dumps(arguments).encode())
        result = json.loads(told.result)
        if "fault" in result:
            raise sqlite3.OperationalError(result["fault"])
        return result["is"]

    def _ask(self, kind: int, at: float, name: str, body: bytes) -> Outcome:
        number, outcome = self._spool.number(), Outcome()
        said = spool_talk.say(number, kind, at, name, body)
        with self._lock:
            self._open[number] = said, outcome
            try:
                self._say([said])
                self._wait(outcome)
            finally:
                self._open.pop(number, None)
        return outcome

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
                data = self._link.recv(READ_BYTES)
            except TimeoutError:
                continue
            except OSError:
                data = b""
            if data:
                self._hear(data)
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
