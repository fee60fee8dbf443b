"""The process that writes one spool: group commit, and what happens when the disk is full.

    python -S -m proxy.record.spool_writer SPOOL RESERVE RESERVE_BYTES MOST_BYTES SOCKET...

A process of its own, for the interpreter's lock: a thread took it from the event loop some ten
times a commit, and cost a third of the requests. It imports no more than it needs, gets no secret
in its environment, and holds the lock on its slot as well. When its gateway ends, however it ends,
it writes what it was told before and ends, too.

Everything that waits when a commit begins shares it, so one fsync serves many requests. Space for
close records is reserved: while the reserve file is there, requests are admitted; when a commit
fails, the reserve is given up, new requests are refused and the close records of running ones are
written into the space it leaves.
"""

import contextlib
import json
import logging
import os
import select
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from . import spool_file, spool_talk
from .spool_talk import CLOSE, JOB, Said

logger = logging.getLogger(__name__)

MOST_TOGETHER: Final = 256  # records in one commit: keeps a commit under some milliseconds
RETRY_S: Final = 0.5
LOOK_EVERY: Final = 64  # commits between two looks at the size of the file
DISK_FAULTS: Final = (sqlite3.Error, OSError)
READ_BYTES: Final = 2**18  # a Unix socket holds a little less
JOBS: Final[dict[str, Callable[..., Any]]] = {
    job.__name__: job
    for job in (
        spool_file.backlog,
        spool_file.forget,
        spool_file.mark_moved,
        spool_file.set_aside,
        spool_file.unclosed_ids,
        spool_file.used_bytes,
    )
}
"""What the drainer and a new gateway ask of the one connection that writes."""


class Line:
    """One of the gateway's two sockets: its event loop speaks on one, its threads on the other."""

    def __init__(self, link: socket.socket, into: memoryview) -> None:
        self.link = link
        self._into = into  # what is read: room of its own for each took three system calls
        self._got = bytearray()

    def hear(self) -> "list[Entry] | None":
        """What was said since; None: the gateway has gone."""
        try:
            size = self.link.recv_into(self._into)
        except ConnectionError:
            return None
        self._got += self._into[:size]
        return [(self, said) for said in spool_talk.heard(self._got)] if size else None

    def tell(self, kind: int, payload: bytes = b"") -> None:
        try:
            self.link.sendall(spool_talk.tell(kind, payload))
        except OSError:
            return  # nobody is left to hear it


Entry = tuple[Line, Said]


