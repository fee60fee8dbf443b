"""Purges of expired transcripts that an admin or the daily schedule starts, in a thread.

They delete what the command ``pruneledger`` deletes, and store their progress. The thread pauses
after each batch for as long as the batch took, because the streams of this process also need the
interpreter lock and the database. A purge whose process dies is not resumed; the next purge deletes
the remaining transcripts.

Each process checks once an hour whether the purge and the archive of the day are due, and sees in
the database if another process has started the purge. So a gateway that did not run at the
configured hour purges later, but not in the first hour after its start.
"""

import logging
import shutil
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.models import Count, Min, Q, Sum, Value
from django.db.models.functions import Coalesce, Length
from django.utils.timezone import now

from proxy.audit_log import Action, record
from proxy.conf import conf
from proxy.ledger.database.access import database_file
from proxy.ledger.errors import LedgerUnavailable
from proxy.ledger.posting.audit_links import Cause
from proxy.ledger.webhooks import prune_events
from proxy.models import Purge, PurgeState, Team, Transcript
from proxy.models.ledger_names import LedgerNames
from proxy.models.purges import STALLED_AFTER
from proxy.secrets import ConfigError

from . import published_heads, retention
from .archive_run import DailyArchive

logger = logging.getLogger(__name__)

DAILY_PURGE: Final = "(daily)"
"""The user name that is stored for daily purges; no user can have this name."""
MAX_PAUSE_S: Final = 1.0
PROGRESS_INTERVAL_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredTranscripts:
    """The transcripts of one team that are past their retention."""

    team: str
    retention_days: int
    before: datetime  # older transcripts are deleted
    transcripts: int
    oldest: datetime
    bytes: int
    """Size of manifests and streams, without parts, which other transcripts may use."""


def expired_by_team(at: datetime) -> list[ExpiredTranscripts]:
    """Return the transcripts of each team that a purge at ``at`` would delete, by team name."""
    days = dict(Team.objects.values_list("ledger_id", "retention_days"))
    shortest = min([*days.values(), retention.DELETED_TEAM_DAYS])
    # As an expression, the team is read from no index: SQLite, which has no statistics, would begin
    # with all requests of a team instead of the oldest transcripts.
    old = Transcript.objects.filter(_older(at, shortest)).annotate(
        team=Coalesce("exchange__team", Value(""))
    )
    past = ~Q(team__in=list(days)) & _older(at, retention.DELETED_TEAM_DAYS)
    for limit in sorted(set(days.values())):  # many teams, but few different retention periods
        teams = [team for team in days if days[team] == limit]
        past |= Q(team__in=teams) & _older(at, limit)
    found = (
        old.filter(past)
        .values("team")
        .annotate(
            count=Count("pk"),
            oldest=Min("created"),
            manifests=Sum(Length("manifest")),
            streams=Sum(Length("stream")),
        )
        .order_by()
    )
    names = LedgerNames().teams.load(row["team"] for row in found)
    due = []
    for row in found:
        limit = days.get(row["team"], retention.DELETED_TEAM_DAYS)
        due.append(
            ExpiredTranscripts(
                team=names[row["team"]],
                retention_days=limit,
                before=at - timedelta(days=limit),
                transcripts=row["count"],
                oldest=row["oldest"],
                bytes=(row["manifests"] or 0) + (row["streams"] or 0),
            )
        )
    return sorted(due, key=attrgetter("team"))


def _older(at: datetime, days: int) -> Q:
    return Q(created__lt=at - timedelta(days=days))


@dataclass(frozen=True, slots=True)
class Space:
    """The size of the database in bytes, and the free space."""

    size: int
    free: int | None  # unused bytes in the database file, for new rows; None: unknown
    disk: int | None  # free bytes on the disk; None: the database server may be another machine


