"""Read a journal in order, to find the requests whose records are not all in the database yet.

The reader has in memory only the positions of the records of unfinished requests. A request is
finished when its close record was posted, that is, written to the database. The watermark file
records how far the journal was read and which requests were unfinished then; without that file, all
records are posted again, which changes nothing in the database.
"""

import json
import logging
import os
import re
from array import array
from collections.abc import Iterable, Iterator
from math import inf
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from . import segments
from .journal import Journal
from .records import CHUNK, CLOSE, OPEN
from .segments import HEADER, HEADER_MAGIC, Damage, Frame

logger = logging.getLogger(__name__)

KEEP_FINISHED: Final = 10_000
UNSAFE: Final = re.compile(r"[^\w-]")


class Backlog(NamedTuple):
    """The records of a journal that are not in the database yet."""

    records: int
    oldest: float | None  # when the oldest of them was written, in Unix seconds
    set_aside: int  # files in quarantine: requests the database rejected, and damaged bytes


class _Unfinished:
    """The positions and the state of one request's records, until the close record is posted."""

    __slots__ = ("at", "closed", "is_old", "last_at", "opened", "positions", "waiting")

    def __init__(self, at: float, *, is_old: bool, opened: bool) -> None:
        self.at = at
        self.last_at = at
        self.is_old = is_old  # whether the first of its records was written by an earlier process
        self.opened = opened  # whether its open record is in the database
        self.closed = False  # whether its close record was read
        self.waiting = 0  # number of open and close records that the database does not have
        self.positions = array("Q")  # of each record: segment << 32 | offset


