"""The gateway's side of its spool: records go to the writer's process, which tells what landed.

An event loop speaks on one socket and never waits; threads (the drainer, a start) speak on another
and do. What was said and not yet answered is kept. When the writer is gone a new one takes its
place and is told all that again: numbers tell it what its predecessor had written.
"""

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from .errors import SpoolUnavailable
from .lines import Fresh
from .loop_line import LoopLine
from .records import Record
from .slots import Slot
from .thread_line import ThreadLine

logger = logging.getLogger(__name__)

RESERVE_BYTES: Final = 8 * 2**20  # some thousand close records, with what was read last
MOST_BYTES: Final = 16 * 2**30
LIFE_S: Final = 0.5  # of a writer; one that ends sooner is not replaced at once


class Process(Protocol):
    """Of ``subprocess.Popen``, what is asked of a writer."""

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...


Launch = Callable[["Spool", list[socket.socket]], Process]


def launch(spool: "Spool", ends: list[socket.socket]) -> Process:
    """Start the writer. Without ``site`` and without our environment: nothing there is for it."""
    inherited = [*(end.fileno() for end in ends), spool.slot.lock]
    sizes = [str(spool.reserve_bytes), str(spool.most_bytes)]
    return subprocess.Popen(  # noqa: S603 -- our own program
        [
            *(sys.executable, "-S", "-m", "proxy.record.spool_writer"),
            *(str(spool.slot.path), str(spool.slot.reserve), *sizes),
            *(str(end.fileno()) for end in ends),
        ],
        env={"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},  # noqa: PTH109 -- text
        pass_fds=inherited,
        start_new_session=True,  # a terminal's Ctrl-C is for the gateway
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


class Spool:
    """``start`` it; a record is durable when ``append`` returns or its landing lands."""

    def __init__(
        self,
        slot: Slot,
        *,
        reserve_bytes: int = RESERVE_BYTES,
        most_bytes: int = MOST_BYTES,
        launch: Launch = launch,
    ) -> None:
        self.slot = slot
        self.reserve_bytes = reserve_bytes
        self.most_bytes = most_bytes
        self.error = ""  # why nothing is admitted; empty: all is well
        self.appended = 0  # records that the drainer has to move
        self.lost_chunks = 0  # checkpoints that a full disk cost
        self.on_append: Callable[[], None] = lambda: None
        self.ending = False
        self.life = 0  # of how many writers this is the last one's
        self._launch = launch
        self.last = 0  # number that was given away
        self.speaking = threading.Lock()  # whoever gives one away, or speaks in the loop's place
        self._loop_line = LoopLine(self)
        self.enter = self._loop_line.enter
        """``append`` for an event loop: told by a landing, or nobody waits for it."""
        self._thread_line = ThreadLine(self)
        self.renewing = threading.Lock()  # the writer, and the lines that have it fresh
        self.writer: Process | None = None
        self.began = float("-inf")
        self._fault_at = (0, 0)  # of which writer's faults the last one is known

    @property
    def path(self) -> Path:
        return self.slot.path

    def start(self) -> None:
        """Start the writer, and wait until it listens. What ails it stands in ``error``.

        Raises SpoolUnavailable when it cannot be started.
        """
        self._thread_line.join()

    def stop(self, timeout_s: float = 10) -> None:
        """Let the writer write what it was told, and end."""
        if self.writer is not None and self.writer.poll() is not None:
            self.renew(self.life)  # it has just died, and what it was told may be lost
        self.ending = True
        self._loop_line.finish(timeout_s)
        self._thread_line.finish()
        if self.writer is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # it goes on without us
                self.writer.wait(timeout_s)
        self._loop_line.hang_up()

    def settle(self, within_s: float = 1.0) -> None:
        """Wait, for so long at most, until everything that was entered is answered."""
        self._loop_line.settle(within_s)

    def append(self, *records: Record) -> None:
        """Returns when they are on the disk; SpoolUnavailable when one cannot be. Waits."""
        self._thread_line.append(records)

    def call(self, job: Callable[..., Any], *arguments: Any) -> Any:
        """What a function of ``spool_file`` returns, called over the connection that writes.

        Arguments and result are JSON. Raises ``sqlite3.OperationalError`` for whatever it raised.
        Waits.
        """
        return self._thread_line.call(job.__name__, arguments)

    # For the lines

    def number(self) -> int:
        with self.speaking:
            self.last += 1
            return self.last

    def renew(self, life: int) -> bool:
        """Have a writer after that of ``life``. False: not yet, it would only die as well."""
        with self.renewing:
            if self.life != life:
                return True
            if time.monotonic() - self.began < LIFE_S:
                return False
            self.began = time.monotonic()
            if self.writer is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):  # its sockets went before it
                    self.writer.wait(1)
                self._say_fault(f"its writer ended with status {self.writer.poll()}")
            pairs = [socket.socketpair() for _ in (self._loop_line, self._thread_line)]
            try:
                self.writer = self._launch(self, [theirs for _, theirs in pairs])
            except OSError as exc:
                self._say_fault(f"its writer cannot be started: {exc}")
                for ours, _ in pairs:
                    ours.close()
                return False
            finally:
                for _, theirs in pairs:
                    theirs.close()
            self.life += 1
            for line, (ours, _) in zip((self._loop_line, self._thread_line), pairs, strict=True):
                if line.fresh is not None:  # of a writer that died before the line took it
                    line.fresh.link.close()
                line.fresh = Fresh(self.life, ours)
            return True

    def opened(self, number: int) -> None:
        """The first number that the file has not. Those of this process are higher, mostly."""
        with self.speaking:
            self.last = max(self.last, number - 1)

    def hear_fault(self, when: tuple[int, int], fault: str) -> None:
        """What a writer told of itself: both lines hear it, and one of them may be late."""
        if when > self._fault_at:
            self._fault_at = when
            self._say_fault(fault)

    def _say_fault(self, fault: str) -> None:
        if fault and not self.error:
            logger.error("spool: %s; new requests are refused", fault)
        elif self.error and not fault:
            logger.warning("spool: writable again after: %s", self.error)
        self.error = fault

    def refusal(self) -> SpoolUnavailable:
        return SpoolUnavailable(self.error or "the record has been stopped")
