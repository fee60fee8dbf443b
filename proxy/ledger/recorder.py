"""The interface by which the gateway records each request: open, chunks, close.

Records are appended to a journal on the local disk; a thread writes them to the database later.

await recorder.open(OpenRecord(...))    # durable on return; raises JournalUnavailable
recorder.chunk(Chunk(...))              # durable soon; dropped if the disk is full
recorder.begin_close(CloseRecord(...))  # durable soon; waits for space if the disk is full
await recorder.close(CloseRecord(...))  # like begin_close, but durable on return
"""

import asyncio
import atexit
import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Sized
from pathlib import Path
from typing import Any, Final

from proxy.ledger.journal.journal import STOPPED, DurabilityFuture, Journal
from proxy.ledger.journal.records import Chunk, CloseRecord, OpenRecord
from proxy.ledger.posting.drainer import Drainer, Pace
from proxy.ledger.posting.ledger_writer import underived
from proxy.live.running_requests import RUNNING

from .errors import JournalUnavailable
from .journal import locks

CLOSE_WAIT_S: Final = 5.0  # longest wait of a client for the close record on a full disk


class Recorder:
    """One journal and the thread that writes its records to the database.

    Both start with the first record.
    """

    def __init__(self, directory: Path | None = None, running: Sized = ()) -> None:
        """Create a recorder for ``directory``, by default the data directory of the settings.

        ``running`` contains the requests that are being served; while there are any, the thread
        that writes to the database pauses more.
        """
        self.pace = Pace()  # the pace of the thread; a change has effect at the next ``start``
        self.worker = f"{socket.gethostname()[:32]}-{os.getpid()}-{secrets.token_hex(4)}"
        self._directory = directory
        self._running = running
        self._lock = threading.Lock()
        self._journal_lock: locks.JournalLock | None = None
        self.journal: Journal | None = None
        self.drainer: Drainer | None = None

    @property
    def directory(self) -> Path:
        """The data directory, which contains the journals of all worker processes."""
        if self._directory is not None:
            return self._directory
        from proxy.conf import conf  # noqa: PLC0415 -- only the default needs Django's settings

        return conf.data_dir

    def start(self) -> None:
        """Lock and open a journal, and start its threads. A second call changes nothing.

        Raises JournalInUse.
        """
        with self._lock:
            if self.journal is not None:
                return
            self._journal_lock = locks.take(self.directory)
            journal = Journal(self._journal_lock)
            journal.start()
            self.drainer = Drainer(journal, self._running, self.pace)
            journal.on_append = self.drainer.wake
            self.drainer.start()
            self.journal = journal
            atexit.register(self.stop)

    def stop(self) -> None:
        """Write queued records to disk and database, then release the journal.

        A second call changes nothing.
        """
        with self._lock:
            if self.journal is None or self.drainer is None or self._journal_lock is None:
                return
            atexit.unregister(self.stop)
            self.journal.flush()
            self.drainer.stop()
            self.journal.stop()
            self._journal_lock.release()
            self.journal = self.drainer = self._journal_lock = None

    async def open(self, record: OpenRecord) -> None:
        """Return when the record is on the disk.

        Raises JournalUnavailable; then the caller must reject the request. If the caller is
        cancelled while it waits, the request counts as never accepted; if its record becomes
        durable nevertheless, a close record is appended.
        """
        await (await self.begin_open(record)).wait()

    async def begin_open(
        self, record: OpenRecord, loop: asyncio.AbstractEventLoop | None = None
    ) -> DurabilityFuture:
        """Queue the record; return a future, so that the caller can wait for the disk later.

        ``loop``: the running event loop; without it, getting the loop costs a system call.
        """
        journal = self.journal or await self._ready()
        request_id = record.id  # the lambda must not keep the whole record in memory
        future = DurabilityFuture(lambda: journal.append(withdrawn_record(request_id)), loop)
        journal.append(record, future)
        return future

    def chunk(self, record: Chunk) -> None:
        """Queue a part of a response as a checkpoint, which counts as lost if the disk is full."""
        if self.journal is not None:
            self.journal.append(record)

    def begin_close(
        self, record: CloseRecord, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """Queue a close record, which is written soon, or as soon as the disk has space.

        This recorder must have written the open record. ``loop``: the running event loop; without
        it, getting the loop costs a system call. Raises JournalUnavailable.
        """
        if self.journal is None:
            raise JournalUnavailable(STOPPED)
        self.journal.append(record, loop=loop)

    async def close(self, record: CloseRecord) -> None:
        """Return when the record is on the disk, or after ``CLOSE_WAIT_S`` if the disk is full.

        The record is written even if the caller is cancelled: a close record is never dropped.
        """
        journal = await self._ready()
        future = DurabilityFuture(lambda: None)
        journal.append(record, future)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(future.future), CLOSE_WAIT_S)

    def state(self) -> dict[str, Any]:
        """Return the state of journal and database for /readyz and /metrics.

        It includes the number of records not yet in the database, and the age of the oldest.
        """
        journal, drainer = self.journal, self.drainer
        if journal is None or drainer is None:
            not_started = {"started": False, "backlog": 0, "oldest_s": 0.0}
            return not_started | {"journal": True, "database": True}
        backlog = drainer.backlog
        return {
            "started": True,
            "name": journal.directory.name,
            "journal": not journal.error,
            "journal_error": journal.error,
            "database": not drainer.error,
            "database_error": drainer.error,
            "backlog": backlog.records,
            "oldest_s": max(0.0, time.time() - backlog.oldest) if backlog.oldest else 0.0,
            "set_aside": backlog.set_aside,
            "lost_chunks": journal.lost_chunks,
            "underived": underived.total(),
        }

    async def _ready(self) -> Journal:
        if self.journal is None:
            await asyncio.to_thread(self.start)
        if self.journal is None:
            raise JournalUnavailable(STOPPED)
        return self.journal


def withdrawn_record(request_id: str) -> CloseRecord:
    """Return the close record of a client that disconnected before its record was durable."""
    return CloseRecord(
        id=request_id,
        finished=time.time(),
        outcome="client_gone",
        status=499,
        detail="gone_before_upstream",
        delivered=False,
    )


recorder: Final = Recorder(running=RUNNING)