def space() -> Space:
    """Return the size of the database and the free space."""
    with connection.cursor() as cursor:
        if connection.vendor != "sqlite":
            cursor.execute("SELECT pg_database_size(current_database())")
            return Space(int(cursor.fetchone()[0]), None, None)
        cursor.execute("PRAGMA page_size")
        page = int(cursor.fetchone()[0])
        cursor.execute("PRAGMA page_count")
        size = page * int(cursor.fetchone()[0])
        cursor.execute("PRAGMA freelist_count")
        free = page * int(cursor.fetchone()[0])
    folder = Path(str(connection.settings_dict["NAME"])).parent
    disk = shutil.disk_usage(folder).free if folder.is_dir() else None
    return Space(size, free, disk)


class PurgeAlreadyRunning(Exception):
    """Another purge is running."""


def start_purge(user: Any, *, rewrite: bool, expected: int | None) -> Purge:
    """Start a purge in the background. Raises PurgeAlreadyRunning.

    ``user`` is None for the daily purge. ``rewrite``: rewrite the SQLite file afterwards.
    ``expected``: the number of expired transcripts, if known.
    """
    at = now()
    stalled = Purge.objects.filter(state=PurgeState.RUNNING, seen__lt=at - STALLED_AFTER)
    stalled.update(state=PurgeState.FAILED, finished=at, error="its process ended")
    try:
        with transaction.atomic():
            purge = Purge.objects.create(
                user=user, username=user.get_username() if user else DAILY_PURGE, rewrite=rewrite,
                created=at, seen=at, expected=expected,
            )  # fmt: skip
            count = "" if expected is None else f"{expected:,} "
            record(Action.PURGE, purge, detail=f"{count}transcripts past their retention")
    except IntegrityError:
        raise PurgeAlreadyRunning from None
    runner.start(purge)
    return purge


