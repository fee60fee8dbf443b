"""A socket between a gateway and the writer of its spool: what was said and is not answered yet.

Event loops speak on one (``loop_line.py``), threads on another (``thread_line.py``).
"""

import json
import logging
import socket
from array import array
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from . import spool_talk
from .spool_talk import CHUNK, KIND_AT, numbers_of, told

if TYPE_CHECKING:
    from .spool import Spool

logger = logging.getLogger(__name__)

RETRY_S: Final = 0.5


class Fresh(NamedTuple):
    """A new writer, and the end of its socket that a line has not taken yet."""

    life: int
    link: socket.socket


class Waiter(Protocol):
    """Who waits for an answer."""

    def land(self, error: Exception | None) -> None:
        """It is on the disk, or cannot be because of the error."""
        ...


class Outcome:
    """Where a thread finds its answer."""

    __slots__ = ("done", "error", "result")

    def __init__(self) -> None:
        self.done = False
        self.error: Exception | None = None
        self.result = b""

    def land(self, error: Exception | None) -> None:
        self.error, self.done = error, True


NOBODY: Final[tuple[bytes, None]] = (spool_talk.say(0, CHUNK, 0, "", b""), None)
"""Who waited has given up, or has been told already."""


class Line:
    """What was said on it and not answered yet, and what to do with each answer."""

    _wakes = True
    """Whoever moves what landed. It knows what it appended itself."""

    def __init__(self, spool: "Spool") -> None:
        self.fresh: Fresh | None = None
        self._spool = spool
        self._link: socket.socket | None = None
        self._life = 0  # of which writer
        self._got = b""  # the beginning of an answer
        self._open: dict[int, tuple[bytes, Waiter | None]] = {}  # said, and who waits
        self._answers = {
            spool_talk.LANDED: self._landed,
            spool_talk.REFUSED: self._refused,
            spool_talk.FAULT: self._fault,
            spool_talk.OPENED: self._opened,
            spool_talk.RESULT: self._result,
            spool_talk.LOGGED: self._logged,
            spool_talk.READY: self._ready,
        }

    def _take(self, fresh: Fresh) -> list[bytes]:
        """Speak to a new writer from now on; returns what it must be told first."""
        self._life, self._link = fresh
        self._got = b""
        return [spool_talk.say_again(said) for said, _ in list(self._open.values())]

    def taken(self) -> Fresh | None:
        """The new writer, if there is one that the line does not speak to yet."""
        with self._spool.renewing:
            fresh, self.fresh = self.fresh, None
        return fresh

    def _hear(self, raw: bytes) -> None:
        answers, self._got = told(self._got + raw if self._got else raw)
        for kind, payload in answers:
            self._answers[kind](payload)

    def _landed(self, payload: bytes) -> None:
        take, to_move = self._open.pop, 0
        for number in array("Q", payload):  # ``numbers_of``, without a call for each commit
            said, waiter = take(number, NOBODY)
            to_move += said[KIND_AT] != CHUNK
            if waiter is not None:
                waiter.land(None)
        self._spool.appended += to_move
        if self._wakes:
            self._spool.on_append()

    def _refused(self, payload: bytes) -> None:
        for number in numbers_of(payload):
            said, waiter = self._open.pop(number, NOBODY)
            self._spool.lost_chunks += said[KIND_AT] == CHUNK
            if waiter is not None:
                waiter.land(self._spool.refusal())

    def _fault(self, payload: bytes) -> None:
        (at,) = numbers_of(payload[:8])
        self._spool.hear_fault((self._life, at), payload[8:].decode())

    def _opened(self, payload: bytes) -> None:
        self._spool.opened(*numbers_of(payload))

    def _result(self, payload: bytes) -> None:
        (number,) = numbers_of(payload[:8])
        _, waiter = self._open.pop(number, NOBODY)
        if isinstance(waiter, Outcome):
            waiter.result = payload[8:]
            waiter.land(None)

    def _logged(self, payload: bytes) -> None:
        level, text = json.loads(payload)
        logger.log(level, "spool: %s", text)

    def _ready(self, _: bytes) -> None:
        """Only who starts the writer waits for it."""
