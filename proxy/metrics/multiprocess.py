"""Share the metrics of several workers through files: the multiprocess mode of prometheus_client.

Each worker writes its values to memory-mapped files in ``PROMETHEUS_MULTIPROC_DIR``, and the worker
that answers /metrics adds up the files of all workers. ``serve`` sets this environment variable
when it starts several workers. A process without the variable stores its values in memory.

The files are named after a worker number, not after the process id: a new worker takes the number
of a dead one and continues its files. So counters do not fall when a worker is replaced, and there
are never more sets of files than workers that ran at the same time.
"""

import contextlib
import fcntl
import itertools
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from prometheus_client import values
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.values import MultiProcessValue, MutexValue

log = logging.getLogger("proxy.metrics")

VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
GAUGE_MODE: Final = "livesum"
"""A gauge is the sum over the living workers; ``mark_dead_workers`` removes the gauge file of a
dead worker."""
FILE_BYTES: Final = {"counter": 16 << 20, "histogram": 16 << 20, f"gauge_{GAUGE_MODE}": 2 << 20}
"""The size of a worker's file, by file name prefix. It is enough for the maximum number of label
sets. Files are allocated in full, because prometheus_client would create sparse files, and a write
to a sparse file kills the process (SIGBUS) when the disk is full."""


class _Worker:
    """Number and directory of this process's files.

    ``directory`` None: the values are in memory.
    """

    number = 0
    directory: Path | None = None


worker: Final = _Worker()


def prepare(data_directory: Path) -> None:
    """Create the directory of the metric files, empty it, and set ``PROMETHEUS_MULTIPROC_DIR``.

    Call this once, in the process that starts the workers, before it starts them.
    """
    directory = data_directory / "metrics"
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        for path in directory.glob("*.db"):
            path.unlink()
    except OSError as error:  # a full disk, for instance
        log.warning("the workers do not share their metrics: %s", error)
        return
    os.environ[VARIABLE] = str(directory)


def open_worker_files() -> None:
    """Lock a free worker number, and use its files for all metrics that are created afterwards."""
    if VARIABLE not in os.environ:
        return
    directory = Path(os.environ[VARIABLE])
    try:
        with _exclusive(directory):
            number, lock = next(
                (n, lock)
                for n in itertools.count()
                if (lock := _lock_number(directory, n)) is not None
            )
            os.ftruncate(lock, 0)
            os.write(lock, str(os.getpid()).encode())
            mark_process_dead(number, directory)
        for prefix, size in FILE_BYTES.items():
            _allocate(directory / f"{prefix}_{number}.db", size)
    except OSError as error:
        log.warning("the metrics of this worker are not shared: %s", error)
        values.ValueClass = MutexValue
        return
    values.ValueClass = MultiProcessValue(process_identifier=lambda: number)
    worker.number, worker.directory = number, directory


def existing_labels() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield metric name and labels of each series in the files that this worker took over."""
    if worker.directory is not None:
        paths = worker.directory.glob(f"*_{worker.number}.db")
        for family in MultiProcessCollector.merge(map(str, paths)):
            for sample in family.samples:
                yield family.name, sample.labels


def worker_processes() -> dict[int, int]:
    """Return the process id of each living worker, by worker number."""
    if worker.directory is None:
        return {worker.number: os.getpid()}
    found = {}
    for path in sorted(worker.directory.glob("worker-*.lock")):
        number, pid = int(path.stem.removeprefix("worker-")), path.read_text(encoding="ascii")
        if pid.isdigit() and Path("/proc", pid).exists():
            found[number] = int(pid)
    return found


def mark_dead_workers(directory: Path) -> None:
    """Remove the gauge files of workers that have ended. Their counters and histograms stay."""
    with _exclusive(directory):
        for path in directory.glob("worker-*.lock"):
            number = int(path.stem.removeprefix("worker-"))
            if number != worker.number and (lock := _lock_number(directory, number)) is not None:
                mark_process_dead(number, directory)
                os.close(lock)


def _allocate(path: Path, size: int) -> None:
    """Create a metric file of ``size`` zero bytes, which prometheus_client treats as empty.

    The file gets its name when it is complete: a worker that answers /metrics at this moment cannot
    read a file without its header.
    """
    if path.exists():
        return
    incomplete = path.with_suffix(".incomplete")
    try:
        incomplete.write_bytes(bytes(size))
        incomplete.replace(path)
    except OSError:
        incomplete.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _exclusive(directory: Path) -> Iterator[None]:
    """Lock the directory, so that only one process at a time examines the workers' lock files."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _lock_number(directory: Path, number: int) -> int | None:
    """Lock a worker number and return the file descriptor; None if a living worker has the number.

    The kernel releases the lock when the file descriptor is closed or the process ends.
    """
    descriptor = os.open(directory / f"worker-{number}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
