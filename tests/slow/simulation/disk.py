"""A simulated disk for the journal: slow or full by chance; unsynced records are lost in a kill.

It replaces ``Journal`` behind the real recorder, so that all code above it is the gateway's own.
At the end the real journal reader and the recovery code read its records.
"""

import asyncio
import re

from proxy.ledger.errors import JournalUnavailable
from proxy.ledger.journal.journal import DurabilityFuture
from proxy.ledger.journal.records import CloseRecord, OpenRecord, Record, decode, encode

from .random_source import SeededRandom

NUMBER = re.compile(rb"request number (\d+)\.")
RETRY_S = 0.5


class Disk:
    """The records that survive a process."""

    def __init__(self) -> None:
        self.synced: list[bytes] = []
        self.opened: set[int] = set()  # numbers of requests with a synced open record

    def sync(self, records: list[Record]) -> None:
        for record in records:
            self.synced.append(encode(record))
            if isinstance(record, OpenRecord) and (match := NUMBER.search(record.body or b"")):
                self.opened.add(int(match[1]))

    def records(self) -> list[Record]:
        return [decode(body) for body in self.synced]


def resolve(waiters: list[DurabilityFuture | None], error: Exception | None) -> None:
    for waiter in waiters:
        if waiter is not None:
            waiter.resolve(error)


class SimulatedJournal:
    """A journal with group commit: all records that wait when a commit starts share it."""

    def __init__(self, disk: Disk, rng: SeededRandom) -> None:
        self.error = ""
        self.dead = False  # the process was killed
        self._disk, self._rng = disk, rng
        self._entries: list[tuple[Record, DurabilityFuture | None]] = []
        self._committing = False
        self._full_until = 0.0

    def die(self) -> None:
        """Kill the process: waiting and later records do not reach the disk."""
        self.dead = True
        resolve(
            [waiter for _, waiter in self._entries], JournalUnavailable("its process was killed")
        )

    def append(
        self, record: Record, future: DurabilityFuture | None = None, loop: object = None
    ) -> None:
        if self.dead:
            resolve([future], JournalUnavailable("its process was killed"))
            return
        self._entries.append((record, future))
        if not self._committing:
            self._committing = True
            self._later(self._rng.uniform(0.0002, 0.002))

    def _later(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._rng.buggify("journal.fsync is slow"):
            seconds += self._rng.uniform(0.05, 3)
        if self._rng.buggify("journal.disk is full", 0.02):
            self._full_until = loop.time() + self._rng.uniform(0.1, 20)
        loop.call_later(seconds, self._commit)

    def _commit(self) -> None:
        if self.dead:
            return
        entries, self._entries = self._entries, []
        if asyncio.get_running_loop().time() < self._full_until:
            rejected = [entry for entry in entries if not isinstance(entry[0], CloseRecord)]
            self._entries = [entry for entry in entries if isinstance(entry[0], CloseRecord)]
            resolve([waiter for _, waiter in rejected], JournalUnavailable("the disk is full"))
        else:
            self._disk.sync([record for record, _ in entries])
            resolve([waiter for _, waiter in entries], None)
        self._committing = bool(self._entries)
        if self._committing:
            self._later(RETRY_S)
