"""Makes exports: a thread that takes one waiting row after another and writes its file.

A row is taken by a conditional update, so several processes may run over the same table. Whoever
asks for an export or for its state wakes the thread here; a row whose runner has been silent is
taken anew, from its beginning.
"""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from django.db import DatabaseError, connection
from django.db.models import F, Q
from django.utils.timezone import now
from rest_framework.exceptions import ValidationError

from proxy.conf import conf
from proxy.models import Export, ExportState
from proxy.visibility import Reader

from .answers import Export as Rows
from .answers import packed
from .parameters import ReportParameters
from .request_filters import RequestParameters
from .requests import every_request
from .sessions import SessionParameters, every_session
from .usage import UsageParameters, every_sum

logger = logging.getLogger(__name__)

KEPT: Final = timedelta(hours=24)
SILENT: Final = timedelta(seconds=60)
SPEAK_S: Final = 5.0
MOST_TRIES: Final = 3
LEFT_FREE: Final = 512 * 2**20  # bytes: the spool of the ledger writes to the same disk
REPORTS: Final[
    Mapping[str, tuple[type[ReportParameters], Callable[[Reader, dict[str, Any]], Rows]]]
] = {
    "requests": (RequestParameters, every_request),
    "sessions": (SessionParameters, every_session),
    "usage": (UsageParameters, every_sum),
}


class Stopped(Exception):
    """The export cannot go on; the message is for its owner."""


def checked(report: str, query: Mapping[str, Any], form: str) -> dict[str, Any]:
    """The parameters of the report. Raises ValidationError, which names the parameter."""
    parameters = REPORTS[report][0](data={**query, "format": form})
    parameters.is_valid(raise_exception=True)
    return dict(parameters.validated_data)


def frozen(reader: Reader) -> dict[str, Any]:
    """A reader as JSON; equal for equal rights."""
    return {**asdict(reader), "teams": sorted(reader.teams)}


def path_of(job: Export) -> Path:
    return conf.data_dir / "exports" / f"{job.pk}.{job.format}"


class Runner:
    """``wake`` it when there may be something to do; it ends by itself when there is not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = False
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        with self._lock:
            self._asked = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="exports", daemon=True)
                self._thread.start()

    def join(self, timeout_s: float = 30) -> None:
        """Wait until nothing is left to do."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._asked:
                    self._thread = None
                    return
                self._asked = False
            try:
                run_all()
            except Exception:  # a fault must not end the thread for good
                logger.exception("exports: unexpected fault")
            finally:
                connection.close()


runner = Runner()


def run_all() -> int:
    """Make all waiting exports, and forget the old ones; how many were made or given up."""
    expire()
    made = 0
    while (job := _claimed()) is not None:
        made += 1
        try:
            _make(job)
        except Stopped as exc:
            _fail(job, str(exc))
        except (ValidationError, DatabaseError, OSError) as exc:
            logger.warning("export %s failed: %s", job.pk, exc)
            _fail(job, f"it could not be made: {type(exc).__name__}")
    return made


def _claimed() -> Export | None:
    """The oldest row that waits, or whose runner is silent; it is ours on return."""
    silent = Q(state=ExportState.RUNNING, seen__lt=now() - SILENT)
    due = Export.objects.filter(Q(state=ExportState.WAITING) | silent).order_by("created", "pk")
    for job in due[:20]:
        same = Export.objects.filter(pk=job.pk, state=job.state, tries=job.tries)
        if job.tries >= MOST_TRIES:
            same.update(
                state=ExportState.FAILED, error="its process died each time", finished=now()
            )
        elif same.update(state=ExportState.RUNNING, seen=now(), tries=F("tries") + 1):
            job.refresh_from_db()
            return job
    return None


def _make(job: Export) -> None:
    asked = checked(job.report, job.query, job.format)
    reader = Reader(**{**job.reader, "teams": frozenset(job.reader["teams"])})
    rows, columns = REPORTS[job.report][1](reader, asked)
    path = path_of(job)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{job.tries}.part")
    try:
        written = _written(job, part, packed(rows, job.format, columns))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    at = now()
    _ours(job).update(state=ExportState.DONE, bytes=written, finished=at, expires=at + KEPT)


def _written(job: Export, part: Path, chunks: Iterator[bytes]) -> int:
    """Bytes written. Raises Stopped when somebody else has the job, or the disk is filling up."""
    written, spoken = 0, time.monotonic()
    part.touch(mode=0o600)
    with part.open("wb") as file:
        for chunk in chunks:
            written += file.write(chunk)
            if time.monotonic() - spoken > SPEAK_S:
                spoken = time.monotonic()
                if shutil.disk_usage(part.parent).free < LEFT_FREE:
                    raise Stopped("the disk of the gateway is nearly full")
                if not _ours(job).update(seen=now(), bytes=written):
                    raise Stopped("another process has taken it")
    return written


def _ours(job: Export) -> Any:
    return Export.objects.filter(pk=job.pk, state=ExportState.RUNNING, tries=job.tries)


def _fail(job: Export, why: str) -> None:
    _ours(job).update(state=ExportState.FAILED, error=why[:300], finished=now())


def expire(at: datetime | None = None) -> int:
    """Delete the files that are past their time; how many."""
    old = Export.objects.filter(state=ExportState.DONE, expires__lt=at or now())
    gone = 0
    for job in old:
        path_of(job).unlink(missing_ok=True)
        gone += Export.objects.filter(pk=job.pk).update(state=ExportState.EXPIRED)
    return gone
