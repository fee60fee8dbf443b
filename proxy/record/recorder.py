"""The front door of the record: what the gateway calls.

from proxy.record.recorder import recorder

await recorder.open(OpenRecord(...))    # durable on return; raises SpoolUnavailable
recorder.chunk(Chunk(...))              # soon durable, nobody waits
recorder.settle(CloseRecord(...))       # likewise; never dropped, not for a full disk either
await recorder.close(CloseRecord(...))  # the same, durable on return
"""

import asyncio
import atexit
import contextlib
import logging
import os
import secrets
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Sized
from pathlib import Path
from typing import Any, Final

from proxy.live.running import RUNNING

from . import slots, spool_file
from .drainer import Drainer
from .errors import SpoolUnavailable
from .landing import Landing
from .records import Chunk, CloseRecord, OpenRecord
from .spool import Spool
from .spool_file import Backlog

logger = logging.getLogger(__name__)

SWITCH_S: Final = 0.0001
"""How long the event loop waits for the interpreter behind a thread that computes, such as the
drainer. With Python's 5 ms each stream would feel it."""
CLOSE_WAIT_S: Final = 5.0  # after that the close record waits for space in memory, not the client


class Recorder:
    """One spool, its writer's process and its drainer thread. Starts itself when first used."""

    def __init__(self, directory: Path | None = None, running: Sized = ()) -> None:
        """``running``: the requests that are being served; while there are any, others rest."""
        self.worker = f"{socket.gethostname()[:32]}-{os.getpid()}-{secrets.token_hex(4)}"
        self._directory = directory
        self._running = running
        self._lock = threading.Lock()
        self._slot: slots.Slot | None = None
        self._prepared: Spool | None = None
        self._spool: Spool | None = None
        self._drainer: Drainer | None = None

    @property
    def directory(self) -> Path:
        """Where the spools of all workers are."""
        return self._directory or _data_dir()

    @property
    def slot(self) -> int:
        """The number of this worker's spool; -1: not started."""
        slot = self._slot
        return -1 if slot is None else slot.number

    def prepare(self) -> None:
        """Take a slot and start the writer, which needs 0.1 s; ``start`` waits until it listens.

        For whoever has other things to do meanwhile. Doing it again changes nothing.
        """
        with self._lock:
            if self._spool is None:
                self._taken().renew(0)

    def start(self) -> None:
        """Take a slot, open the spool, begin to drain. Doing it again changes nothing."""
        with self._lock:
            if self._spool is not None:
                return
            sys.setswitchinterval(SWITCH_S)
            spool = self._taken()
            spool.start()
            self._drainer = Drainer(spool, *_left_behind(spool), self._running)
            spool.on_append = self._drainer.wake
            self._drainer.start()
            self._spool, self._prepared = spool, None
            atexit.register(self.stop)

    def stop(self) -> None:
        """Write and move what waits, then let go of the slot. Doing it again changes nothing."""
        with self._lock:
            if self._spool is None or self._drainer is None or self._slot is None:
                return
            atexit.unregister(self.stop)
            self._spool.settle()
            self._drainer.stop()
            self._spool.stop()
            self._slot.release()
            self._spool = self._drainer = self._slot = None

    def _taken(self) -> Spool:
        if self._prepared is None:
            self._slot = slots.take(self.directory)
            self._prepared = Spool(self._slot)
        return self._prepared

    async def open(self, record: OpenRecord) -> None:
        """Returns when the record is on the disk. Raises SpoolUnavailable: refuse the request.

        When the caller is cancelled while it waits, the request was never accepted; if the record
        got onto the disk all the same, it is closed here.
        """
        landing = await self.enter(record)
        await landing.landed()

    async def enter(
        self, record: OpenRecord, loop: asyncio.AbstractEventLoop | None = None
    ) -> Landing:
        """The first half of ``open``: it is on its way, and there is time for other work.

        ``loop``: as for ``Landing``.
        """
        spool = self._spool or await self._ready()
        name = record.id  # a record that has landed is not kept for it
        landing = Landing(lambda: spool.enter(_never_told(name)), loop)
        spool.enter(record, landing)
        return landing

    def chunk(self, record: Chunk) -> None:
        """A checkpoint. When the spool cannot take it, it is counted and the answer goes on."""
        if self._spool is not None:
            self._spool.enter(record)

    def settle(self, record: CloseRecord, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """The end of an exchange: written with the next commit, also when that must wait for space.

        For an exchange that was opened here. ``loop``: as for ``Landing``.
        """
        if self._spool is None:
            raise SpoolUnavailable("the record has been stopped")
        self._spool.enter(record, loop=loop)

    async def close(self, record: CloseRecord) -> None:
        """Returns when the record is on the disk, or after a while when that must wait for space.

        Goes on when the caller is cancelled: a close record is never dropped.
        """
        spool = await self._ready()
        landing = Landing(lambda: None)
        spool.enter(record, landing)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(landing.future), CLOSE_WAIT_S)

    def state(self) -> dict[str, Any]:
        """For /readyz and /metrics: what is degraded, and how much waits since when."""
        spool, drainer = self._spool, self._drainer
        if spool is None or drainer is None:
            return {
                "started": False,
                "spool": True,
                "database": True,
                "backlog": 0,
                "oldest_s": 0.0,
            }
        backlog = drainer.backlog
        return {
            "started": True,
            "spool": not spool.error,
            "spool_error": spool.error,
            "database": not drainer.error,
            "database_error": drainer.error,
            "backlog": backlog.records,
            "oldest_s": max(0.0, time.time() - backlog.oldest) if backlog.oldest else 0.0,
            "set_aside": backlog.set_aside,
            "lost_chunks": spool.lost_chunks,
        }

    async def _ready(self) -> Spool:
        if self._spool is None:
            await asyncio.to_thread(self.start)
        if self._spool is None:
            raise SpoolUnavailable("the record has been stopped")
        return self._spool


def _never_told(exchange_id: str) -> CloseRecord:
    return CloseRecord(
        id=exchange_id,
        finished=time.time(),
        outcome="client_gone",
        status=499,
        detail="gone_before_dial",
        delivered=False,
    )


def _left_behind(spool: Spool) -> tuple[list[str], Backlog]:
    """What an earlier owner of the slot left open or unmoved, looked up before anything is new."""
    try:
        orphans = spool.call(spool_file.unclosed_ids)
        return orphans, Backlog(*spool.call(spool_file.backlog))
    except (SpoolUnavailable, sqlite3.Error):
        logger.exception("spool: orphans cannot be read now; they are closed at the next start")
        return [], Backlog(0, None, 0)


def _data_dir() -> Path:
    from proxy.conf import conf  # noqa: PLC0415 -- only the default instance needs Django's settings

    return conf.data_dir


recorder: Final = Recorder(running=RUNNING)