class JournalReader:
    """The position in a journal, and its unfinished requests.

    Call ``read``; write the requests of ``ready_ids`` to the database; then call ``mark_posted``
    and ``save_watermark``.
    """

    def __init__(
        self, directory: Path, journal: Journal | None = None, *, from_start: bool = False
    ) -> None:
        """Open the journal in ``directory`` at its watermark. Raises OSError.

        ``journal`` is the Journal that still appends to the directory, or None if no process does.
        With ``from_start``, the watermark is ignored and no file is changed.
        """
        self.directory = directory
        self.unfinished: dict[str, _Unfinished] = {}
        self.waiting = 0  # number of records that were read, but are not in the database
        self.appended = 0  # number of records of ``journal`` that were read
        self.set_aside = len(self._set_aside_files())
        self.refused: set[str] = set()
        """Ids of the requests whose records could not be posted."""
        self.damaged_bytes = 0
        self._journal = journal
        self._read_only = from_start
        self._closed = 0  # number of unfinished requests whose close record was read
        self._finished: dict[str, None] = {}  # ids of the requests that were finished last
        self._files: dict[int, int] = {}
        self._segment = self._offset = 0
        self._writer, self._number = b"", 0  # process id and number of the last frame
        self._saved = ""
        # Requests unfinished at the loaded watermark; True: the open record is in the database
        self._carried: dict[str, bool] = {}
        self._from = (0, 0)  # segment and offset of the loaded watermark
        self._removed_until = 0.0  # when the removed segments were last written (Unix seconds)
        if not from_start:
            self._load_watermark()
        self.unread = self._count_unread()  # number of records of earlier processes to read

    # Reading

    def read(self, max_closed: int) -> None:
        """Read on until ``max_closed`` unfinished requests have a close record, or to the end."""
        while self._closed < max_closed:
            following = next((n for n in self.segment_numbers() if n > self._segment), None)
            if self._segment and self._read_segment(max_closed):
                return
            if following is None:
                return
            self._segment, self._offset = following, 0

    def _read_segment(self, max_closed: int) -> bool:
        """Read the current segment; return whether it may have unread frames afterwards."""
        try:
            end = self._open(self._segment)
        except FileNotFoundError:
            # The segment was removed, because all its records are in the database.
            return False
        for frame in self._frames(self._segment, self._offset, end):
            if isinstance(frame, Damage):
                self._report_damage(frame)
            else:
                self._take(frame)
            self._offset = frame.end
            if self._closed >= max_closed:
                return self._offset < end
        return False

    def _frames(self, number: int, offset: int, end: int) -> Iterator[Frame | Damage]:
        """Yield frames and damage; skip frames that the same process had written before."""
        file = self._files[number]
        if offset < HEADER.size:
            offset = HEADER.size
            magic, writer = HEADER.unpack(os.pread(file, HEADER.size, 0).ljust(HEADER.size, b"\0"))
            if magic != HEADER_MAGIC or writer != self._writer:
                self._writer, self._number = writer, 0
        for frame in segments.read_frames(file, offset, end):
            if isinstance(frame, Frame):
                if frame.number <= self._number:  # a copy of a frame whose first sync had failed
                    continue
                self._number = frame.number
            yield frame

    def _is_old(self, number: int) -> bool:
        return self._journal is None or number < self._journal.first_segment

    def _take(self, frame: Frame) -> None:
        posted = (self._segment, frame.offset) < self._from and frame.id not in self._carried
        if posted:
            return
        if self._is_needed(frame):
            self._add(frame)
        if frame.kind != CHUNK and self._is_old(self._segment):
            self.unread = max(0, self.unread - 1)
        elif frame.kind != CHUNK:
            self.appended += 1

    def _is_needed(self, frame: Frame) -> bool:
        if frame.kind == OPEN or frame.id in self.unfinished:
            return True
        return frame.kind == CLOSE and frame.id not in self._finished

    def _add(self, frame: Frame) -> None:
        one = self.unfinished.get(frame.id)
        if one is None:
            old = self._is_old(self._segment)
            opened = self._carried.get(frame.id, False)
            one = self.unfinished[frame.id] = _Unfinished(frame.at, is_old=old, opened=opened)
        one.positions.append(self._segment << 32 | frame.offset)
        one.last_at = frame.at
        one.waiting += frame.kind != CHUNK
        self.waiting += frame.kind != CHUNK
        if frame.kind == CLOSE and not one.closed:
            one.closed = True
            self._closed += 1

    def _count_unread(self) -> int:
        """Return the number of open and close records of earlier processes.

        ``_take`` subtracts each of these records from ``unread`` when it is read.
        """
        count = 0
        for number in [n for n in self.segment_numbers() if self._is_old(n) and n >= self._segment]:
            self._open(number)
            for frame in self._frames(number, 0, os.fstat(self._files[number]).st_size):
                if isinstance(frame, Frame) and frame.kind != CHUNK:
                    before = (number, frame.offset) < self._from
                    count += frame.id in self._carried if before else True
        self._writer, self._number = b"", 0
        return count

    def _report_damage(self, damage: Damage) -> None:
        """Log bytes that are not a valid record; truncate a torn write, quarantine other bytes."""
        size = damage.end - damage.offset
        name = segments.path_of(self.directory, self._segment).name
        self.damaged_bytes += size
        if self._read_only:
            return
        if damage.torn:
            logger.warning("journal: %s ends in %d bytes of an incomplete record", name, size)
            os.truncate(segments.path_of(self.directory, self._segment), damage.offset)
            return
        logger.error("journal: %s has %d damaged bytes at %d", name, size, damage.offset)
        data = os.pread(self._files[self._segment], size, damage.offset)
        self._quarantine(f"{name}-{damage.offset}.bytes", data)

    # Posting

    def ready_ids(self, max_records: int, opened_before: float = inf) -> list[str]:
        """Return the ids of requests with records to write to the database, oldest request first.

        The result ends when these requests have ``max_records`` records. Running requests that were
        opened at or after ``opened_before`` (Unix seconds) are left for a later call.
        """
        ids, records = [], 0
        for request_id, one in self.unfinished.items():
            if one.closed or not (one.opened or one.is_old or one.at >= opened_before):
                ids.append(request_id)
                records += one.waiting
                if records >= max_records:
                    break
        return ids

    def frames(self, request_id: str) -> Iterator[bytes]:
        """Yield the frames that contain a request's records, oldest first, one at a time."""
        one = self.unfinished.get(request_id)
        for position in one.positions if one is not None else ():
            number, offset = position >> 32, position & 0xFFFFFFFF
            self._open(number)
            yield segments.read_frame(self._files[number], offset)

    def bodies(self, request_id: str) -> Iterator[bytes]:
        """Yield the encoded records of a request, oldest first, one at a time."""
        return map(segments.body_of, self.frames(request_id))

    def unclosed_ids(self) -> list[str]:
        """Return the ids of the requests of earlier processes that have no close record.

        Call it when all records of earlier processes were read.
        """
        self.unread = 0
        return [name for name, one in self.unfinished.items() if one.is_old and not one.closed]

    @property
    def has_read_earlier(self) -> bool:
        """Whether all records that earlier processes wrote were read."""
        return not self._is_old(self._segment)

    def last_at(self, request_id: str) -> float:
        """Return when the last record of an unfinished request was written (Unix seconds)."""
        return self.unfinished[request_id].last_at

    def mark_posted(self, ids: Iterable[str]) -> None:
        """Note that all records read of these requests are in the database."""
        for request_id in ids:
            one = self.unfinished[request_id]
            self.waiting -= one.waiting
            one.waiting, one.opened = 0, True
            if one.closed:
                self._finish(request_id)

    def put_aside(self, request_id: str, fault: str) -> None:
        """Move a request's records to the quarantine folder, so that others are not blocked.

        ``fault``: why the database cannot store the request.
        """
        one = self.unfinished.get(request_id)
        if one is None:
            return
        self.refused.add(request_id)
        name = UNSAFE.sub("_", request_id)
        self._quarantine(f"{name}.frames", b"".join(self.frames(request_id)))
        self._quarantine(f"{name}.txt", f"{fault[:500]}\n".encode())
        self.waiting -= one.waiting
        if one.closed:
            self._finish(request_id)
        else:
            del self.unfinished[request_id]

    def _finish(self, request_id: str) -> None:
        del self.unfinished[request_id]
        self._closed -= 1
        self._finished[request_id] = None
        if len(self._finished) > KEEP_FINISHED:
            del self._finished[next(iter(self._finished))]

    def _quarantine(self, name: str, data: bytes) -> None:
        """Append durably to a file in the quarantine folder, which an administrator must check."""
        if self._read_only:
            return
        folder = self.directory / "quarantine"
        folder.mkdir(mode=0o700, exist_ok=True)
        with _open_private(folder / name, os.O_APPEND) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self.set_aside = len(self._set_aside_files())

    def _set_aside_files(self) -> list[Path]:
        files = (self.directory / "quarantine").glob("*")
        return sorted(path for path in files if path.suffix != ".txt")

    # The watermark

    def backlog(self) -> Backlog:
        """Return the records not in the database: those read, and unread ones of old processes."""
        waiting = (one.at for one in self.unfinished.values() if one.waiting)
        return Backlog(self.waiting + self.unread, next(waiting, None), self.set_aside)

    def save_watermark(self, *, durably: bool = False) -> None:
        """Write the position and the unfinished requests to the watermark file.

        No sync is needed, because after a crash an older watermark file is correct too.
        """
        if self._read_only:
            return
        records, oldest, set_aside = self.backlog()
        content = json.dumps(
            {
                "segment": self._segment,
                "offset": self._offset,
                "first_segment": self._first_needed(),
                "unfinished": {name: one.opened for name, one in self.unfinished.items()},
                "records": records,
                "oldest": oldest,
                "set_aside": set_aside,
                "removed_until": self._removed_until,
            }
        )
        if content == self._saved and not durably:
            return
        path = self.directory / WATERMARK
        new = path.with_suffix(".new")
        with _open_private(new, os.O_TRUNC) as file:
            file.write(content.encode())
            if durably:
                file.flush()
                os.fsync(file.fileno())
        new.replace(path)
        self._saved = content

    def _load_watermark(self) -> None:
        mark = read_watermark(self.directory)
        if mark is None:
            return
        self._from = (mark["segment"], mark["offset"])
        self._carried = mark["unfinished"]
        self._segment, self._offset = mark["first_segment"], 0
        self._removed_until = mark.get("removed_until", 0.0)

    def _first_needed(self) -> int:
        firsts = (one.positions[0] >> 32 for one in self.unfinished.values())
        return min(firsts, default=self._segment)

    def remove_segments(self, before: float, keep_bytes: int) -> None:
        """Remove segments whose requests are all finished: old ones, and others to save space.

        Removes segments last written before ``before`` (Unix seconds), and the oldest others until
        the finished segments have at most ``keep_bytes``.
        """
        first = self._first_needed()
        below = [n for n in self.segment_numbers() if n < first]
        sizes = {n: segments.path_of(self.directory, n).stat() for n in below}
        total = sum(each.st_size for each in sizes.values())
        removable = []
        for number, stat in sizes.items():
            if stat.st_mtime >= before and total <= keep_bytes:
                break
            removable.append(number)
            total -= stat.st_size
        if removable:
            written = (sizes[number].st_mtime for number in removable)
            self._removed_until = max(self._removed_until, *written)
            self.save_watermark(durably=True)
        for number in removable:
            segments.path_of(self.directory, number).unlink(missing_ok=True)
            if (file := self._files.pop(number, None)) is not None:
                os.close(file)

    def kept_since(self) -> float | None:
        """Return the time from which all records are kept (Unix seconds); 0: none was removed.

        None: there are no records. It is the time of the last record that was removed, or, if an
        older version removed it, of the first one that is left.
        """
        numbers = self.segment_numbers()
        if not numbers or numbers[0] == 1:
            return 0.0 if numbers else None
        if until := (read_watermark(self.directory) or {}).get("removed_until"):
            return float(until)
        end = self._open(numbers[0])
        frames = segments.read_frames(self._files[numbers[0]], HEADER.size, end)
        first = next((frame.at for frame in frames if isinstance(frame, Frame)), None)
        return self.newest_at() if first is None else first

    def newest_at(self) -> float:
        """Return when any segment of this journal was last written (Unix seconds)."""
        paths = (segments.path_of(self.directory, n) for n in self.segment_numbers())
        return max((path.stat().st_mtime for path in paths), default=0.0)

    # Files

    def segment_numbers(self) -> list[int]:
        """Return the numbers of the segment files that exist."""
        return segments.numbers_in(self.directory)

    def _open(self, number: int) -> int:
        """Open a segment if it is not open; return how many of its bytes may be read."""
        if number not in self._files:
            path = segments.path_of(self.directory, number)
            self._files[number] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        end = None if self._journal is None else self._journal.end_of(number)
        return os.fstat(self._files[number]).st_size if end is None else end

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()


WATERMARK: Final = "watermark.json"


def read_watermark(directory: Path) -> dict[str, Any] | None:
    """Return the content of a journal's watermark file; None if it is missing or invalid."""
    try:
        found = json.loads((directory / WATERMARK).read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "set_aside" in found else None


def _open_private(path: Path, flags: int) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, 0o600), "wb")
