"""Both sockets between a gateway and the writer of its spool: an event loop's, and the threads'."""

import asyncio
import contextlib
import json
import logging
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from . import spool_talk
from .landing import Landing
from .records import KIND, Record, encode
from .spool_talk import CHUNK, JOB, KIND_AT

if TYPE_CHECKING:
    from .spool import Spool

logger = logging.getLogger(__name__)

RETRY_S: Final = 0.5
WAIT_S: Final = 30.0  # of a thread, for its answer
LINGER_S: Final = 0.01
"""That a record nobody waits for may stay in memory, to go with one that somebody waits for."""
READ_BYTES: Final = 64 * 1024


class Fresh(NamedTuple):
    """A new writer, and the end of its socket that a line has not taken yet."""

    life: int
    link: socket.socket


class Line:
    """What was said on it and not answered yet, and what to do with each answer."""

    def __init__(self, spool: "Spool") -> None:
        self.fresh: Fresh | None = None
        self._spool = spool
        self._link: socket.socket | None = None
        self._life = 0  # of which writer
        self._got = bytearray()
        self._open: dict[int, tuple[bytes, Landing | Outcome | None]] = {}  # said, and who waits
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
        self._got.clear()
        return [spool_talk.say_again(said) for said, _ in self._open.values()]

    def taken(self) -> Fresh | None:
        """The new writer, if there is one that the line does not speak to yet."""
        with self._spool.renewing:
            fresh, self.fresh = self.fresh, None
        return fresh

    def _hear(self, data: bytes) -> None:
        self._got += data
        for kind, payload in spool_talk.told(self._got):
            self._answers[kind](payload)

    def _landed(self, payload: bytes) -> None:
        take, chunks = self._open.pop, 0
        numbers = spool_talk.numbers_of(payload)
        for number in numbers:
            said, waiter = take(number, NOBODY)
            chunks += said[KIND_AT] == CHUNK
            if waiter is not None:
                self._land(waiter, None)
        self._spool.appended += len(numbers) - chunks
        self._spool.on_append()

    def _refused(self, payload: bytes) -> None:
        for number in spool_talk.numbers_of(payload):
            said, waiter = self._open.pop(number, NOBODY)
            self._spool.lost_chunks += said[KIND_AT] == CHUNK
            if waiter is not None:
                self._land(waiter, self._spool.refusal())

    def _land(self, waiter: "Landing | Outcome", error: Exception | None) -> None:
        waiter.land(error)

    def _fault(self, payload: bytes) -> None:
        (at,) = spool_talk.numbers_of(payload[:8])
        self._spool.hear_fault((self._life, at), payload[8:].decode())

    def _opened(self, payload: bytes) -> None:
        self._spool.opened(*spool_talk.numbers_of(payload))

    def _result(self, payload: bytes) -> None:
        (number,) = spool_talk.numbers_of(payload[:8])
        _, waiter = self._open.pop(number, NOBODY)
        if isinstance(waiter, Outcome):
            waiter.result = payload[8:]
            waiter.land(None)

    def _logged(self, payload: bytes) -> None:
        level, text = json.loads(payload)
        logger.log(level, "spool: %s", text)

    def _ready(self, _: bytes) -> None:
        """Only who starts the writer waits for it."""


