"""Erase what files of this host contain of a person: journals, recorded calls, exports.

A journal stores records for a day after they are in the database. The frames are overwritten in
place, with frames of the same length, so a running gateway can go on appending to the file.
"""

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from django.utils.timezone import now

from proxy.conf import conf
from proxy.counters.backends import CALLS_FILE
from proxy.gateway.snapshot import config_cache
from proxy.ledger.journal import segments
from proxy.ledger.journal.records import OPEN, OpenRecord, decode
from proxy.ledger.journal.segments import HEADER, Damage, Frame
from proxy.live.shared_live_view import FILE as LIVE_FILE
from proxy.models import Export, ExportState, State
from proxy.reports.exports.jobs import RUNNER_TIMEOUT
from proxy.secrets import ConfigError

from .person import Person
from .requests import states_of

BUSY_S: Final = 30.0


@dataclass(slots=True)
class JournalRecords:
    """What the journals of a data directory contain of a person."""

    erased: int = 0
    """Records of finished requests, which were overwritten (or only counted)."""
    waiting: int = 0
    """Requests that are not in the database yet."""
    unreadable: int = 0
    """Damaged parts of files, which may contain records of any person."""


def erase_journals(directory: Path, person: Person, *, only_count: bool = False) -> JournalRecords:
    """Overwrite the person's records in all journals; ``only_count``: change nothing."""
    found = JournalRecords()
    for journal in sorted(directory.glob("journal-*/")):
        for number in segments.numbers_in(journal):
            _erase_segment(segments.path_of(journal, number), person, found, only_count)
        _erase_quarantine(journal / "quarantine", person, found, only_count)
    return found


def _erase_segment(path: Path, person: Person, found: JournalRecords, only_count: bool) -> None:
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:  # the gateway has just removed it
        return
    try:
        frames: list[Frame] = []
        for frame in segments.read_frames(file, HEADER.size, os.fstat(file).st_size):
            if isinstance(frame, Damage):
                found.unreadable += not frame.torn
            else:
                frames.append(frame)
        states = states_of(sorted({frame.id for frame in frames}), person)
        for frame in frames:
            data = segments.read_frame(file, frame.offset)
            state = states.get(frame.id)
            if state == State.CLOSED and data != (blank := segments.erased(data)):
                found.erased += 1
                if not only_count:
                    os.pwrite(file, blank, frame.offset)
            elif state is None and frame.kind == OPEN:
                found.waiting += _is_of_person(data, person, found)
        if not only_count:
            os.fsync(file)
    finally:
        os.close(file)


def _is_of_person(data: bytes, person: Person, found: JournalRecords) -> bool:
    """Whether a record that is not in the database belongs to the person."""
    try:
        record = decode(segments.body_of(data))
    except ValueError:  # msgspec's errors are ValueErrors
        found.unreadable += 1
        return False
    if not isinstance(record, OpenRecord):
        return False
    is_older = datetime.fromtimestamp(record.created, UTC) <= person.until
    return is_older and person.is_owner(record.user, record.key_id)


def _erase_quarantine(
    folder: Path, person: Person, found: JournalRecords, only_count: bool
) -> None:
    """Delete the person's records that the database has rejected."""
    found.unreadable += sum(1 for _ in folder.glob("*.bytes"))
    for path in sorted(folder.glob("*.frames")):
        own = [_is_of_person(data, person, found) for data in segments.frames_in(path)]
        if any(own):
            found.erased += len(own)
            if not only_count:
                path.unlink(missing_ok=True)
                path.with_suffix(".txt").unlink(missing_ok=True)


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