class Writer:
    """``run`` it; it returns when every line has ended and everything was written."""

    def __init__(
        self,
        path: Path,
        reserve: Path,
        reserve_bytes: int,
        most_bytes: int,
        links: Iterable[socket.socket],
    ) -> None:
        self.path = path
        self.error = "it is not open yet"  # why nothing is admitted; empty: all is well
        self._faults = 0  # told so far
        self.link: sqlite3.Connection | None = None
        self._reserve = reserve
        self._reserve_bytes = reserve_bytes
        self._most_bytes = most_bytes
        self._stuck: list[Entry] = []  # close records that could not be written yet
        self._tried = 0.0
        self._commits = 0
        into = memoryview(bytearray(READ_BYTES))
        self.lines = {link.fileno(): Line(link, into) for link in links}
        self._poll = select.poll()
        for number in self.lines:
            self._poll.register(number, select.POLLIN)

    def run(self) -> None:
        self._try()
        for line in self.lines.values():
            line.tell(spool_talk.READY)
        with contextlib.suppress(OSError):  # it would only have been quicker
            spool_file.make_room(self.path)
        while self.lines:
            entries = self._hear(RETRY_S * 1000 if self.error else None)
            if self.error and time.monotonic() - self._tried >= RETRY_S:
                self._try()
            self._write(entries)
            del entries  # they hold bodies, and the next ones may be long in coming
        self._try()
        self._write([])
        if self._stuck:
            logger.error("%d close records could not be written", len(self._stuck))
        if self.link is not None:
            with contextlib.suppress(sqlite3.Error):
                self.link.close()

    def _hear(self, within_ms: float | None) -> list[Entry]:
        entries: list[Entry] = []
        for number, _ in self._poll.poll(within_ms):
            said = self.lines[number].hear()
            if said is None:
                self._poll.unregister(number)
                del self.lines[number]
            else:
                entries += said
        return entries

    def _write(self, entries: list[Entry]) -> None:
        records = self._stuck + [entry for entry in entries if entry[1].kind != JOB]
        self._stuck = []
        for at in range(0, len(records), MOST_TOGETHER):
            self._write_some(records[at : at + MOST_TOGETHER])
        for line, said in entries:
            if said.kind == JOB:
                line.tell(spool_talk.RESULT, spool_talk.numbers([said.number]) + self._done(said))

    def _write_some(self, records: list[Entry]) -> None:
        if self.error:
            self._commit_closes(self._refuse(records))
            return
        try:
            self._commit(records)
        except DISK_FAULTS as exc:
            self._fail(exc)
            self._commit_closes(self._refuse(records))
        except Exception:  # a bug; one record must not take the others with it, again and again
            logger.exception("a commit of %d records failed", len(records))
            for entry in records:
                self._commit_alone(entry)

    def _commit(self, entries: Sequence[Entry]) -> None:
        if self.link is None:
            raise sqlite3.OperationalError(self.error or "the spool file is not open")
        rows = [(said.number, said.name, said.kind, said.at, said.body) for _, said in entries]
        spool_file.append(self.link, rows, again=1 in [said.again for _, said in entries])
        _tell_each(entries, spool_talk.LANDED)
        self._commits += 1
        if self._commits % LOOK_EVERY == 0 and self._too_big():
            self._fail(SpoolFull(f"the spool holds more than {self._most_bytes} bytes"))

    def _too_big(self) -> bool:
        return self.link is not None and spool_file.used_bytes(self.link) > self._most_bytes

    def _commit_closes(self, closes: list[Entry]) -> None:
        """The way out of running requests on a full disk: one by one, as far as space goes."""
        for entry in closes:
            try:
                self._commit([entry])
            except DISK_FAULTS:
                self._stuck.append(entry)

    def _commit_alone(self, entry: Entry) -> None:
        try:
            self._commit([entry])
        except Exception:
            logger.exception("a record of %s cannot be written", entry[1].name)
            _tell_each([entry], spool_talk.REFUSED)

    def _refuse(self, entries: list[Entry]) -> list[Entry]:
        """Turn all but close records away; those are returned."""
        _tell_each([entry for entry in entries if entry[1].kind != CLOSE], spool_talk.REFUSED)
        return [entry for entry in entries if entry[1].kind == CLOSE]

    def _done(self, said: Said) -> bytes:
        """A job's result, or its fault, as JSON."""
        if self.link is None:
            return json.dumps({"fault": self.error}).encode()
        try:
            told = {"is": JOBS[said.name](self.link, *json.loads(said.body))}
        except Exception as exc:  # noqa: BLE001 -- it belongs to whoever asked
            told = {"fault": str(exc) or type(exc).__name__}
        return json.dumps(told).encode()

    def _fail(self, exc: Exception) -> None:
        self._tried = time.monotonic()
        with contextlib.suppress(OSError):
            self._reserve.unlink(missing_ok=True)
        self._say_fault(str(exc) or type(exc).__name__)
        if "full" not in self.error and self.link is not None:  # the file may be another one now
            with contextlib.suppress(sqlite3.Error):
                self.link.close()
            self.link = None

    def _try(self) -> None:
        """Open what is not open and take the reserve; what is wrong meanwhile is told."""
        self._tried = time.monotonic()
        try:
            self._mend()
        except DISK_FAULTS as exc:
            with contextlib.suppress(OSError):
                self._reserve.unlink(missing_ok=True)
            self._say_fault(str(exc) or type(exc).__name__)
        else:
            self._say_fault("")

    def _say_fault(self, fault: str) -> None:
        if fault != self.error:
            self.error = fault
            self._faults += 1
            told = spool_talk.numbers([self._faults]) + fault.encode()
            for line in self.lines.values():
                line.tell(spool_talk.FAULT, told)

    def _mend(self) -> None:
        """Open the file and reserve the space; raises while either is impossible."""
        if self.link is None:
            self.link = spool_file.create(self.path)
            for line in self.lines.values():
                line.tell(
                    spool_talk.OPENED, spool_talk.numbers([spool_file.next_number(self.link)])
                )
        if self._too_big():
            raise SpoolFull(f"the spool holds more than {self._most_bytes} bytes")
        reserve = os.open(self._reserve, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(reserve, 0, self._reserve_bytes)
        finally:
            os.close(reserve)


class SpoolFull(OSError):
    pass


def _tell_each(entries: Sequence[Entry], kind: int) -> None:
    """Whoever waits for these: one message for each line."""
    for line in {line: None for line, _ in entries}:
        some = [said.number for to, said in entries if to is line]
        line.tell(kind, spool_talk.numbers(some))


class ToGateway(logging.Handler):
    """The gateway logs what its writer has to say: in one form, to one place."""

    def __init__(self, lines: Iterable[Line]) -> None:
        super().__init__()
        self._lines = list(lines)

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        self._lines[0].tell(spool_talk.LOGGED, json.dumps([record.levelno, text]).encode())


def main() -> None:
    """The program. Signals are for the gateway: it tells its writer to end by hanging up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    path, reserve, reserve_bytes, most_bytes, *links = sys.argv[1:]
    writer = Writer(
        Path(path),
        Path(reserve),
        int(reserve_bytes),
        int(most_bytes),
        [socket.socket(fileno=int(number)) for number in links],
    )
    logging.getLogger().addHandler(ToGateway(writer.lines.values()))
    writer.run()


if __name__ == "__main__":
    main()
