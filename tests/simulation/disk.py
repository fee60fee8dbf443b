"""A disk under the record: slow, full or gone by chance; what was not synced dies with the process.

It stands where ``Spool`` stands, and takes what the real recorder gives it, so that everything
above the writer is the gateway's own. What is on it is read by the real spool file, recovery
and stories in the end.
"""

import asyncio
import re

from proxy.record.errors import SpoolUnavailable
from proxy.record.landing import Landing
from proxy.record.records import CloseRecord, OpenRecord, Record, decode, encode

from .chance import Chance

NUMBER = re.compile(rb"request number (\d+)\.")
RETRY_S = 0.5


class Disk:
    """What survives its processes."""

    def __init__(self) -> None:
        self.synced: list[bytes] = []
        self.opened: set[int] = set()  # numbers of requests whose open record is there

    def sync(self, records: list[Record]) -> None:
        for record in records:
            self.synced.append(encode(record))
            if isinstance(record, OpenRecord) and (found := NUMBER.search(record.body or b"")):
                self.opened.add(int(found[1]))

    def records(self) -> list[Record]:
        return [decode(body) for body in self.synced]


def tell(waiters: list[Landing | None], error: Exception | None) -> None:
    for waiter in waiters:
        if waiter is not None:
            waiter.land(error)


class SimulatedSpool:
    """Group commit, as the real one does it: what waits when a commit begins shares it."""

    def __init__(self, disk: Disk, chance: Chance) -> None:
        self.error = ""
        self.dead = False  # its process was killed
        self._disk, self._chance = disk, chance
        self._entries: list[tuple[Record, Landing | None]] = []
        self._committing = False
        self._full_until = 0.0

    def die(self) -> None:
        """From here on nothing reaches the disk, and what waited never did."""
        self.dead = True
        tell([waiter for _, waiter in self._entries], SpoolUnavailable("its process was killed"))

    def enter(self, record: Record, landing: Landing | None = None, loop: object = None) -> None:
        if self.dead:
            tell([landing], SpoolUnavailable("its process was killed"))
            return
        self._entries.append((record, landing))
        if not self._committing:
            self._committing = True
            self._later(self._chance.uniform(0.0002, 0.002))

    def _later(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._chance.buggify("spool.fsync is slow"):
            seconds += self._chance.uniform(0.05, 3)
        if self._chance.buggify("spool.disk is full", 0.02):
            self._full_until = loop.time() + self._chance.uniform(0.1, 20)
        loop.call_later(seconds, self._commit)

    def _commit(self) -> None:
        if self.dead:
            return
        entries, self._entries = self._entries, []
        if asyncio.get_running_loop().time() < self._full_until:
            refused = [entry for entry in entries if not isinstance(entry[0], CloseRecord)]
            self._entries = [entry for entry in entries if isinstance(entry[0], CloseRecord)]
            tell([waiter for _, waiter in refused], SpoolUnavailable("the disk is full"))
        else:
            self._disk.sync([record for record, _ in entries])
            tell([waiter for _, waiter in entries], None)
        self._committing = bool(self._entries)
        if self._committing:
            self._later(RETRY_S)
