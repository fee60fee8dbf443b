"""A spool whose writer is a thread of this process, so that a test can let its disk lie."""

import contextlib
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.record import slots, spool_file, spool_writer
from proxy.record.spool import Spool


class WriterThread:
    """Stands for the process; its lines are the same sockets."""

    def __init__(self, spool: Spool, ends: list[socket.socket]) -> None:
        links = [socket.socket(fileno=end.detach()) for end in ends]
        self._writer = spool_writer.Writer(
            spool.slot.path, spool.slot.reserve, spool.reserve_bytes, spool.most_bytes, links
        )
        self._thread = threading.Thread(target=self._run, args=(links,))
        self._thread.start()

    def _run(self, links: list[socket.socket]) -> None:
        self._writer.run()
        for link in links:
            link.close()

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else 0

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise subprocess.TimeoutExpired("the writer", timeout or 0)
        return 0


def full(link: sqlite3.Connection) -> None:
    (pages,) = link.execute("PRAGMA page_count").fetchone()
    link.execute(f"PRAGMA max_page_count={pages}")


def roomy(link: sqlite3.Connection) -> None:
    link.execute("PRAGMA max_page_count=1000000").fetchone()


def read_ids(path: Path) -> list[str]:
    with contextlib.closing(spool_file.connect(path)) as link:
        return [row[0] for row in link.execute("SELECT id FROM records ORDER BY seq")]


@contextlib.contextmanager
def spool_in_a_thread(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spool]:
    """``call`` it with ``full`` and ``roomy``, too."""
    for job in (full, roomy):
        monkeypatch.setitem(spool_writer.JOBS, job.__name__, job)
    slot = slots.take(folder)
    spool = Spool(slot, reserve_bytes=65_536, launch=WriterThread)
    spool.start()
    yield spool
    spool.stop()
    slot.release()
