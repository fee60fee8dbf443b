"""Moves records from the spool into the database: a thread that outlives every outage.

It also closes what dead processes left open, here and in abandoned slots, tells how far it has
come (``DrainMark``) and forgets what was moved a day ago.
"""

import contextlib
import logging
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final

from django.db import DatabaseError, connection
from django.db.utils import InterfaceError

from proxy.models import DrainMark

from . import database, partitions, posting, recovery, slots, spool_file
from .conversation import Packing
from .errors import LedgerAway, RecordError
from .posting import Story, story_of
from .records import Record, decode, rows_of
from .spool import Spool
from .spool_file import Backlog

logger = logging.getLogger(__name__)

MOST_RECORDS: Final = 256
"""That wait, of the exchanges in one transaction: two of each, mostly. To post 128 exchanges of an
idle-ish stream each takes 1.6 MB meanwhile and 0.32 ms each, 250 take 3.0 MB and 0.30 ms."""
MOST_BYTES: Final = 2 * 2**20  # of records in one transaction; of them 1 to 2.3 MB are in memory
IDLE_S: Final = 1.0
GATHER_S: Final = 0.25  # for more records to come: ten together cost what two cost alone
ROUND_S: Final = 0.3  # of computing, then a rest, however much waits
RESTS: Final = 9  # times as long as a round computed: the streams want the interpreter, too
LONGEST_REST_S: Final = 3.0
MOST_BEHIND_S: Final = 30.0
"""The longer the oldest record has waited, the shorter the rest; from here on there is none. With
20,000 records for a bound this thread took 24 and 20 % of a core beside S1 (chat, responses), and 8
and 12 % where nothing shortened its rests."""
PATIENCE_S: Final = 3.0  # a request that ends within it is posted once, not opened and closed
MARK_S: Final = 5.0
TIDY_S: Final = 10.0
AHEAD_S: Final = 3_600.0  # for next month's table of transcripts
KEEP_MOVED_S: Final = 86_400.0
KEEP_MOVED_BYTES: Final = 512 * 2**20
LONGEST_PAUSE_S: Final = 5.0


@dataclass(slots=True)
class Source:
    """A spool to drain: how to read it, and who writes to it."""

    link: sqlite3.Connection
    write: Callable[..., Any]  # a function of spool_file, and what it takes beside the link


