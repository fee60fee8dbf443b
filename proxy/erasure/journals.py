"""Erase the records of a person in the journals of this host.

A journal stores records for a day after they are in the database. The frames are overwritten in
place, with frames of the same length, so a running gateway can go on appending to the file.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path

from proxy.ledger.archive.reading import rows_by_id
from proxy.ledger.journal import segments
from proxy.ledger.journal.records import OPEN, OpenRecord, decode
from proxy.ledger.journal.segments import HEADER, Damage, Frame
from proxy.models import Exchange, State

from .person import Person
from .requests import slices


@dataclass(slots=True)
class JournalRecords:
    """What the journals of a data directory contain of a person."""

    erased: int = 0
    """Records of finished requests, which were overwritten (or only counted)."""
    waiting: int = 0
    """Requests that are not in the database yet."""
    unreadable: int = 0
    """Damaged parts of files, which may contain records of any person."""


def erase(directory: Path, person: Person, *, only_count: bool = False) -> JournalRecords:
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
        states = _states_of(sorted({frame.id for frame in frames}), person)
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


def _states_of(ids: Sequence[str], person: Person) -> dict[str, str]:
    """Return the states of these requests in the database; "" for requests of other people."""
    states: dict[str, str] = {}
    for some in slices(ids):
        columns = ("pk", "state", "created", "user", "key_id")
        found = list(Exchange.objects.filter(pk__in=some).values_list(*columns))
        archived = set(some) - {row[0] for row in found}
        found += map(attrgetter(*columns), rows_by_id(archived))
        for pk, state, created, user, key_id in found:
            own = user == person.pseudonym or person.is_owner(user, key_id)
            states[pk] = state if own and created <= person.until else ""
    return states


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
        own = [_is_of_person(data, person, found) for data in _frames_in(path)]
        if any(own):
            found.erased += len(own)
            if not only_count:
                path.unlink(missing_ok=True)
                path.with_suffix(".txt").unlink(missing_ok=True)


def _frames_in(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for frame in segments.read_frames(file.fileno(), 0, path.stat().st_size):
            if isinstance(frame, Frame):
                yield segments.read_frame(file.fileno(), frame.offset)
