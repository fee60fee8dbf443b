"""Erase what other files of the data directory contain of a person: calls, exports."""

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from django.utils.timezone import now

from proxy.conf import conf
from proxy.counters.backends import CALLS_FILE
from proxy.gateway.snapshot import config_cache
from proxy.live.shared_live_view import FILE as LIVE_FILE
from proxy.models import Export, ExportState
from proxy.reports.exports.jobs import RUNNER_TIMEOUT
from proxy.secrets import ConfigError

BUSY_S: Final = 30.0


def erase_calls(sessions: Iterable[tuple[int | None, str]]) -> None:
    """Delete the recorded tool calls of sessions, given as key id and session id."""
    rows = [(session_digest(*each),) for each in sessions]
    _execute(CALLS_FILE, "DELETE FROM calls WHERE session = ?", rows)


def erase_live_rows() -> None:
    """Delete the stored lists of running requests; the processes write them again."""
    _execute(LIVE_FILE, "DELETE FROM states", [()])


def session_digest(key_id: int | None, session_id: str) -> str:
    """Return the digest under which the calls of a session are recorded."""
    text = f"{key_id}\n{session_id}"
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


def is_export_running() -> bool:
    """Whether a process is writing the file of an export."""
    alive = now() - RUNNER_TIMEOUT
    return Export.objects.filter(state=ExportState.RUNNING, seen__gte=alive).exists()


def expire_exports() -> None:
    """Delete the files of all exports, also incomplete ones: they may have rows of the person."""
    Export.objects.filter(state=ExportState.DONE).update(state=ExportState.EXPIRED)
    for path in (conf.data_dir / "exports").glob("*"):
        path.unlink(missing_ok=True)


def write_configuration_again() -> None:
    """Write the stored configuration again if there is one: it has names of users and keys."""
    if conf.last_configuration.exists():
        config_cache.save_cached(config_cache.read_database())


def _execute(name: str, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
    """Change a shared file, and write it again without the deleted content."""
    path: Path = conf.data_dir / name
    if not path.exists() or not rows:
        return
    try:
        with contextlib.closing(
            sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
        ) as file:
            file.execute("BEGIN IMMEDIATE")
            file.executemany(statement, rows)
            file.execute("COMMIT")
            file.execute("VACUUM")
            file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise ConfigError(f"{path} cannot be changed: {error}") from None
