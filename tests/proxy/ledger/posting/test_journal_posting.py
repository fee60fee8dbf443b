"""Journals are posted although some records are broken, and after their process died."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.ledger.journal import locks, segments
from proxy.ledger.journal.journal import Journal, append_durably
from proxy.ledger.journal.reader import Backlog, JournalReader
from proxy.ledger.journal.records import CHUNK, CLOSE, KIND, OPEN, Record, encode
from proxy.ledger.posting import journal_posting
from proxy.ledger.posting.drainer import save_drain_watermark
from proxy.ledger.posting.journal_posting import KEEP_POSTED_BYTES, MAX_BYTES
from proxy.models import DrainWatermark, Exchange
from tests.proxy.ledger.conftest import Frame, append_frames, drain_all, ids_in
from tests.proxy.ledger.factories import closing, exchange_id, opening

BROKEN = b"\xc1 no MessagePack begins like this"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The directory of a journal that no process owns."""
    path = tmp_path / "journal-0"
    path.mkdir()
    return path


def broken(number: int, kind: int = OPEN) -> Frame:
    return (kind, time.time(), exchange_id(number), BROKEN)


def framed(*records: Record) -> list[Frame]:
    return [(KIND[type(one)], time.time(), one.id, encode(one)) for one in records]


@contextlib.contextmanager
def reading(path: Path) -> Iterator[JournalReader]:
    with contextlib.closing(JournalReader(path)) as reader:
        yield reader


def states() -> dict[str, str]:
    return dict(Exchange.objects.values_list("pk", "state"))


def set_aside(path: Path) -> dict[str, str]:
    """Return the fault of each request in the quarantine."""
    return {file.stem: file.read_text() for file in (path / "quarantine").glob("*.txt")}


def put_aside(path: Path, *records: Record) -> Path:
    """Write the records of one request to the quarantine; return the path of their file."""
    file = path / "quarantine" / f"{records[0].id}.frames"
    file.parent.mkdir(exist_ok=True)
    frames = (segments.encode_frame(n, 0.0, *frame) for n, frame in enumerate(
        ((KIND[type(one)], one.id, encode(one)) for one in records), 1))  # fmt: skip
    file.write_bytes(b"".join(frames))
    return file


def make_older(path: Path) -> None:
    """Let all segments of a journal have been written a little longer ago than they are kept."""
    written = time.time() - journal_posting.KEEP_POSTED_S - 60
    for number in segments.numbers_in(path):
        os.utime(segments.path_of(path, number), (written, written))


# Records that cannot be decoded or posted


@pytest.mark.django_db
def test_undecodable_record_is_set_aside_and_the_others_are_posted(path: Path) -> None:
    append_frames(path, broken(1), *framed(closing(2), opening(3), closing(3)))

    assert journal_posting.adopt(path.parent) == 0

    assert states() == {exchange_id(3): "closed"}
    faults = set_aside(path)
    assert faults.keys() == {exchange_id(1), exchange_id(2)}
    assert faults[exchange_id(2)] == "there is no open record\n"


@pytest.mark.django_db
def test_the_row_of_a_running_request_is_written_without_its_chunks(path: Path) -> None:
    append_frames(path, *framed(opening(1)), broken(1, CHUNK))

    with reading(path) as reader:
        reader.read(1)
        reader.unfinished[exchange_id(1)].is_old = False  # its process is alive
        assert next(journal_posting.post_all(reader)) == 1

    assert states() == {exchange_id(1): "open"}
    assert set_aside(path) == {}


@pytest.mark.django_db
def test_undecodable_open_record_with_a_close_record_is_set_aside(path: Path) -> None:
    append_frames(path, broken(1), *framed(closing(1)))

    with reading(path) as own:
        assert drain_all(own) == 0
        assert own.ready_ids(10) == []

    assert "MessagePack" in set_aside(path)[exchange_id(1)]


@pytest.mark.django_db
def test_large_requests_are_posted_one_by_one(path: Path) -> None:
    for number in range(3):
        append_durably(path, opening(number, body=bytes(MAX_BYTES)), closing(number))

    with reading(path) as own:
        assert list(journal_posting.post_all(own)) == [1, 1, 1]


# Journals of dead workers


@pytest.fixture
def left(path: Path) -> Path:
    """What a dead worker left: one request that ended, one that did not."""
    append_durably(path, opening(1), closing(1), opening(2))
    return path


