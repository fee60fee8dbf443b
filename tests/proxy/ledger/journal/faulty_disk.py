"""A simulated disk that is full, fails to sync a write, or is slow, as a test sets it."""

import errno
import os
import threading
from typing import Any

import pytest

from proxy.ledger.journal import journal, segments


class FaultyDisk:
    """Stands for ``os`` in the journal; everything that does not fail is the real disk's."""

    def __init__(self) -> None:
        self.full = False
        self.good_syncs = 0  # how many of the next ones succeed in any case
        self.failing_syncs = 0  # how many of those after them fail
        self.syncs = 0
        self.free = threading.Event()  # clear it: write does not return
        self.free.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, file: int, data: memoryview) -> int:
        if self.full and len(data) > 20:  # the disk takes a part of it first
            return os.write(file, data[: len(data) // 2])
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = os.write(file, data)
        self.free.wait(60)
        self.syncs += 1
        if self.good_syncs:
            self.good_syncs -= 1
        elif self.failing_syncs:  # the kernel has the bytes, but the disk may not have them
            self.failing_syncs -= 1
            raise OSError(errno.EIO, "Input/output error")
        return written

    def posix_fallocate(self, file: int, offset: int, length: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        os.posix_fallocate(file, offset, length)


def make_faulty(monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    disk = FaultyDisk()
    # The disk is the far side of the journal, and no real one fails on demand.
    for module in (segments, journal):
        monkeypatch.setattr(module, "os", disk)
    return disk