class LoopLine(Line):
    """An event loop's. Another loop may enter records too, while the first one goes on."""

    def __init__(self, spool: "Spool") -> None:
        super().__init__(spool)
        self._loop: asyncio.AbstractEventLoop | None = None  # which reads the answers
        self._lock = threading.Lock()  # of what follows: the end of the spool is another thread's
        self._outbox: list[bytes] = []
        self._unsent: bytes | memoryview = b""  # the socket took no more
        self._lingering = False

    def enter(self, record: Record, landing: Landing | None) -> None:
        number = self._spool.number()
        said = spool_talk.say(number, KIND[type(record)], time.time(), record.id, encode(record))
        loop = asyncio.get_running_loop()
        if loop is not self._loop and (self._loop is None or self._loop.is_closed()):
            self._join(loop)
        self._open[number] = said, landing
        with self._lock:
            self._outbox.append(said)
            if landing is not None:
                self._send()
            elif not self._lingering:
                self._lingering = True
                loop.call_later(LINGER_S, self._linger_no_more)

    def _linger_no_more(self) -> None:
        with self._lock:
            self._lingering = False
            self._send()

    def _join(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let this loop read the answers."""
        self._loop = loop
        self._lingering = False  # the timer was the other loop's
        if (fresh := self.taken()) is not None:
            self._take_fresh(fresh)
        elif self._link is not None:
            self._listen(self._link)

    def _take_fresh(self, fresh: Fresh) -> None:
        fresh.link.setblocking(False)
        with self._lock:
            self._outbox, self._unsent = self._take(fresh), b""
            self._send()
        self._listen(fresh.link)

    def _listen(self, link: socket.socket) -> None:
        """In a context of its own: what is logged there belongs to no request."""
        if self._loop is not None:
            Context().run(self._loop.add_reader, link, self._readable)

    def _send(self) -> None:
        """What waits, as far as the socket takes it; the rest when it takes more."""
        if not self._outbox or self._unsent or self._link is None:
            return
        data = b"".join(self._outbox)
        self._outbox.clear()
        sent = self._sent(data)
        self._unsent = memoryview(data)[sent:] if sent < len(data) else b""
        if self._unsent:
            self._in_the_loop(self._watch)

    def _sent(self, data: bytes | memoryview) -> int:
        try:
            return self._link.send(data) if self._link and data else 0
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)  # the writer is gone: its successor is told all again

    def _watch(self) -> None:
        if self._loop is not None and self._link is not None:
            self._loop.add_writer(self._link, self._writable)

    def _writable(self) -> None:
        with self._lock:
            self._unsent = self._unsent[self._sent(self._unsent) :]
            if self._unsent or self._loop is None or self._link is None:
                return
            self._loop.remove_writer(self._link)
            self._send()

    def _readable(self) -> None:
        if self._link is None:
            return
        try:
            data = self._link.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._hear(data)
        else:
            self._lost(self._link)

    def _forget(self, link: socket.socket) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(link)
            self._loop.remove_writer(link)
        link.close()

    def _lost(self, link: socket.socket) -> None:
        self._forget(link)
        self._link = None
        if not self._spool.ending:
            self._replace()
            return
        waiters = [waiter for _, waiter in self._open.values() if waiter is not None]
        self._open.clear()
        for waiter in waiters:
            self._land(waiter, self._spool.refusal())

    def _replace(self) -> None:
        if self._loop is None or self._spool.ending:
            return
        fresh = self.taken() if self._spool.renew(self._life) else None
        if fresh is not None:
            self._take_fresh(fresh)
        else:
            self._loop.call_later(RETRY_S, self._replace)

    def _land(self, waiter: "Landing | Outcome", error: Exception | None) -> None:
        if isinstance(waiter, Outcome) or waiter.loop is self._loop:
            waiter.land(error)
        else:
            with contextlib.suppress(RuntimeError):  # closed: nobody waits there any more
                waiter.loop.call_soon_threadsafe(waiter.land, error)

    def finish(self, within_s: float) -> None:
        """Say what is left to say, and no more. From any thread."""
        with self._lock:
            if (fresh := self.taken()) is not None:
                if self._link is not None:
                    self._in_the_loop(self._forget, self._link)
                self._outbox, self._unsent = self._take(fresh), b""
            link = self._link
            if link is None:
                return
            data = b"".join([self._unsent, *self._outbox])
            self._unsent, self._outbox = b"", []
            link.settimeout(within_s)
            with contextlib.suppress(OSError):
                link.sendall(data)
                link.shutdown(socket.SHUT_WR)
            link.setblocking(False)

    def hang_up(self) -> None:
        """The writer has ended: let the loop hear its last words; where there is none, close."""
        if not self._in_the_loop(self._readable) and self._link is not None:
            self._link.close()
            self._link = None

    def _in_the_loop(self, do: Callable[..., object], *arguments: object) -> bool:
        """False: there is none that could; it was closed."""
        with contextlib.suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(do, *arguments)
                return True
        return False


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
