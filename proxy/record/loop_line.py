"""The event loop's socket to the writer of its spool. It never waits."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Final

from .landing import Elsewhere, Landing
from .lines import RETRY_S, Fresh, Line
from .records import KIND, Record, encode
from .spool_talk import say

if TYPE_CHECKING:
    from .spool import Spool

READ_BYTES: Final = 4096  # an answer has eight for each record that landed
COMPANY: Final = 8
"""So many records that somebody waits for are said together, or when the event loop's turn ends,
while the writer has something to do: 16 clients at once take 0.5 system calls a request, where one
for each record that is waited for took 1.2. An idle writer is told at once."""
LINGER_S: Final = 0.01
"""That a record nobody waits for may stay in memory, to go with one that somebody waits for."""
LINGER_BYTES: Final = 64 * 1024
"""But not with more than that: the socket holds 200 KB, and where an event loop's turn takes long,
once in each was less than came. 500 streams waited with up to 4 MB."""
MOST_TOGETHER: Final = 64  # records in one system call; of large ones it takes fewer


class LoopLine(Line):
    """An event loop's. Another loop may enter records too, while the first one goes on."""

    def __init__(self, spool: "Spool") -> None:
        super().__init__(spool)
        self._loop: asyncio.AbstractEventLoop | None = None  # which reads the answers
        self._lock = spool.speaking  # of what follows: the end of the spool is another thread's
        # What waits is what ``_open`` holds, not a copy; of the first there may be a part left.
        self._outbox: list[bytes | memoryview] = []
        self._waiting = 0  # bytes of it
        self._awaited = 0  # records of it that somebody waits for
        self._watching = False  # it took no more, and tells when it does
        self._lingering = False

    def enter(
        self,
        record: Record,
        landing: Landing | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Say the record. It is told to ``landing``, if given, that it is on the disk.

        ``loop``: as for ``Landing``, where there is none.
        """
        if landing is not None:
            loop = landing.loop
        elif loop is None:
            loop = asyncio.get_running_loop()
        if loop is not self._loop and (self._loop is None or self._loop.is_closed()):
            self._join(loop)
        waiter = landing if landing is None or loop is self._loop else Elsewhere(landing)
        body = encode(record)
        with self._lock:
            self._spool.last = number = self._spool.last + 1
            said = say(number, KIND[type(record)], time.time(), record.id, body)
            self._open[number] = said, waiter
            self._outbox.append(said)
            self._waiting += len(said)
            if waiter is not None:
                self._awaited += 1
                busy = len(self._open) > len(self._outbox)  # the writer has something to do
                if not busy or self._awaited == COMPANY or loop is not self._loop:
                    self._send()
                elif self._awaited == 1:
                    loop.call_soon(self._say_now)
            elif self._waiting > LINGER_BYTES:
                self._send()
            elif loop is not self._loop:  # which may end before a timer does
                self._in_the_loop(self._linger_no_more)
            elif not self._lingering:
                self._lingering = True
                loop.call_later(LINGER_S, self._linger_no_more)

    def _say_now(self) -> None:
        with self._lock:
            self._send()

    def _linger_no_more(self) -> None:
        with self._lock:
            self._lingering = False
            self._send()

    def _join(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let this loop read the answers, now that the one before it is closed."""
        self._loop = loop
        with self._lock:
            self._lingering = self._watching = False  # those were the other loop's
            self._awaited = 0
            for number, (said, waiter) in self._open.items():
                if isinstance(waiter, Landing):  # nobody waits there any more
                    self._open[number] = said, None
        if (fresh := self.taken()) is not None:
            self._take_fresh(fresh)
        elif self._link is not None:
            self._listen(self._link)

    def _take_fresh(self, fresh: Fresh) -> None:
        fresh.link.setblocking(False)
        with self._lock:
            self._watching = False
            self._tell_all(fresh)
            self._send()
        self._listen(fresh.link)

    def _listen(self, link: socket.socket) -> None:
        """In a context of its own: what is logged there belongs to no request."""
        if self._loop is not None:
            Context().run(self._loop.add_reader, link, self._heard)

    def _send(self) -> None:
        """What waits, as far as the socket takes it; the rest when it takes more."""
        self._awaited = 0
        while self._waiting and self._link is not None:
            some = self._outbox[:MOST_TOGETHER]
            try:
                sent = self._link.sendmsg(some)
            except BlockingIOError:
                sent = 0
            except OSError:  # the writer is gone: its successor is told all again
                sent = sum(map(len, some))
            self._waiting -= sent
            if not self._waiting:
                self._outbox.clear()
            elif self._drop(sent) < MOST_TOGETHER:
                self._watch_soon()
                return

    def _drop(self, sent: int) -> int:
        """Let go of so many bytes, of more that wait; how many whole records they were."""
        whole = 0
        while sent >= (size := len(self._outbox[whole])):
            sent -= size
            whole += 1
        self._outbox[: whole + 1] = [memoryview(self._outbox[whole])[sent:]]
        return whole

    def _tell_all(self, fresh: Fresh) -> None:
        """What is not answered waits again, for a new writer."""
        self._outbox = [*self._take(fresh)]
        self._waiting = sum(map(len, self._outbox))

    def _watch_soon(self) -> None:
        if not self._watching:
            self._watching = True
            self._in_the_loop(self._watch)

    def _watch(self) -> None:
        if self._loop is not None and self._link is not None:
            self._loop.add_writer(self._link, self._writable)

    def _writable(self) -> None:
        with self._lock:
            self._send()
            if not self._outbox and self._loop is not None and self._link is not None:
                self._watching = False
                self._loop.remove_writer(self._link)

    def _heard(self) -> bool:
        """Take what the socket has. False: nothing, and it has not ended."""
        if self._link is None:
            return False
        try:
            heard = self._link.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            heard = b""
        if heard:
            self._hear(heard)
        else:
            self._lost(self._link)
        return True

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
            waiter.land(self._spool.refusal())

    def _replace(self) -> None:
        if self._loop is None or self._spool.ending:
            return
        fresh = self.taken() if self._spool.renew(self._life) else None
        if fresh is not None:
            self._take_fresh(fresh)
        else:
            self._loop.call_later(RETRY_S, self._replace)

    def finish(self, within_s: float) -> None:
        """Say what is left to say, and no more. From any thread."""
        with self._lock:
            if (fresh := self.taken()) is not None:
                if self._link is not None:
                    self._in_the_loop(self._forget, self._link)
                self._tell_all(fresh)
            link = self._link
            if link is None:
                return
            rest, self._outbox, self._waiting = b"".join(self._outbox), [], 0
            link.settimeout(within_s)
            with contextlib.suppress(OSError):
                link.sendall(rest)
                link.shutdown(socket.SHUT_WR)
            link.setblocking(False)

    def settle(self, within_s: float) -> None:
        """Let everything that was entered be answered, and what follows from the answers be said.

        From any thread but the loop's, which has to hear them.
        """
        deadline = time.monotonic() + within_s
        while self._elsewhere() and self._open and time.monotonic() < deadline:
            self._in_the_loop(self._linger_no_more)
            time.sleep(0.005)

    def _elsewhere(self) -> bool:
        """The loop runs, in another thread."""
        if self._loop is None or not self._loop.is_running():
            return False
        try:
            return asyncio.get_running_loop() is not self._loop
        except RuntimeError:
            return True

    def hang_up(self) -> None:
        """The writer has ended: hear its last words, and close."""
        if self._elsewhere():
            self._in_the_loop(self._hear_out)
        else:
            self._hear_out()
            if self._link is not None:
                self._forget(self._link)
                self._link = None

    def _hear_out(self) -> None:
        while self._heard():
            pass

    def _in_the_loop(self, do: Callable[..., object], *arguments: object) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # closed; the next one joins
                self._loop.call_soon_threadsafe(do, *arguments)
