"""The writer thread of one spool: group commit, and what happens when the disk is full.

Everything that waits when a commit begins shares it, so one fsync serves many requests. What nobody
waits for (chunks, close records) comes along with what somebody does. Space for
close records is reserved: while the reserve file is there, requests are admitted; when a commit
fails, the reserve is given up, new requests are refused and the close records of running ones are
written into the space it leaves.
"""

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

from . import spool_file
from .errors import SpoolUnavailable
from .landing import Landing, Waiter, is_wanted, tell
from .records import Chunk, CloseRecord, Record
from .slots import Slot

logger = logging.getLogger(__name__)

MOST_TOGETHER: Final = 256  # records in one commit: keeps a commit under some milliseconds
RETRY_S: Final = 0.5
LINGER_S: Final = 0.01  # that a record nobody waits for may stay in memory for company
SIBLINGS: Final = 8
SIBLINGS_WITHIN_S: Final = 0.016
DELAY_S: Final = 0.003
"""When so many requests came within that time, a commit waits so long for more of them, as
PostgreSQL's ``commit_delay`` and ``commit_siblings`` do. Each commit takes the interpreter from the
event loop several times; there that is dearer than a later commit: 16 clients had 840 answers a
second without a delay, 960 with 2 ms, 1,050 with 4. Below 500 a second nobody waits."""
LOOK_EVERY: Final = 64  # commits between two looks at the size of the file
RESERVE_BYTES: Final = 4 * 2**20  # some thousand close records
MOST_BYTES: Final = 16 * 2**30

Job = Callable[[sqlite3.Connection], Any]
Entry = tuple[Record | Job, Waiter]
NUDGE: Final[Entry] = (lambda _: None, None)
"""Wakes the thread, once for all records that nobody waits for; a job without work."""


