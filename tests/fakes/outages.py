"""Outages of a running gateway: a disk that is full or stops, and files that cannot be opened."""

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from proxy.counters.sqlite_store import SqliteStore
from proxy.ledger.journal.segments import Segment
from proxy.ledger.recorder import recorder
from tests.waiting import until

Append = Callable[[Segment, Sequence[bytes]], None]


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Let no segment of the journal grow."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with _disk(fail):
        yield
    until(lambda: recorder.state()["journal"])


@contextlib.contextmanager
def suspended_disk() -> Iterator[None]:
    """Suspend the journal, as a disk that does not respond would."""
    free = threading.Event()
    append = Segment.append

    def wait(segment: Segment, frames: Sequence[bytes]) -> None:
        assert free.wait(60)
        append(segment, frames)

    with _disk(wait):
        try:
            yield
        finally:
            free.set()


@contextlib.contextmanager
def _disk(append: Append) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        # A test can neither fill nor stop the disk of a running gateway.
        patch.setattr(Segment, "append", append)
        yield


@contextlib.contextmanager
def unusable(file: Path, store: SqliteStore | None = None) -> Iterator[None]:
    """Put a folder in the place of a SQLite file, so that no process can open it.

    ``store``: the store of this process that has the file open; it is closed, and opens the file
    again at its next call. Each step is atomic, because threads of the gateway use the file.
    """
    file.touch(0o600)
    moved, folder = file.with_suffix(".moved"), file.with_suffix(".folder")
    os.link(file, moved)
    folder.symlink_to(file.parent)
    folder.replace(file)
    if store is not None:
        store.close()
    try:
        yield
    finally:
        moved.replace(file)
