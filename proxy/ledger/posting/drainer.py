"""The drainer: a thread that writes ("posts") records from the journal to the database.

It retries until the database is available. It also closes requests of dead processes, writes
``DrainWatermark`` and removes old segments of the journal.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sized
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Final

from django.db import DatabaseError, connection
from django.db.utils import InterfaceError

from proxy.ledger.database import access, partitions
from proxy.ledger.errors import JournalUnavailable, RecordError
from proxy.ledger.journal.journal import Journal
from proxy.ledger.journal.reader import Backlog, JournalReader
from proxy.models import DrainWatermark

from . import journal_posting, orphans

logger = logging.getLogger(__name__)

REST_FACTOR: Final = 9
"""A rest is this many times as long as the CPU time of the round, because streams need the
interpreter lock."""
MAX_LAG_S: Final = 30.0
"""The longer the oldest record has waited, the shorter the rest; from 30 s on there is no rest."""
MIN_RETRY_S: Final = 0.25
MAX_RETRY_S: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How long the drainer works and rests, and how often periodic tasks run, in seconds."""

    round_s: float = 0.3
    """CPU time of one round of writing records to the database; a rest follows."""
    min_rest_s: float = 0.25
    """The shortest rest, to collect records: a batch of ten costs as much as two batches of one."""
    max_rest_s: float = 3.0
    idle_s: float = 1.0
    """The longest wait for a new record, and the interval of the search for dead processes."""
    open_delay_s: float = 3.0
    """The row of a request that ends within this time is written only once."""
    watermark_s: float = 5.0
    cleanup_s: float = 10.0
    partitions_s: float = 3_600.0

    def rest_after(self, computed_s: float, lag_s: float) -> float:
        """Return the seconds to rest after a round that took ``computed_s`` of CPU time.

        ``lag_s``: how long the oldest record has waited.
        """
        rest = max(min(REST_FACTOR * computed_s, self.max_rest_s), self.min_rest_s)
        return rest * max(0.0, 1 - lag_s / MAX_LAG_S)