class Spool:
    """A record is durable when the future of its ``append`` is done. Any thread may call."""

    def __init__(
        self, slot: Slot, *, reserve_bytes: int = RESERVE_BYTES, most_bytes: int = MOST_BYTES
    ) -> None:
        self.slot = slot
        self.error = ""  # why nothing is admitted; empty: all is well
        self.appended = 0  # records that the drainer has to move
        self.lost_chunks = 0  # checkpoints that a full disk cost
        self.on_append: Callable[[], None] = lambda: None
        self._reserve_bytes = reserve_bytes
        self._most_bytes = most_bytes
        self._entries: SimpleQueue[Entry | None] = SimpleQueue()
        self._unheard: deque[Record] = deque()  # of whom nobody waits; the first one sends a nudge
        self._nudged = False
        self._heard_at: deque[float] = deque([0.0] * SIBLINGS, SIBLINGS)  # the last that waited
        self._stuck: list[Entry] = []  # close records that could not be written yet
        self._tried = 0.0
        self._commits = 0
        self._link: sqlite3.Connection | None = None
        self._thread = threading.Thread(target=self._work, name=f"spool-{slot.number}", daemon=True)

    @property
    def path(self) -> Path:
        return self.slot.path

    def start(self) -> None:
        """Open the file. Raises SpoolUnavailable when that fails now; the thread keeps trying."""
        try:
            self._mend()
        except (sqlite3.Error, OSError) as exc:
            self._fail(exc)
        self._thread.start()

    def stop(self, timeout_s: float = 10) -> None:
        """Write what waits, then close the file."""
        self._entries.put(None)
        self._thread.join(timeout_s)

    def append(self, record: Record) -> "Future[None]":
        """Done once the record is on the disk; SpoolUnavailable when it cannot be."""
        future: Future[None] = Future()
        self._entries.put((record, future))
        return future

    def enter(self, record: Record, landing: Landing | None = None) -> None:
        """The same for an event loop, told by ``landing``; None: nobody waits for it."""
        if landing is not None:
            self._entries.put((record, landing))
            return
        self._unheard.append(record)
        if not self._nudged:  # looked at after the append: the thread takes them after it is reset
            self._nudged = True
            self._entries.put(NUDGE)

    def run(self, job: Job) -> "Future[Any]":
        """Call ``job(connection)`` on the writer thread: the drainer's marks and deletions."""
        future: Future[Any] = Future()
        self._entries.put((job, future))
        return future

    # The writer thread

    def _work(self) -> None:
        with contextlib.suppress(OSError):  # it would only have been quicker
            spool_file.make_room(self.path)
        running = True
        while running:
            entries, running = self._gather()
            if self.error and time.monotonic() - self._tried >= RETRY_S:
                self._try_again()
            self._write([*self._take_stuck(), *entries])
            del entries  # they hold bodies, and the next ones may be long in coming
        while self._unheard:
            self._write(self._take_unheard())
        if self._stuck:
            logger.error("spool: %d close records could not be written", len(self._stuck))
        if self._link is not None:
            with contextlib.suppress(sqlite3.Error):
                self._link.close()

    def _gather(self) -> tuple[list[Entry], bool]:
        """What waits, at most one commit's worth; False when the spool is to stop."""
        entries: list[Entry] = []
        going = True
        try:
            entry = self._entries.get(timeout=RETRY_S if self.error else None)
            if time.monotonic() - self._heard_at[0] < SIBLINGS_WITHIN_S:
                time.sleep(DELAY_S)
            elif entry is NUDGE:
                entry = self._entries.get(timeout=LINGER_S)
            while entry is not None:
                if is_wanted(entry[1]):
                    entries.append(entry)
                if len(entries) == MOST_TOGETHER:
                    break
                entry = self._entries.get_nowait()
            going = entry is not None
        except Empty:
            pass
        now = time.monotonic()
        self._heard_at.extend(now for _, waiter in entries if isinstance(waiter, Landing))
        return entries + self._take_unheard(), going

    def _take_unheard(self) -> list[Entry]:
        """At most one commit's worth. What comes afterwards sends a nudge of its own."""
        self._nudged = False
        waiting = len(self._unheard)
        taken: list[Entry] = [
            (self._unheard.popleft(), None) for _ in range(min(waiting, MOST_TOGETHER))
        ]
        if waiting > len(taken):
            self._nudged = True
            self._entries.put(NUDGE)
        return taken

    def _take_stuck(self) -> list[Entry]:
        stuck, self._stuck = self._stuck, []
        return stuck

    def _write(self, entries: list[Entry]) -> None:
        records = [entry for entry in entries if not callable(entry[0])]
        if self.error:
            records = self._refuse(records)
        if records:
            try:
                self._commit(records)
            except (sqlite3.Error, OSError) as exc:
                self._fail(exc)
                self._commit_closes(self._refuse(records))
        for job, waiter in entries:
            if callable(job) and isinstance(waiter, Future):
                self._call(job, waiter)

    def _commit(self, entries: list[Entry]) -> None:
        if self._link is None:
            raise sqlite3.OperationalError(self.error or "the spool file is not open")
        spool_file.append(self._link, [record for record, _ in entries])  # type: ignore[misc]  # jobs were sorted out
        self.appended += sum(not isinstance(record, Chunk) for record, _ in entries)
        tell(waiter for _, waiter in entries)
        self.on_append()
        self._commits += 1
        if self._commits % LOOK_EVERY == 0 and self._too_big():
            self._fail(SpoolFull(f"the spool holds more than {self._most_bytes} bytes"))

    def _too_big(self) -> bool:
        return self._link is not None and spool_file.used_bytes(self._link) > self._most_bytes

    def _commit_closes(self, closes: list[Entry]) -> None:
        """The way out of running requests on a full disk: one by one, as far as space goes."""
        for entry in closes:
            try:
                self._commit([entry])
            except (sqlite3.Error, OSError):
                self._stuck.append(entry)

    def _refuse(self, entries: list[Entry]) -> list[Entry]:
        """Turn all but close records away; those are returned."""
        closes: list[Entry] = []
        refused: list[Waiter] = []
        for entry in entries:
            record, waiter = entry
            if isinstance(record, CloseRecord):
                closes.append(entry)
                continue
            self.lost_chunks += isinstance(record, Chunk)
            refused.append(waiter)
        tell(refused, SpoolUnavailable(self.error))
        return closes

    def _call(self, job: Job, future: "Future[Any]") -> None:
        if self._link is None:
            future.set_exception(SpoolUnavailable(self.error))
            return
        try:
            future.set_result(job(self._link))
        except Exception as exc:  # noqa: BLE001 -- it belongs to whoever waits for the future
            future.set_exception(exc)

    def _fail(self, exc: Exception) -> None:
        if not self.error:
            logger.error("spool: %s; new requests are refused", exc)
        self.error = str(exc) or type(exc).__name__
        self._tried = time.monotonic()
        with contextlib.suppress(OSError):
            self.slot.reserve.unlink(missing_ok=True)
        if "full" not in self.error and self._link is not None:  # the file may be another one now
            with contextlib.suppress(sqlite3.Error):
                self._link.close()
            self._link = None

    def _try_again(self) -> None:
        self._tried = time.monotonic()
        try:
            self._mend()
        except (sqlite3.Error, OSError) as exc:
            self.error = str(exc)
            with contextlib.suppress(OSError):
                self.slot.reserve.unlink(missing_ok=True)
            return
        logger.warning("spool: writable again after: %s", self.error)
        self.error = ""

    def _mend(self) -> None:
        """Open the file and reserve the space; raises while either is impossible."""
        if self._link is None:
            self._link = spool_file.create(self.path)
        if self._too_big():
            raise SpoolFull(f"the spool holds more than {self._most_bytes} bytes")
        reserve = os.open(self.slot.reserve, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(reserve, 0, self._reserve_bytes)
        finally:
            os.close(reserve)


class SpoolFull(OSError):
    pass
