"""Locks by which each process owns one journal of the data directory.

The process that writes ``journal-<n>/`` locks ``journal-<n>.lock`` with flock. The kernel releases
the lock when the process ends, also after a crash. A journal whose lock is free is abandoned, and
another process takes it over.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from proxy.ledger.errors import JournalInUse

MAX_JOURNALS: Final = 256


@dataclass(slots=True)
class JournalLock:
    """The lock on a journal's directory; it ends with ``release`` or with the process."""

    path: Path
    handle: int

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1

    def discard(self) -> None:
        """Delete the journal of a dead process, whose records are in the database; then unlock.

        The lock file stays: if it were deleted, two processes could lock different files.
        """
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()


def _try_lock(directory: Path, number: int) -> JournalLock | None:
    handle = os.open(directory / f"journal-{number}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return JournalLock(directory / f"journal-{number}", handle)


def take(directory: Path) -> JournalLock:
    """Lock the first journal that no process uses. Raises JournalInUse."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in range(MAX_JOURNALS):
        if lock := _try_lock(directory, number):
            return lock
    raise JournalInUse(f"all {MAX_JOURNALS} journals in {directory} are in use by other processes")


def take_abandoned(directory: Path) -> Iterator[JournalLock]:
    """Yield locks on the journals of dead processes. The caller releases each one."""
    for path in sorted(directory.glob("journal-*")):
        number = path.name.removeprefix("journal-")
        if number.isdigit() and (lock := _try_lock(directory, int(number))):
            if path.is_dir():  # else another process has just removed the journal
                yield lock
            else:
                lock.release()