class Drainer:
    """The thread that writes the records of one journal to the database.

    Call ``start``, then ``wake`` for new records, then ``stop``. ``running``: the requests that are
    being served.
    """

    def __init__(self, journal: Journal, running: Sized = (), pace: Pace = Pace()) -> None:
        self.error = ""  # why the last round failed; empty: the database is available
        self._journal = journal
        self._reader: JournalReader | None = None
        # The last known backlog, and how many of the journal's new records had been read then. Both
        # are one tuple: set separately, they could show a backlog of 0 while a record waits.
        self._known = (Backlog(0, None, 0), 0)
        self._running = running
        self._pace = pace
        self._orphans: list[str] | None = None  # unclosed ids of dead processes; None: unknown yet
        self.wake_event = threading.Event()
        self.stop_event = threading.Event()
        self._last_runs: dict[str, float] = {}  # periodic task -> time of its last run
        self._computed_s = 0.0  # CPU time of the last round
        self._has_more = False  # the last round ended before all records were in the database
        self._thread = threading.Thread(
            target=self._work, name=f"drainer-{journal.directory.name}", daemon=True
        )

    def start(self) -> None:
        """Count the records that earlier processes left in the journal, then start the thread."""
        try:
            self._update_backlog(self.open_reader())
        except (RecordError, OSError):
            logger.exception("journal: it cannot be read now; the drainer tries again")
        self._thread.start()

    def wake(self) -> None:
        if not self.wake_event.is_set():  # the check saves the ten function calls of set()
            self.wake_event.set()

    def stop(self, timeout_s: float = 10) -> None:
        """Write all records to the database, if it is available now; then end the thread."""
        self.stop_event.set()
        self.wake_event.set()
        self._thread.join(timeout_s)

    # The thread

    def _work(self) -> None:
        retry_s = 0.0
        while True:
            is_last = self.stop_event.is_set()
            began = time.thread_time()
            try:
                self.run_round(self.open_reader())
                self.error, retry_s = "", 0.0
                self._computed_s = time.thread_time() - began
            except (DatabaseError, InterfaceError, RecordError, OSError) as exc:
                retry_s = self.note_failure(exc, retry_s)
            except Exception as exc:  # a bug must not end the thread: the journal would only grow
                logger.exception("drainer: unexpected fault")
                retry_s = self.note_failure(exc, retry_s)
            self._report_backlog()
            if is_last:
                break
            self.rest(retry_s)
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        connection.close()

    def open_reader(self) -> JournalReader:
        """Return the reader of the journal; raise JournalUnavailable while there is no segment."""
        if self._reader is None:
            if not self._journal.first_segment:
                raise JournalUnavailable(self._journal.error)
            self._reader = JournalReader(self._journal.directory, self._journal)
        return self._reader

    def _report_backlog(self) -> None:
        """Save how many records wait, for the metrics, also while the database is unavailable."""
        if self._reader is not None:
            self._update_backlog(self._reader)
            with contextlib.suppress(OSError):  # on a full disk the last watermark file stays valid
                self._reader.save_watermark()

    def note_failure(self, exc: Exception, retry_s: float) -> float:
        """Record the error, and return the seconds to wait before the next round.

        ``retry_s``: the seconds waited before this round because of an error.
        """
        if not self.error:
            logger.warning("ledger: %s; records wait in the journal", exc)
        self.error = str(exc) or type(exc).__name__
        access.reconnect()
        return min(max(retry_s * 2, MIN_RETRY_S), MAX_RETRY_S)

    def rest(self, retry_s: float) -> None:
        """Wait: ``retry_s`` after an error, else as long as the pace requires."""
        if retry_s:
            self.stop_event.wait(retry_s)
            return
        if self._has_more and self.is_alone():
            # No request needs the interpreter lock; this is mostly so at a start after a crash.
            return
        if self._has_more or self.wake_event.wait(self._pace.idle_s):
            self.stop_event.wait(self._pace.rest_after(self._computed_s, self.lag_s))
        self.wake_event.clear()

    def is_alone(self) -> bool:
        """Return whether no request runs, and no record was appended since the last rest."""
        return not self._running and not self.wake_event.is_set()

    def run_round(self, reader: JournalReader) -> None:
        """Post what waits, and run the tasks of the drainer that are due."""
        self._has_more = self.post(reader)
        self._update_backlog(reader)
        if self._is_due("adopt", self._pace.idle_s):
            journal_posting.adopt(self._journal.directory.parent)
        if self._is_due("watermark", self._pace.watermark_s):
            save_drain_watermark(self._journal.directory, self.backlog)
        if self._is_due("partitions", self._pace.partitions_s):
            partitions.create_ahead(datetime.now(UTC))
        if self._is_due("cleanup", self._pace.cleanup_s):
            journal_posting.remove_posted_segments(reader)

    def _is_due(self, task: str, every_s: float) -> bool:
        """Return whether a periodic task must run now; if so, note the time as its last run."""
        now = time.monotonic()
        if now - self._last_runs.get(task, -inf) < every_s:
            return False
        self._last_runs[task] = now
        return True

    def post(self, reader: JournalReader) -> bool:
        """Write waiting records to the database, for at most ``Pace.round_s``.

        The limit is needed because under load there are always more records; when the thread stops,
        there is no limit. Returns whether records may remain.
        """
        began = time.thread_time()
        for _ in self._batches(reader):
            self._update_backlog(reader)
            if time.thread_time() - began >= self._pace.round_s and not self.stop_event.is_set():
                return True
        return False

    def _batches(self, reader: JournalReader) -> Iterator[int]:
        """Write waiting records to the database; yield after each batch.

        First write close records for the requests of dead processes, which needs no database.
        """
        reader.read(journal_posting.MAX_RECORDS)
        yield from self._close_orphans(reader)
        access.check_present()
        access.shrink_sqlite_cache()
        open_delay_s = 0 if self.stop_event.is_set() else self._pace.open_delay_s
        yield from journal_posting.post_all(reader, open_delay_s)
        if self._orphans is None:  # all orphans are known now, because the whole journal was read
            yield from self._close_orphans(reader)
            yield from journal_posting.post_all(reader, self._pace.open_delay_s)

    def _close_orphans(self, reader: JournalReader) -> Iterator[int]:
        if self._journal.error:  # on a full disk the reserved space is for running requests
            return
        if self._orphans is None and reader.has_read_earlier:
            self._orphans = reader.unclosed_ids()
        if self._orphans:
            write = self._journal.append_and_wait
            yield from orphans.close_orphans(reader, self._orphans, write)

    def _update_backlog(self, reader: JournalReader) -> None:
        appended = reader.appended
        self._known = (reader.backlog(), appended)

    @property
    def backlog(self) -> Backlog:
        """The records that wait now, correct also while the thread waits for the database."""
        appended = self._journal.appended
        (records, oldest, set_aside), read = self._known
        records += max(0, appended - read)
        return Backlog(records, (oldest or time.time()) if records else None, set_aside)

    @property
    def lag_s(self) -> float:
        """Seconds that the oldest waiting record has waited beyond ``Pace.open_delay_s``."""
        oldest = self.backlog.oldest
        return max(0.0, time.time() - oldest - self._pace.open_delay_s) if oldest else 0.0


def save_drain_watermark(journal: Path, backlog: Backlog) -> None:
    """Store up to which time the records of this journal are in the database, for the reports."""
    now = datetime.now(UTC)
    as_of = datetime.fromtimestamp(backlog.oldest, UTC) if backlog.oldest else now
    DrainWatermark.objects.update_or_create(
        pk=journal_posting.watermark_key(journal),
        defaults={"as_of": as_of, "backlog": backlog.records, "seen": now},
    )
