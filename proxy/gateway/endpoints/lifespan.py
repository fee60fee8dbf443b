"""Start and stop the gateway's services on the lifespan events of ASGI.

Under an ASGI server without lifespan events, the first request starts the services.
"""

import asyncio
import ctypes
import gc
import logging
import multiprocessing
import os
import signal
import sys
from typing import Any, Final

from django.db import DatabaseError, connection

from proxy.admission_checks import register_gateway
from proxy.conf import conf
from proxy.gateway.admission import dry_run
from proxy.gateway.admission.budget_maintenance import budget_maintenance
from proxy.gateway.admission.load_shedding import load_shedder
from proxy.gateway.admission.revocation_watcher import watch_for_revocations
from proxy.gateway.request.tracing import tracing
from proxy.gateway.snapshot.config_snapshot import directory
from proxy.gateway.upstream.client import close_transport
from proxy.gateway.upstream.model_memory import memory
from proxy.gateway.webhooks import webhook_sender
from proxy.ledger.database.access import database_file
from proxy.ledger.database.schema_check import check_schema, is_migration_pending
from proxy.ledger.errors import LedgerUnavailable, SchemaMismatch
from proxy.ledger.maintenance.purge_jobs import nightly
from proxy.ledger.maintenance.retention import remove_response_files
from proxy.ledger.recorder import recorder
from proxy.live.live_view_sync import live_view_sync

log = logging.getLogger("proxy.gateway")

RUNNING: Final[set[asyncio.Task[Any] | None]] = set()
"""The tasks of the running requests in all event loops of this process."""
SHUTDOWN_WAIT_S: Final = 5.0
GC_THRESHOLDS: Final = (10_000, 20, 50)
"""The garbage collector's thresholds for its three generations. Python's defaults are 700, 10, 10.
Higher ones suffice, because reference counting frees nearly all objects: there are hardly any
cycles."""
# Constants of malloc.h. If a parameter is set, glibc no longer adapts it.
MMAP_THRESHOLD: Final = -3
ARENA_MAX: Final = -8

MALLOC_SETTINGS: Final = {
    MMAP_THRESHOLD: 128 * 1024,  # bytes; glibc's initial value
    ARENA_MAX: 2,  # number of heaps; because of the GIL, more would not help
}


async def start_services() -> None:
    """Load the configuration snapshot, open the journal and start the background services.

    Services that are already running are not started again.
    """
    if not directory.running:
        directory.tasks = [memory.synchronize]
        await asyncio.to_thread(directory.start)
    if not recorder.state()["started"]:
        await asyncio.to_thread(recorder.start)
    tracing.start()
    if any(caller.budgets for caller in directory.snapshot.keys.values()):
        await asyncio.to_thread(budget_maintenance.start)
    await asyncio.to_thread(remove_response_files)
    live_view_sync.start(recorder.worker)
    register_gateway(dry_run.dry_run_admission)
    load_shedder.start()
    nightly.start(conf.purge_hour)
    webhook_sender.start()
    watch_for_revocations()


async def stop_services() -> None:
    """Stop the services after the last response: flush the journal's queue and close connections.

    The ASGI server has cancelled the requests that did not end within the shutdown timeout. These
    requests still send an error to their clients and write their ledger rows, so wait for them
    first.
    """
    loop = asyncio.get_running_loop()
    left = [task for task in RUNNING if task is not None and task.get_loop() is loop]
    if left:
        await asyncio.wait(left, timeout=SHUTDOWN_WAIT_S)
    load_shedder.stop()
    await close_transport()
    for service in (
        nightly, webhook_sender, live_view_sync, tracing, recorder, budget_maintenance, directory
    ):  # fmt: skip
        await asyncio.to_thread(service.stop)


def tune_malloc() -> None:
    """Set glibc's malloc parameters, so that the memory of large bodies is returned to the system.

    glibc allocates a large block by ``mmap`` and returns it to the system when it is freed. But
    each freed block raises the threshold from which ``mmap`` is used, and each thread has its own
    heap. So by default, bodies end up in heaps between small objects, and their memory is not
    returned. Measured peak memory above idle, with 100 streams and bodies of 400 KB: 760 KB a
    stream without these settings, 280 KB with the mmap threshold, 190 KB with both settings.

    Call this before threads start. It does nothing without glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for name, number in MALLOC_SETTINGS.items():
            mallopt(name, number)


def tune_gc() -> None:
    """Exempt all objects created at the start from garbage collection, and collect less often.

    A full collection visits all objects of Django: it stopped every stream for 70 to 230 ms, every
    few hundred large requests. With these settings a full collection takes 10 to 30 ms, and all
    collections take 0.1 ms a request instead of 1 ms. There is no collection before ``freeze``: it
    would take 60 ms to free 0.6 MB.
    """
    gc.freeze()
    gc.enable()  # the command line disables collection during the start
    gc.set_threshold(*GC_THRESHOLDS)


def _check_schema() -> None:
    """Raise SchemaMismatch if the database schema is wrong.

    If the database is unreachable, or will be migrated later, this is only logged.
    """
    try:
        database_file()
        check_schema()
    except (DatabaseError, LedgerUnavailable) as error:
        log.warning("the schema cannot be checked now: %s", error)
    except SchemaMismatch as mismatch:
        if not is_migration_pending():
            raise
        log.warning("the database is not ready yet: %s", mismatch)
    finally:
        connection.close()  # close the database connection of this thread


def _end_without_parent(parent: Any) -> None:
    """Drain and end this worker, because its parent process was killed.

    Without a parent, nothing would restart or end it, and its listening socket would keep the port
    from the next ``serve``. The sentinel becomes readable when the parent ends, however it ends.
    """
    asyncio.get_running_loop().remove_reader(parent.sentinel)
    log.error("the parent process has ended: this worker finishes its requests and ends")
    os.kill(os.getpid(), signal.SIGTERM)


async def lifespan(scope: Any, receive: Any, send: Any) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            tune_malloc()
            if (parent := multiprocessing.parent_process()) is not None:
                asyncio.get_running_loop().add_reader(parent.sentinel, _end_without_parent, parent)
                # This process is one of several workers: the parent process applies bridge.toml on
                # SIGHUP. The signal reaches the whole process group and must not end this worker's
                # streams.
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
            try:
                await asyncio.to_thread(_check_schema)
            except SchemaMismatch as mismatch:
                await send({"type": "lifespan.startup.failed", "message": str(mismatch)})
                return
            await start_services()
            tune_gc()
            await send({"type": "lifespan.startup.complete"})
        else:
            await stop_services()
            await send({"type": "lifespan.shutdown.complete"})
            return
