"""The journal of one process: an append-only file; one write makes many records durable.

An event loop queues a record and never blocks on the disk. One thread writes all queued records
synchronously, and then resolves the futures of the requests that wait for these records. While the
disk is full or broken, new requests are rejected. The close records of accepted requests are
written into the space that the deletion of a reserve file frees, or stay queued until the disk has
space.
"""

import asyncio
import contextlib
import errno
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from proxy.ledger.errors import JournalUnavailable

from . import segments
from .locks import JournalLock
from .records import CHUNK, CLOSE, KIND, Record, encode
from .segments import Segment, compress, encode_frame


class DurabilityFuture:
    """Create it in the event loop in which a caller will ``wait`` for the record.

    ``withdraw`` is called in that loop if the record became durable after its caller was cancelled.
    """

    __slots__ = ("_withdraw", "future", "loop")

    def __init__(
        self, withdraw: Callable[[], None], loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """Create the future in the running event loop; passing ``loop`` saves a system call."""
        self.loop = loop or asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        self._withdraw = withdraw

    def resolve(self, error: Exception | None) -> None:
        """Set the result: ``error``, or success if it is None. Call this in the future's loop."""
        try:
            if error is None:
                self.future.set_result(None)
            else:
                self.future.set_exception(error)
        except asyncio.InvalidStateError:  # the caller was cancelled
            if error is None:
                self._withdraw()

    async def wait(self) -> None:
        """Return when the record is on the disk. Raises JournalUnavailable."""
        try:
            await self.future
        except asyncio.CancelledError:
            self.withdraw()
            raise

    def withdraw(self) -> None:
        """Let the record be withdrawn: now if it is durable, else when it has become so."""
        self.future.cancel()  # this has no effect on a future with a result
        if not self.future.cancelled() and self.future.exception() is None:
            self._withdraw()


logger = logging.getLogger(__name__)

RESERVE_BYTES: Final = 8 * 2**20  # space for some thousand close records on a full disk
MAX_BYTES: Final = 16 * 2**30
SEGMENT_BYTES: Final = 32 * 2**20
SEGMENT_S: Final = 3_600.0
"""Seconds after which a new segment file begins, because only whole segments are removed."""
MAX_COMMIT_RECORDS: Final = 512
MAX_COMMIT_BYTES: Final = 4 * 2**20
LARGE_BYTES: Final = 32 * 1024  # compressing more takes the event loop over 20 µs
LINGER_S: Final = 0.01
"""Seconds that a record without a waiting caller may stay in memory, to share a later write."""
RETRY_S: Final = 0.5
WAIT_S: Final = 30.0
NOT_OPEN: Final = "it is not open yet"
STOPPED: Final = "the record has been stopped"


class _Entry:
    """A queued record.

    The thread that queues it encodes it, and compresses it unless it is large: all requests wait
    for the journal's thread, which competes with the event loop for the interpreter lock.
    """

    __slots__ = ("at", "body", "compressed", "future", "id", "kind")

    def __init__(self, record: Record, future: DurabilityFuture | Future[None] | None) -> None:
        self.kind = KIND[type(record)]
        self.at = time.time()
        self.id = record.id
        body = encode(record)
        self.body, self.compressed = compress(body) if len(body) <= LARGE_BYTES else (body, False)
        self.future = future

    def encode(self, number: int) -> bytes:
        """Return the record as the frame with this number."""
        body, compressed = (self.body, True) if self.compressed else compress(self.body)
        return encode_frame(number, self.at, self.kind, self.id, body, compressed=compressed)


class Journal:
    """Call ``start``, then ``append`` records; ``stop`` writes the queued records and ends."""

    def __init__(
        self,
        lock: JournalLock,
        *,
        reserve_bytes: int = RESERVE_BYTES,
        max_bytes: int = MAX_BYTES,
        segment_bytes: int = SEGMENT_BYTES,
        segment_s: float = SEGMENT_S,
        wait_s: float = WAIT_S,
    ) -> None:
        self.directory: Path = lock.path
        self.reserve = lock.path / "reserve"
        self.error = NOT_OPEN  # why new requests are rejected; empty: new requests are accepted
        self.appended = 0  # number of open and close records that became durable
        self.lost_chunks = 0  # number of checkpoints dropped because they could not be written
        # Called after a commit of open or close records, unless ``append_and_wait`` queued them all
        self.on_append: Callable[[], None] = lambda: None
        self.first_segment = 0  # number of this process's first segment; 0: not known yet
        self._reserve_bytes, self._max_bytes = reserve_bytes, max_bytes
        self._segment_bytes, self._segment_s = segment_bytes, segment_s
        self._wait_s = wait_s
        self._writer = os.urandom(8)
        self._numbers = itertools.count(1)  # of the frames
        self._segment: Segment | None = None
        # Segment number -> durable length; only segments of this process.
        self._ends: dict[int, int] = {}
        self._next_segment = 0
        self._failed_at = 0.0
        self._queue: deque[_Entry] = deque()
        self._unwritten: list[_Entry] = []  # close records that could not be written yet
        self._wakes: SimpleQueue[None] = SimpleQueue()  # an item wakes the thread
        self._woken = False  # whether an item is in ``_wakes``, or was just taken from it
        self._lingers = self._is_writing = self._stopping = self._stopped = False
        self._resolving: dict[object, asyncio.AbstractEventLoop] = {}
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)

    def start(self) -> None:
        """Open a new segment file and start the writer thread.

        If the file cannot be opened, ``error`` has the reason, and the thread tries again.
        """
        self._open()
        self._thread.start()

    def stop(self, timeout_s: float = 10) -> None:
        """Write the queued records, then end the thread."""
        self._stopping = True
        self._wake()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def append(
        self,
        record: Record,
        future: DurabilityFuture | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Queue a record; call it in an event loop.

        ``future`` is resolved when the record is on the disk; without a future, the record is
        written after at most ``LINGER_S``. ``loop``: the running loop, if the caller has it. After
        the thread has ended, the future fails; without a future, JournalUnavailable is raised.
        """
        self._queue.append(_Entry(record, future))
        if future is not None:
            self._wake()
        elif not self._lingers:
            self._lingers = True
            (loop or asyncio.get_running_loop()).call_later(LINGER_S, self._wake)
        if self._stopped:  # the thread has ended and will not write the record
            self._reject_queue()
            if future is None:
                raise JournalUnavailable(STOPPED)

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._wakes.put(None)

    def append_and_wait(self, *records: Record) -> None:
        """Return when the records are on the disk. Raises JournalUnavailable.

        The call blocks, so use it in threads, not in an event loop.
        """
        futures: list[Future[None]] = [Future() for _ in records]
        self._queue.extend(map(_Entry, records, futures))
        self._wake()
        if self._stopped:
            self._reject_queue()
        for future in futures:
            try:
                future.result(self._wait_s)
            except TimeoutError:
                raise JournalUnavailable("the disk does not answer") from None

    def flush(self, within_s: float = 1.0) -> None:
        """Wait until queued records are durable and the futures in event loops are resolved.

        Returns after ``within_s`` in any case.
        """
        deadline = time.monotonic() + within_s
        while self._has_work() and time.monotonic() < deadline:
            self._wake()
            time.sleep(0.005)

    def _has_work(self) -> bool:
        return (
            bool(self._queue)
            or self._is_writing
            or any(loop.is_running() for loop in list(self._resolving.values()))
        )

    def end_of(self, number: int) -> int | None:
        """Return how many bytes of segment file ``number`` are durable.

        Return None for a file of an earlier process.
        """
        return self._ends.get(number, 0) if number >= self.first_segment else None

    # The thread

    def _run(self) -> None:
        while not self._stopping:
            with contextlib.suppress(Empty):
                self._wakes.get(timeout=RETRY_S)
            self._woken = self._lingers = False
            self._write_queue()
        self._failed_at = 0.0
        self._write_queue()
        self._stopped = True
        self._reject_queue()
        if self._unwritten:
            logger.error("journal: %d close records could not be written", len(self._unwritten))
        if self._segment is not None:
            self._segment.close()

    def _write_queue(self) -> None:
        self._is_writing = True
        try:
            if self.error and time.monotonic() - self._failed_at >= RETRY_S:
                self._open()
            self._write_unwritten()
            while self._queue:
                self._write(self._next_entries())
        finally:
            self._is_writing = False

    def _next_entries(self) -> list[_Entry]:
        """Remove from the queue, and return, the records to be written together."""
        entries: list[_Entry] = []
        size = 0
        while self._queue and len(entries) < MAX_COMMIT_RECORDS and size < MAX_COMMIT_BYTES:
            entries.append(entry := self._queue.popleft())
            size += len(entry.body)
        return entries

    def _write(self, entries: list[_Entry]) -> None:
        """Write the records, or fail their futures; close records are always retried."""
        if not self.error:
            try:
                self._commit_or_retry(entries)
            except Exception as exc:  # noqa: BLE001 -- after any exception, no entry is durable
                self._fail(exc)
            else:
                return
        rejected = [entry for entry in entries if entry.kind != CLOSE]
        self.lost_chunks += sum(entry.kind == CHUNK for entry in rejected)
        self._resolve(rejected, JournalUnavailable(self.error))
        self._unwritten += (entry for entry in entries if entry.kind == CLOSE)
        self._write_unwritten()

    def _write_unwritten(self) -> None:
        """Write the waiting close records one by one, as many as the disk has space for."""
        entries, self._unwritten = self._unwritten, []
        for entry in entries:
            try:
                self._commit([entry], self._encode_frames([entry]))
            except Exception:  # noqa: BLE001 -- after any exception, the record is retried later
                self._unwritten.append(entry)

    def _encode_frames(self, entries: Iterable[_Entry]) -> list[bytes]:
        """Return the entries encoded as frames, numbered from the next free frame number."""
        return [entry.encode(next(self._numbers)) for entry in entries]

    def _commit_or_retry(self, entries: Sequence[_Entry]) -> None:
        """Commit; after an error other than a full disk, commit again into a new segment.

        The frames in the new segment have the same numbers, so a reader that finds both copies of a
        record uses only one.
        """
        frames = self._encode_frames(entries)
        try:
            self._commit(entries, frames)
        except OSError as exc:
            if exc.errno == errno.ENOSPC:
                raise
            logger.warning("journal: %s; writing into a new segment", exc)
            self._commit(entries, frames)

    def _commit(self, entries: Sequence[_Entry], frames: Sequence[bytes]) -> None:
        """Write the frames. Raises OSError.

        After an error the segment gets no more frames, because written pages may not be on disk.
        """
        segment = self._open_segment()
        try:
            segment.append(frames)
        except OSError:
            self._segment = None
            segment.abandon()
            raise
        self.appended += (count := sum(entry.kind != CHUNK for entry in entries))
        self._ends[segment.number] = segment.synced
        if count and not all(isinstance(entry.future, Future) for entry in entries):
            self.on_append()
        self._resolve(entries, None)

    def _open_segment(self) -> Segment:
        """Return the segment to append to; begin a new one if the current is too large or old."""
        if self._segment is not None and self._is_complete(self._segment):
            segment, self._segment = self._segment, None
            segment.close()
            self._check_size()
        if self._segment is None:
            number, self._next_segment = self._next_segment, self._next_segment + 1
            self._segment = Segment(self.directory, number, self._writer)
            self._ends[number] = self._segment.synced
        return self._segment

    def _is_complete(self, segment: Segment) -> bool:
        is_old = time.monotonic() - segment.opened > self._segment_s
        return not segment.is_empty and (is_old or segment.size >= self._segment_bytes)

    def _reject_queue(self) -> None:
        """Fail the futures of records that were queued after the thread has ended."""
        with contextlib.suppress(IndexError):
            while True:
                self._resolve([self._queue.popleft()], JournalUnavailable(STOPPED))

    def _resolve(self, entries: Iterable[_Entry], error: Exception | None) -> None:
        """Set the results of the entries' futures, in each event loop with a single callback."""
        by_loop: dict[asyncio.AbstractEventLoop, list[DurabilityFuture]] = {}
        for entry in entries:
            if isinstance(entry.future, DurabilityFuture):
                by_loop.setdefault(entry.future.loop, []).append(entry.future)
            elif entry.future is not None and error is None:
                entry.future.set_result(None)
            elif entry.future is not None:
                entry.future.set_exception(error)
        for loop, futures in by_loop.items():
            self._resolving[futures[0]] = loop
            try:
                loop.call_soon_threadsafe(self._resolve_in_loop, futures, error)
            except RuntimeError:  # the event loop is closed, so no request waits in it
                del self._resolving[futures[0]]

    def _resolve_in_loop(self, futures: list[DurabilityFuture], error: Exception | None) -> None:
        for future in futures:
            future.resolve(error)
        del self._resolving[futures[0]]

    def _fail(self, exc: Exception) -> None:
        """Reject new requests from now on, and free disk space by deleting the reserve file."""
        self._failed_at = time.monotonic()
        with contextlib.suppress(OSError):
            self.reserve.unlink(missing_ok=True)
        if self.error in ("", NOT_OPEN):
            logger.error("journal: %s; new requests are rejected", exc)
        self.error = str(exc) or type(exc).__name__

    def _open(self) -> None:
        """Open a segment and allocate the reserve file, at the start and after an error."""
        try:
            if not self.first_segment:
                self.directory.mkdir(mode=0o700, exist_ok=True)
                segments.sync_directory(self.directory.parent)
                self.first_segment = self._next_segment = segments.next_number(self.directory)
            self._check_size()
            self._open_segment()
            self._allocate_reserve()
        except OSError as exc:
            self._fail(exc)
            return
        if self.error != NOT_OPEN:
            logger.warning("journal: writable again after: %s", self.error)
        self.error = ""

    def _allocate_reserve(self) -> None:
        reserve = os.open(self.reserve, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(reserve, 0, self._reserve_bytes)
        finally:
            os.close(reserve)

    def _check_size(self) -> None:
        """Raise OSError if the files of the journal are larger than its limit."""
        size = 0
        for number in segments.numbers_in(self.directory):
            with contextlib.suppress(FileNotFoundError):  # another thread has just removed the file
                size += segments.path_of(self.directory, number).stat().st_size
        if size > self._max_bytes:
            raise OSError(errno.ENOSPC, f"the journal is larger than {self._max_bytes} bytes")


def append_durably(directory: Path, *records: Record) -> None:
    """Write records into a new segment of a journal that no process writes to.

    Returns when all records are on the disk. Raises OSError.
    """
    segment = Segment(directory, segments.next_number(directory), os.urandom(8))
    now = time.time()
    try:
        segment.append(
            [
                encode_frame(number, now, KIND[type(one)], one.id, encode(one))
                for number, one in enumerate(records, 1)
            ]
        )
    except OSError:
        segment.abandon()
        raise
    segment.close()
