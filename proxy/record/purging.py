"""Purges asked for in the admin, and each day's own: ``pruneledger`` in a thread, told in its row.

Between two batches it rests for as long as the last one took: the streams of this process want
the interpreter and the database, too. A purge whose process dies is not taken up again: what it
deleted is deleted, and whoever asks anew goes on from there.
"""

import logging
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.models import Count, Min, Q, Sum
from django.db.models.functions import Length
from django.utils.timezone import now

from proxy.models import Purge, PurgeState, Team, Transcript
from proxy.models.purges import SILENT

from . import retention

logger = logging.getLogger(__name__)

NOBODY: Final = "(daily)"
"""Who asked for the purge of each day; no user can be called that."""
LONGEST_REST_S: Final = 1.0
SPEAK_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What of one team is past its time."""

    team: str
    keeps_days: int
    before: datetime  # what is older goes
    transcripts: int
    oldest: datetime
    bytes: int
    """Of manifests and streams; what they name besides may be named by others, too."""


def due(at: datetime) -> list[Due]:
    """The teams of which something would go now, by name."""
    days = dict(Team.objects.values_list("name", "retention_days"))
    past = ~Q(exchange__team__in=list(days)) & _older(at, retention.FORGOTTEN_TEAM_DAYS)
    for kept in sorted(set(days.values())):  # few, where teams may be many
        past |= Q(exchange__team__in=[one for one in days if days[one] == kept]) & _older(at, kept)
    found = (
        Transcript.objects.filter(past)
        .values("exchange__team")
        .annotate(
            held=Count("pk"),
            oldest=Min("created"),
            manifests=Sum(Length("manifest")),
            streams=Sum(Length("stream")),
        )
        .order_by("exchange__team")
    )
    return [_due(row, days, at) for row in found]


def _older(at: datetime, kept: int) -> Q:
    return Q(created__lt=at - timedelta(days=kept))


def _due(row: Mapping[str, Any], days: Mapping[str, int], at: datetime) -> Due:
    team = row["exchange__team"]
    kept = days.get(team, retention.FORGOTTEN_TEAM_DAYS)
    return Due(
        team=team,
        keeps_days=kept,
        before=at - timedelta(days=kept),
        transcripts=row["held"],
        oldest=row["oldest"],
        bytes=(row["manifests"] or 0) + (row["streams"] or 0),
    )


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes of the database on its disk. ``free``: within it, taken up again by what comes."""

    size: int
    free: int | None  # None: the server does not say
    disk: int | None  # free on the disk itself; None: it is another machine's


def space() -> Space:
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


class Running(Exception):
    """Another purge is at work."""


def begin(user: Any, *, rewrite: bool, expected: int | None) -> Purge:
    """A purge in the name of this user (None: the day's own), in the background. Raises Running."""
    at = now()
    dead = Purge.objects.filter(state=PurgeState.RUNNING, seen__lt=at - SILENT)
    dead.update(state=PurgeState.FAILED, finished=at, error="its process ended")
    try:
        with transaction.atomic():
            purge = Purge.objects.create(
                user=user, username=user.get_username() if user else NOBODY, rewrite=rewrite,
                created=at, seen=at, expected=expected,
            )  # fmt: skip
    except IntegrityError:
        raise Running from None
    runner.start(purge)
    return purge


class Runner:
    """The thread of this process that purges, if one does."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def start(self, purge: Purge) -> None:
        def work() -> None:
            try:
                run(purge)
            finally:
                connection.close()

        # After the commit: what is not committed yet, another connection does not see.
        self._thread = threading.Thread(target=work, name="purge", daemon=True)
        transaction.on_commit(self._thread.start)

    def join(self, timeout_s: float = 60) -> None:
        """Wait until nothing is left to do."""
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join(timeout_s)


runner = Runner()


def run(purge: Purge) -> None:
    """Purge, and tell how it ended. Never raises: there is nobody to hear it."""
    before = _size()
    state, error = PurgeState.DONE, ""
    try:
        _delete(purge)
        if connection.vendor != "sqlite" or purge.rewrite:
            _say(purge, step="giving space back")
            retention.free_space()
    except (DatabaseError, OSError) as exc:
        state, error = PurgeState.FAILED, str(exc).strip().partition("\n")[0][:300]
        logger.warning("%s failed: %s", purge, exc)
    except Exception:  # a fault must be told
        state, error = PurgeState.FAILED, "internal error; the log of the gateway has it"
        logger.exception("%s: unexpected fault", purge)
    after = _size()
    freed = max(0, before - after) if before is not None and after is not None else None
    try:
        _say(purge, state=state, error=error, step="", finished=now(), bytes_freed=freed)
    except DatabaseError as exc:
        logger.warning("%s: how it ended cannot be told: %s", purge, exc)


def _delete(purge: Purge) -> None:
    pace = _Pace(purge)
    _say(purge, step="transcripts")
    for count in retention.prune_transcripts(purge.created):
        purge.transcripts += count
        pace.rest()
    _say(purge, step="parts that nothing names")
    for count in retention.prune_parts(purge.created, pause=pace.rest):
        purge.parts += count
        pace.rest()
    _say(purge)


class _Pace:
    """Half of the time at work, and a word every second."""

    def __init__(self, purge: Purge) -> None:
        self._purge = purge
        self._began = self._spoken = time.monotonic()

    def rest(self) -> None:
        at = time.monotonic()
        if at - self._spoken > SPEAK_S:
            self._spoken = at
            _say(self._purge)
        time.sleep(min(LONGEST_REST_S, at - self._began))
        self._began = time.monotonic()


def _say(purge: Purge, **told: Any) -> None:
    """Into its row, also when somebody took it for dead meanwhile."""
    counts = {"transcripts": purge.transcripts, "parts": purge.parts}
    Purge.objects.filter(pk=purge.pk).update(**{"seen": now(), **counts, **told})


def _size() -> int | None:
    try:
        return space().size
    except DatabaseError:
        return None