class Drainer:
    """``start`` it, ``wake`` it when records came, ``stop`` it.

    ``running``: the requests that are being served, as many as there are now.
    """

    def __init__(
        self, spool: Spool, orphans: Sequence[str], backlog: Backlog, running: Sized = ()
    ) -> None:
        self.error = ""  # why the database is away; empty: it is there
        # At the last look, and how many had been appended before it. Set and read as one: half of
        # it new would say for a moment that nothing waits.
        self._looked = (backlog, spool.appended)
        self._spool = spool
        self._running = running
        self.orphans = list(orphans)  # what the last owner of the slot left open
        self._wake = threading.Event()
        self._stop_asked = threading.Event()
        self._marked = self._tidied = self._adopted = self._ahead = float("-inf")
        self._took = 0.0  # seconds of computing, the last round
        self._more = False  # it ended before all was moved
        self._thread = threading.Thread(
            target=self._work, name=f"drainer-{spool.slot.number}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        if not self._wake.is_set():  # setting it takes ten calls
            self._wake.set()

    def stop(self, timeout_s: float = 10) -> None:
        """Move what can be moved now, then end."""
        self._stop_asked.set()
        self._wake.set()
        self._thread.join(timeout_s)

    # The thread

    def _work(self) -> None:
        pause = 0.0
        with contextlib.closing(_reader(self._spool)) as link:
            own = Source(link, self._spool.call)
            while True:
                last = self._stop_asked.is_set()
                began = time.thread_time()
                try:
                    self._round(own)
                    self.error, pause = "", 0.0
                    self._took = time.thread_time() - began
                except (DatabaseError, InterfaceError, RecordError, OSError, sqlite3.Error) as exc:
                    pause = self._failed(exc, pause)
                except Exception as exc:  # a bug must not end the thread: the spool would only grow
                    logger.exception("drainer: unexpected fault")
                    pause = self._failed(exc, pause)
                if last:
                    break
                self._rest(pause)
        connection.close()

    def _failed(self, exc: Exception, pause: float) -> float:
        if not self.error:
            logger.warning("ledger: %s; the spool keeps what comes", exc)
        self.error = str(exc) or type(exc).__name__
        database.reconnect()
        return min(max(pause * 2, 0.25), LONGEST_PAUSE_S)

    def _rest(self, pause: float) -> None:
        if pause:
            self._stop_asked.wait(pause)
            return
        if self._more and self._is_alone():
            return  # a start after a crash, mostly
        if self._more or self._wake.wait(IDLE_S):
            self._stop_asked.wait(rest_after(self._took, self.behind_s))
        self._wake.clear()

    def _is_alone(self) -> bool:
        """Nobody is served, and nobody was since the last rest."""
        return not self._running and not self._wake.is_set()

    def _round(self, own: Source) -> None:
        self._look(own.link)
        self._more = self._move(own)
        self._look(own.link)
        if _due(self._adopted, IDLE_S):
            self._adopted = time.monotonic()
            adopt(self._spool.path.parent)
        if _due(self._marked, MARK_S):
            self._marked = time.monotonic()
            mark(self._spool.path, self.backlog)
        if _due(self._ahead, AHEAD_S):
            self._ahead = time.monotonic()
            partitions.make_ahead(datetime.now(UTC))
        if _due(self._tidied, TIDY_S):
            self._tidied = time.monotonic()
            tidy(own)

    def _move(self, own: Source) -> bool:
        """What waits, or what ``ROUND_S`` is enough for: under load new ones come all the while.

        True: the time was over first. Whoever stops the thread wants all of it.
        """
        began = time.thread_time()
        for _ in self._batches(own):
            if time.thread_time() - began >= ROUND_S and not self._stop_asked.is_set():
                return True
        return False

    def _batches(self, own: Source) -> Iterator[int]:
        """First the orphans: what becomes of them is known without the database.

        Not while the disk is full: the space that was kept free is for those who run.
        """
        if not self._spool.error:
            yield from recovery.close_orphans(own.link, self.orphans, self._spool.append)
        database.check_present()
        database.need_little()
        yield from drain(own, 0 if self._stop_asked.is_set() else PATIENCE_S)

    def _look(self, link: sqlite3.Connection) -> None:
        appended = self._spool.appended
        self._looked = (spool_file.backlog(link), appended)

    @property
    def backlog(self) -> Backlog:
        """As of now, also while the thread waits for the database."""
        (records, oldest, set_aside), appended = self._looked
        # In this order: an orphan that is closed meanwhile is counted twice, not never.
        records += len(self.orphans) + self._spool.appended - appended
        return Backlog(records, (oldest or time.time()) if records else None, set_aside)

    @property
    def behind_s(self) -> float:
        """How long the oldest record has waited that need not wait."""
        oldest = self.backlog.oldest
        return max(0.0, time.time() - oldest - PATIENCE_S) if oldest else 0.0


def rest_after(took_s: float, behind_s: float) -> float:
    """Seconds of rest after a round that computed for ``took_s``, when it is so far behind."""
    rest = max(min(RESTS * took_s, LONGEST_REST_S), GATHER_S)
    return rest * max(0.0, 1 - behind_s / MOST_BEHIND_S)


def _due(last: float, every_s: float) -> bool:
    return time.monotonic() - last >= every_s


def _reader(spool: Spool) -> sqlite3.Connection:
    """The spool file may be beyond reach for a while: the disk is full, say."""
    while True:
        try:
            link = spool_file.connect(spool.path)
            link.execute("SELECT count(*) FROM records WHERE seq < 0")
        except sqlite3.Error:
            time.sleep(0.2)
        else:
            return link


def drain(source: Source, patience_s: float = 0) -> Iterator[int]:
    """Post what waits, batch by batch; yields the number of exchanges of each.

    What was opened within ``patience_s`` and still runs is left for later.
    """
    before = time.time() - patience_s
    while ids := spool_file.waiting_ids(source.link, MOST_RECORDS, before):
        yield _drain_some(source, ids)


def _drain_some(source: Source, ids: Sequence[str]) -> int:
    stories, sequences = _told(source, ids)
    database.check_present()  # as it was when the last batch was posted, in this round
    _post(source, stories)
    source.write(spool_file.mark_moved, sequences)
    return len(stories)


def _told(source: Source, ids: Sequence[str]) -> tuple[list[Story], list[int]]:
    """What the spool says of some exchanges, and the numbers of those records."""
    stories: list[Story] = []
    sequences: list[int] = []
    size = 0
    packing = Packing()
    for exchange_id in ids:
        told: list[tuple[int, int]] = []  # of each record: its number, its bytes
        try:
            story = story_of(_decoded(source.link, exchange_id, told))
        except ValueError as exc:  # msgspec's errors are ValueErrors
            story, fault = None, str(exc)
        else:
            fault = "there is no open record"
        if story is None:
            _set_aside(source, exchange_id, fault)
            continue
        with contextlib.suppress(*database.POISON):  # to post it fails as well, and sets it aside
            story.pack(packing)
        stories.append(story)
        sequences += [seq for seq, _ in told]
        size += sum(length for _, length in told)
        if size > MOST_BYTES:
            break
    return stories, sequences


def _decoded(
    link: sqlite3.Connection, exchange_id: str, told: list[tuple[int, int]]
) -> Iterator[Record]:
    """Its records, one at a time: what is decoded need not be in memory twice."""
    for seq, body in spool_file.bodies_of(link, exchange_id, early=False):
        told.append((seq, len(body)))
        yield decode(body)


def _post(source: Source, stories: Sequence[Story]) -> None:
    """All together; where one of them is refused, one by one, and that one is set aside."""
    if not stories:
        return
    try:
        posting.post(stories)
    except database.POISON as exc:
        if len(stories) == 1:
            _set_aside(source, stories[0].opening.id, f"{type(exc).__name__}: {exc}")
            return
        for story in stories:
            _post(source, [story])


def _set_aside(source: Source, exchange_id: str, fault: str) -> None:
    logger.error("ledger: %s is set aside in the spool: %s", exchange_id, fault)
    source.write(spool_file.set_aside, exchange_id, fault)


def adopt(directory: Path) -> int:
    """Drain and remove the spools of dead workers; the number of them."""
    adopted = 0
    for slot in slots.take_abandoned(directory):
        with slots.held(slot):
            adopted += _adopt_one(slot)
    return adopted


def _adopt_one(slot: slots.Slot) -> bool:
    with contextlib.closing(spool_file.create(slot.path)) as link:
        source = Source(link, lambda job, *arguments: job(link, *arguments))
        for _ in chain(
            recovery.close_orphans(
                link,
                spool_file.unclosed_ids(link),
                lambda *records: spool_file.append(link, rows_of(records)),
            ),
            drain(source),
        ):
            pass
        left = spool_file.backlog(link)
        if left.records or left.set_aside:
            return False  # kept for a human
        kept = link.execute(
            "SELECT count(*) FROM records WHERE moved > ?", (time.time() - KEEP_MOVED_S,)
        ).fetchone()[0]
    DrainMark.objects.filter(pk=_name(slot.path)).delete()
    if not kept:
        slot.discard()
    return True


def _name(path: Path) -> str:
    return f"{socket.gethostname()}:{path}"[-200:]


def mark(path: Path, backlog: Backlog) -> None:
    """Tell the reports how far this spool has come."""
    now = datetime.now(UTC)
    as_of = datetime.fromtimestamp(backlog.oldest, UTC) if backlog.oldest else now
    DrainMark.objects.update_or_create(
        pk=_name(path), defaults={"as_of": as_of, "backlog": backlog.records, "seen": now}
    )


def tidy(source: Source) -> None:
    """Forget what was moved long ago, or earlier when the file has grown large; checkpoint."""
    before = time.time() - KEEP_MOVED_S
    while source.write(spool_file.forget, before):
        pass
    for _ in range(20):
        if source.write(spool_file.used_bytes) <= KEEP_MOVED_BYTES:
            break
        if not source.write(spool_file.forget, time.time(), 200):
            break
    source.link.execute("PRAGMA wal_checkpoint(PASSIVE)")


__all__ = ["Drainer", "LedgerAway", "Source", "adopt", "drain", "mark", "tidy"]
