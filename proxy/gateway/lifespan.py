"""Start and stop with the server, where it tells us; everything starts itself where it does not."""

import asyncio
import gc
import logging
import multiprocessing
import signal
from typing import Any, Final

from django.db import DatabaseError, connection

from proxy.admission import serve_by
from proxy.conf import conf
from proxy.live.messenger import messenger
from proxy.record.database import present
from proxy.record.errors import LedgerAway, SchemaMismatch
from proxy.record.nightly import nightly
from proxy.record.recorder import recorder
from proxy.record.schema import check_schema

from . import memory, rehearsal
from .directory import directory
from .keeper import keeper
from .pressure import pressure
from .reporting import metrics
from .revoked import watch_for_revocations
from .tracing import tracing
from .upstream import close_transport

log = logging.getLogger("proxy.gateway")

RUNNING: Final[set[asyncio.Task[Any] | None]] = set()
"""Every request that is being served, in any event loop of this process."""
LAST_WORDS_S: Final = 5.0
COLLECT_AFTER: Final = (10_000, 20, 50)
"""Objects made more than gone, young collections, middle ones. Python's are 700, 10, 10; hardly
anything here is a cycle, so reference counts free nearly all."""


async def start_parts() -> None:
    """Load the directory, open the spool; what runs already is left alone."""
    if not directory.running:
        await asyncio.to_thread(directory.start)
    if not recorder.state()["started"]:
        await asyncio.to_thread(recorder.start)
    metrics.start(recorder.directory, recorder.slot)
    tracing.start()
    if any(caller.budgets for caller in directory.snapshot.keys.values()):
        await asyncio.to_thread(keeper.start)
    messenger.start()
    serve_by(rehearsal.rehearse)
    pressure.start()
    nightly.start(conf.purge_hour)
    watch_for_revocations()


async def stop_parts() -> None:
    """After the last answer: write what waits, close what is open.

    The server has cancelled what outlasted the drain; those requests still end their streams in
    an error and write their rows.
    """
    loop = asyncio.get_running_loop()
    left = [task for task in RUNNING if task is not None and task.get_loop() is loop]
    if left:
        await asyncio.wait(left, timeout=LAST_WORDS_S)
    pressure.stop()
    await close_transport()
    await asyncio.to_thread(nightly.stop)
    await asyncio.to_thread(messenger.stop)
    await asyncio.to_thread(tracing.stop)
    await asyncio.to_thread(metrics.stop)  # before the slot is another worker's
    await asyncio.to_thread(recorder.stop)
    await asyncio.to_thread(keeper.stop)
    await asyncio.to_thread(directory.stop)


def settle_garbage() -> None:
    """Take what the start has made out of the collector's sight, and let it look less often.

    A full collection walks through all of Django: it stopped every stream for 70 to 230 ms, every
    few hundred large requests. So it is 10 to 30 ms, and 0.1 ms a request in all where it was 1.
    None goes before: of what a start makes it frees 0.6 MB, and takes 60 ms for it.
    """
    gc.freeze()
    gc.enable()  # a start goes without: bridge_project/command.py
    gc.set_threshold(*COLLECT_AFTER)


def _check_schema() -> None:
    """A database that is away is no reason not to start (promises.md D01); a wrong one is."""
    try:
        present()
        check_schema()
    except (DatabaseError, LedgerAway) as error:
        log.warning("the schema cannot be checked now: %s", error)
    finally:
        connection.close()  # this thread's own


async def lifespan(scope: Any, receive: Any, send: Any) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            memory.settle()
            if multiprocessing.parent_process() is not None:
                # One of several workers: the process above applies the file and raises the
                # revision, and a signal to the whole group must not end the streams here.
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
            try:
                await asyncio.to_thread(_check_schema)
            except SchemaMismatch as mismatch:
                await send({"type": "lifespan.startup.failed", "message": str(mismatch)})
                return
            await start_parts()
            settle_garbage()
            await send({"type": "lifespan.startup.complete"})
        else:
            await stop_parts()
            await send({"type": "lifespan.shutdown.complete"})
            return
