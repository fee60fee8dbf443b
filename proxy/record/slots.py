"""Slots: which process owns which spool file of a data directory.

``spool-<n>.lock`` is held with flock for as long as its owner lives; the kernel lets go of it when
the owner dies, however it dies. A slot whose lock is free and whose file exists is abandoned.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .errors import SpoolInUse

MOST_SLOTS: Final = 256


@dataclass(slots=True)
class Slot:
    """A spool file and the lock on it. ``release`` it, or die."""

    number: int
    path: Path
    lock: int

    @property
    def reserve(self) -> Path:
        return self.path.with_suffix(".reserve")

    def release(self) -> None:
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1

    def discard(self) -> None:
        """Remove the files of a drained slot, then let go of it.

        The lock file stays: unlinking it would let two processes hold "the" lock at once.
        """
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        self.reserve.unlink(missing_ok=True)
        self.release()


def _try(directory: Path, number: int) -> Slot | None:
    lock = os.open(directory / f"spool-{number}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return Slot(number, directory / f"spool-{number}.sqlite3", lock)


def take(directory: Path) -> Slot:
    """The lowest free slot. Raises SpoolInUse when there is none."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in range(MOST_SLOTS):
        if slot := _try(directory, number):
            return slot
    raise SpoolInUse(f"all {MOST_SLOTS} spool slots in {directory} are held by other processes")


def take_abandoned(directory: Path) -> Iterator[Slot]:
    """Slots whose owner is dead but whose file is still there. The caller must let go of each."""
    for path in sorted(directory.glob("spool-*.sqlite3")):
        number = path.stem.removeprefix("spool-")
        if number.isdigit() and (slot := _try(directory, int(number))):
            if path.exists():  # else its last owner drained it while we looked
                yield slot
            else:
                slot.release()


@contextlib.contextmanager
def held(slot: Slot) -> Iterator[Slot]:
    try:
        yield slot
    finally:
        slot.release()