class PurgeThread:
    """The purge thread of this process, if there is one."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def start(self, purge: Purge) -> None:
        def work() -> None:
            try:
                run(purge)
            finally:
                connection.close()

        # Start after the commit: the thread's own connection must see the row of the purge.
        self._thread = threading.Thread(target=work, name="purge", daemon=True)
        transaction.on_commit(self._thread.start)

    def join(self, timeout_s: float = 60) -> None:
        """Wait until the purge has ended, for at most ``timeout_s``."""
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join(timeout_s)


runner = PurgeThread()


def run(
    purge: Purge, *, batch: int = retention.BATCH, progress_interval_s: float = PROGRESS_INTERVAL_S
) -> None:
    """Purge, and store the result in the row. Never raises: no caller could handle an error.

    ``batch``: how many transcripts one transaction deletes.
    """
    before = _size()
    state, error = PurgeState.DONE, ""
    try:
        _delete(purge, batch, _Throttle(purge, progress_interval_s))
        if connection.vendor != "sqlite" or purge.rewrite:
            _save_progress(purge, step="freeing disk space")
            retention.free_space()
    except (DatabaseError, OSError) as exc:
        state, error = PurgeState.FAILED, str(exc).strip().partition("\n")[0][:300]
        logger.warning("%s failed: %s", purge, exc)
    except Exception:  # the row of the purge must show the failure
        state, error = PurgeState.FAILED, "internal error; see the log of the gateway"
        logger.exception("%s: unexpected fault", purge)
    after = _size()
    freed = max(0, before - after) if before is not None and after is not None else None
    try:
        _save_progress(purge, state=state, error=error, step="", finished=now(), bytes_freed=freed)
    except DatabaseError as exc:
        logger.warning("%s: its result cannot be stored: %s", purge, exc)


def _delete(purge: Purge, batch: int, throttle: "_Throttle") -> None:
    _save_progress(purge, step="transcripts")
    cause = Cause(Action.PURGE, f"deletes transcripts for {purge}")
    for count in retention.prune_transcripts(purge.created, cause, batch):
        purge.transcripts += count
        throttle.pause()
    _save_progress(purge, step="outcomes")
    for _ in retention.prune_outcomes(purge.created):
        throttle.pause()
    _save_progress(purge, step="unused parts")
    for count in retention.prune_parts(purge.created, pause=throttle.pause):
        purge.parts += count
        throttle.pause()
    _save_progress(purge, step="audit log")
    retention.prune_audit_log(purge.created)


class _Throttle:
    """Pauses after each batch for as long as it took, and stores the progress every interval."""

    def __init__(self, purge: Purge, progress_interval_s: float) -> None:
        self._purge = purge
        self._progress_interval_s = progress_interval_s
        self._began = self._reported = time.monotonic()

    def pause(self) -> None:
        at = time.monotonic()
        if at - self._reported > self._progress_interval_s:
            self._reported = at
            _save_progress(self._purge)
        time.sleep(min(MAX_PAUSE_S, at - self._began))
        self._began = time.monotonic()


def _save_progress(purge: Purge, **columns: Any) -> None:
    """Update the row of the purge, even if another process has marked the purge as failed."""
    counts = {"transcripts": purge.transcripts, "parts": purge.parts}
    Purge.objects.filter(pk=purge.pk).update(**{"seen": now(), **counts, **columns})


def _size() -> int | None:
    try:
        return space().size
    except DatabaseError:
        return None


CHECK_INTERVAL_S: Final = 3600.0
FIRST_HEAD_S: Final = 60.0
STOP_WAIT_S: Final = 5.0


def start_if_due(at: datetime, hour: int) -> bool:
    """Start the purge of this UTC day if ``hour`` is reached and transcripts are expired.

    Returns whether a purge was started. Expired sign-in sessions, expired idempotency keys and old
    events of webhooks are deleted in any case. Raises DatabaseError or LedgerUnavailable.
    """
    database_file()
    retention.delete_expired_sessions(at)
    retention.delete_expired_writes(at)
    prune_events(at)
    since = at.replace(hour=hour, minute=0, second=0, microsecond=0)
    if at < since or Purge.objects.filter(created__gte=since).exists():
        return False
    due = expired_by_team(at)
    if not due:
        return False
    try:
        start_purge(None, rewrite=False, expected=sum(one.transcripts for one in due))
    except PurgeAlreadyRunning:
        return False
    return True


class Nightly:
    """The thread that checks once an hour whether the daily purge is due."""

    def __init__(self, every_s: float = CHECK_INTERVAL_S) -> None:
        self._every_s = every_s
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    def start(self, hour: int | None) -> None:
        """Start the thread if it is not running.

        ``hour``: UTC hour of the daily purge; None: no purge, as the operator schedules the command
        ``pruneledger``.
        """
        if self._thread is None:
            self._ending.clear()
            self._thread = threading.Thread(
                target=self._run, args=(hour,), name="nightly", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread; a running purge continues in its own thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ending.set()
            thread.join(STOP_WAIT_S)

    def _run(self, hour: int | None) -> None:
        archive = DailyArchive()
        if not self._ending.wait(min(FIRST_HEAD_S, self._every_s)):
            self._publish_head()  # a gateway may be restarted more often than hourly
        while not self._ending.wait(self._every_s):
            self._publish_head()
            if hour is None:
                continue
            try:
                start_if_due(datetime.now(UTC), hour)
                archive.run_if_due(datetime.now(UTC), hour)
            except (DatabaseError, LedgerUnavailable) as away:
                logger.warning("daily purge and archive: not started: %s", away)
            except Exception:  # the thread must survive an internal error
                logger.exception("daily purge and archive: failed")
            finally:
                connection.close()

    @staticmethod
    def _publish_head() -> None:
        try:
            database_file()
            published_heads.publish(conf.data_dir / published_heads.FILE)
        except (DatabaseError, LedgerUnavailable, ConfigError, OSError) as error:
            logger.warning("the head of the ledger is not published: %s", error)
        except Exception:  # the thread must survive an internal error
            logger.exception("the head of the ledger is not published")
        finally:
            connection.close()


nightly: Final = Nightly()