@pytest.mark.django_db
def test_journal_of_a_dead_worker_is_posted_and_removed_a_day_later(left: Path) -> None:
    save_drain_watermark(left, Backlog(3, 1.0, 0))

    assert journal_posting.adopt(left.parent) == 1
    assert journal_posting.adopt(left.parent) == 1

    outcomes = dict(Exchange.objects.values_list("pk", "outcome"))
    assert outcomes == {exchange_id(1): "completed", exchange_id(2): "interrupted"}
    assert not DrainWatermark.objects.exists()
    assert len(ids_in(left)) == 4

    make_older(left)
    assert journal_posting.adopt(left.parent) == 1
    assert [each.name for each in left.parent.iterdir()] == ["journal-0.lock"]
    assert journal_posting.adopt(left.parent) == 0


@pytest.mark.django_db
@pytest.mark.parametrize("kind", [OPEN, CHUNK, CLOSE])
def test_undecodable_record_of_a_dead_worker_is_set_aside_and_the_others_are_posted(
    left: Path, kind: int
) -> None:
    """Whichever of its records it is, also if the others can be decoded."""
    if kind != OPEN:
        append_durably(left, opening(3))
    append_frames(left, broken(3, kind), *framed(opening(4)))

    assert journal_posting.adopt(left.parent) == 0

    closed = {name for name, state in states().items() if state == "closed"}
    assert closed == {exchange_id(number) for number in (1, 2, 4)}
    assert set_aside(left).keys() == {exchange_id(3)}


# Journals of a host that is gone


@pytest.mark.django_db
def test_journals_of_a_lost_host_are_posted_and_kept(left: Path) -> None:
    damaged, other = left.with_name("journal-1"), left.with_name("journal-2")
    damaged.mkdir()
    append_frames(damaged, broken(3))
    other.mkdir()
    append_durably(other, opening(4), closing(4))

    counted: list[int] = []
    one = journal_posting.adopt_host(left, counted.append)
    posted = states()
    found = journal_posting.adopt_host(left.parent)

    assert one == (["journal-0"], [], [])
    assert sum(counted) == 2  # what the progress of the command shows
    assert posted == {exchange_id(1): "closed", exchange_id(2): "closed"}
    assert found == (["journal-0", "journal-2"], [], ["journal-1"])
    assert states() == dict.fromkeys(map(exchange_id, (1, 2, 4)), "closed")
    assert all(ids_in(each) for each in (left, other))


@pytest.mark.django_db
def test_journal_that_a_process_uses_is_named_and_not_posted(left: Path) -> None:
    [lock] = locks.take_abandoned(left.parent)
    with lock:
        found = journal_posting.adopt_host(left.parent)

    assert found == ([], ["journal-0"], [])
    assert states() == {}


def test_directory_without_a_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="contains no journal"):
        journal_posting.adopt_host(tmp_path)


def restored_records(directory: Path) -> int:
    return sum(each.records for each in journal_posting.post_again(directory))


@pytest.mark.django_db
def test_requests_that_were_set_aside_are_posted_again_after_a_restore(left: Path) -> None:
    append_durably(left, opening(3, created=float(10**18)), closing(3))
    assert journal_posting.adopt(left.parent) == 0
    assert set_aside(left).keys() == {exchange_id(3)}
    assert restored_records(left.parent) == 6  # it is refused once more
    put_aside(left, opening(3), closing(3))  # as if the database accepted it now

    assert restored_records(left.parent) == 8

    assert set_aside(left) == {}
    assert states()[exchange_id(3)] == "closed"


@pytest.mark.django_db
def test_a_close_record_without_its_open_record_stays_set_aside(left: Path) -> None:
    path = put_aside(left, closing(3))

    assert restored_records(left.parent) == 3  # those of the journal itself

    assert path.exists()


# Removal


def test_segments_that_were_posted_are_removed_after_a_day_or_when_they_are_too_large(
    tmp_path: Path,
) -> None:
    with locks.take(tmp_path) as lock:
        journal = Journal(lock, reserve_bytes=4_096, segment_s=-1.0)  # a segment for each request
        journal.start()
        own = JournalReader(journal.directory, journal)

        def post_and_remove(number: int, keep_bytes: int = KEEP_POSTED_BYTES) -> list[int]:
            journal.append_and_wait(opening(number), closing(number))
            own.read(1)
            own.mark_posted([exchange_id(number)])
            journal_posting.remove_posted_segments(own, keep_bytes)
            return segments.numbers_in(journal.directory)

        assert post_and_remove(1) == [1]
        assert post_and_remove(2) == [1, 2]
        assert post_and_remove(3, keep_bytes=0) == [3]
        assert post_and_remove(4) == [3, 4]
        make_older(journal.directory)
        assert post_and_remove(5) == [5]
        own.close()
        journal.stop()
