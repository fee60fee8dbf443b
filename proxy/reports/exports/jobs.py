"""Run exports: a background thread claims waiting rows one by one and writes their files.

Each export is a database row. A conditional update claims a row, so several processes can work on
the same table. An HTTP request that creates an export or reads its state wakes the thread of the
process that handles it. If the process that claimed a row has not reported progress for
``RUNNER_TIMEOUT``, another thread claims the row again and writes the file from the start.
"""

import logging
import math
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
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
from proxy.permissions.row_permissions import Reader
from proxy.reports.core.rendering import encode_rows
from proxy.reports.requests.sessions import SessionsView
from proxy.reports.requests.views import RequestsView
from proxy.reports.usage.usage import UsageView

logger = logging.getLogger(__name__)

FILE_LIFETIME: Final = timedelta(hours=24)
RUNNER_TIMEOUT: Final = timedelta(seconds=60)
PROGRESS_INTERVAL_S: Final = 5.0
MAX_TRIES: Final = 3
MIN_FREE_BYTES: Final = 512 * 2**20  # this space is for the journal, which is on the same disk
REPORTS: Final[Mapping[str, Any]] = {
    "requests": RequestsView,
    "sessions": SessionsView,
    "usage": UsageView,
}


class ExportStopped(Exception):
    """The export cannot continue. The message is shown to the owner of the export."""


def validate_query(report: str, query: Mapping[str, Any], form: str) -> dict[str, Any]:
    """Return the validated parameters of the report to export in the format ``form``.

    Raise ValidationError with the name of the invalid parameter.
    """
    parameters = REPORTS[report].parameters(data={**query, "format": form})
    parameters.is_valid(raise_exception=True)
    return dict(parameters.validated_data)


def reader_as_json(reader: Reader) -> dict[str, Any]:
    """Return a reader (the rows a caller may read) as JSON, equal for equal permissions."""
    return {**asdict(reader), "teams": sorted(reader.teams)}


def file_path(job: Export) -> Path:
    return conf.data_dir / "exports" / f"{job.pk}.{job.format}"


class Runner:
    """A background thread that runs exports. ``wake`` starts it; it ends when none is waiting."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_awake = False
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        with self._lock:
            self._is_awake = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="exports", daemon=True)
                self._thread.start()

    def join(self, timeout_s: float = 30) -> None:
        """Wait until the background thread has ended, but at most ``timeout_s`` seconds."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._is_awake:
                    self._thread = None
                    return
                self._is_awake = False
            try:
                run_all()
            except Exception:  # an unexpected error must not prevent later exports
                logger.exception("exports: unexpected error")
            finally:
                connection.close()


runner = Runner()


def run_all() -> int:
    """Delete expired files, run all waiting exports, and return the number of exports run."""
    expire()
    count = 0
    while (job := _claim_next()) is not None:
        count += 1
        try:
            _run(job)
        except ExportStopped as exc:
            _fail(job, str(exc))
        except (ValidationError, DatabaseError, OSError) as exc:
            logger.warning("export %s failed: %s", job.pk, exc)
            _fail(job, f"the export failed: {type(exc).__name__}")
    return count


def _claim_next() -> Export | None:
    """Claim the oldest export that is waiting or whose process has timed out, or return None."""
    silent = Q(state=ExportState.RUNNING, seen__lt=now() - RUNNER_TIMEOUT)
    candidates = Export.objects.filter(Q(state=ExportState.WAITING) | silent).order_by(
        "created", "pk"
    )
    for job in candidates[:20]:
        unchanged = Export.objects.filter(pk=job.pk, state=job.state, tries=job.tries)
        if job.tries >= MAX_TRIES:
            unchanged.update(
                state=ExportState.FAILED, error="its process died each time", finished=now()
            )
        elif unchanged.update(state=ExportState.RUNNING, seen=now(), tries=F("tries") + 1):
            job.refresh_from_db()
            return job
    return None


def _run(job: Export) -> None:
    parameters = validate_query(job.report, job.query, job.format)
    reader = Reader(**{**job.reader, "teams": frozenset(job.reader["teams"])})
    rows, columns = REPORTS[job.report].export(reader, parameters)
    path = file_path(job)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{job.tries}.part")
    try:
        written = _write(job, part, encode_rows(rows, job.format, columns))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    at = now()
    _claimed_row(job).update(
        state=ExportState.DONE, bytes=written, finished=at, expires=at + FILE_LIFETIME
    )


def _write(job: Export, part: Path, chunks: Iterator[bytes]) -> int:
    """Write the chunks to the file ``part`` and return the number of bytes.

    Raise ExportStopped if another process has claimed the export or the disk is nearly full.
    """
    written, reported = 0, -math.inf  # the first chunk is checked, too
    part.touch(mode=0o600)
    with part.open("wb") as file:
        for chunk in chunks:
            written += file.write(chunk)
            if time.monotonic() - reported > PROGRESS_INTERVAL_S:
                reported = time.monotonic()
                if shutil.disk_usage(part.parent).free < MIN_FREE_BYTES:
                    raise ExportStopped("the disk of the gateway is nearly full")
                if not _claimed_row(job).update(seen=now(), bytes=written):
                    raise ExportStopped("another process has claimed it")
    return written


def _claimed_row(job: Export) -> Any:
    """Return the export's row as a queryset, which is empty if another process has claimed it."""
    return Export.objects.filter(pk=job.pk, state=ExportState.RUNNING, tries=job.tries)


def _fail(job: Export, reason: str) -> None:
    _claimed_row(job).update(state=ExportState.FAILED, error=reason[:300], finished=now())


def expire(at: datetime | None = None) -> int:
    """Delete the files of expired exports, and return the number of these exports."""
    old = Export.objects.filter(state=ExportState.DONE, expires__lt=at or now())
    deleted = 0
    for job in old:
        file_path(job).unlink(missing_ok=True)
        deleted += Export.objects.filter(pk=job.pk).update(state=ExportState.EXPIRED)
    return deleted
