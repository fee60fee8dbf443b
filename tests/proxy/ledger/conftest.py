"""Fixtures: a journal in a temporary directory, and a recorder process that can be killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.ledger.journal import locks, segments
from proxy.ledger.journal.journal import Journal
from proxy.ledger.journal.reader import JournalReader
from proxy.ledger.posting.journal_posting import post_all
from proxy.models import Team

from .subprocess_driver import Driver


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with locks.take(tmp_path) as lock:
        journal = Journal(lock, reserve_bytes=65_536)
        journal.start()
        yield journal
        journal.stop()


@pytest.fixture
def own(journal: Journal) -> Iterator[JournalReader]:
    """The journal as the drainer reads it; ``drain_all`` posts it in this thread."""
    reader = JournalReader(journal.directory, journal)
    yield reader
    reader.close()


@pytest.fixture
def team(db: None) -> Team:
    return Team.objects.create(name="platform", ledger_id="platform", retention_days=30)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    running = Driver(tmp_path / "data")
    yield running
    running.end()


def drain_all(own: JournalReader) -> int:
    return sum(post_all(own))


Frame = tuple[int, float, str, bytes]
"""Kind, Unix seconds, request id and body of a record."""


def append_frames(directory: Path, *frames: Frame) -> None:
    """Write a segment of records that need not be decodable."""
    segment = segments.Segment(directory, segments.next_number(directory), b"a writer")
    segment.append(
        [
            segments.encode_frame(number, at, kind, request_id, body)
            for number, (kind, at, request_id, body) in enumerate(frames, 1)
        ]
    )
    segment.close()


def ids_in(directory: Path) -> list[str]:
    """Return the request id of each record in a journal's directory, in order."""
    reader = JournalReader(directory, from_start=True)
    frames = (
        frame
        for number in reader.segment_numbers()
        for frame in reader._frames(number, 0, reader._open(number))
    )
    found = [frame.id for frame in frames if hasattr(frame, "id")]
    reader.close()
    return found
