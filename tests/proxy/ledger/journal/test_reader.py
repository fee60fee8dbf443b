"""The reader: what the database lacks, across restarts, damage and removed segments."""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.ledger.journal import locks, segments
from proxy.ledger.journal.journal import Journal
from proxy.ledger.journal.reader import KEEP_FINISHED, Backlog, JournalReader
from proxy.ledger.journal.records import CHUNK, CLOSE, OPEN, Chunk, Record, decode
from tests.proxy.ledger.conftest import append_frames
from tests.proxy.ledger.factories import closing, exchange_id, opening

ALL = 10**9


@contextlib.contextmanager
def life(folder: Path, *, segment_bytes: int = 2**20) -> Iterator[tuple[Journal, JournalReader]]:
    """A process that owns the journal, and its reader; nothing is saved at its end."""
    with locks.take(folder) as lock:
        journal = Journal(lock, reserve_bytes=4_096, segment_bytes=segment_bytes)
        journal.start()
        with contextlib.closing(JournalReader(lock.path, journal)) as own:
            yield journal, own
        journal.stop()


@contextlib.contextmanager
def abandoned(folder: Path) -> Iterator[JournalReader]:
    with contextlib.closing(JournalReader(folder / "journal-0")) as reader:
        yield reader


def chunk(number: int, text: bytes = b"x") -> Chunk:
    return Chunk(id=exchange_id(number), reads=[(1.0, text)])


def ids(*numbers: int) -> list[str]:
    return [exchange_id(number) for number in numbers]


def records(own: JournalReader, number: int) -> list[Record]:
    return [decode(body) for body in own.bodies(exchange_id(number))]


# Reading


def test_request_is_ready_when_it_is_closed_or_old_enough(tmp_path: Path) -> None:
    with life(tmp_path) as (journal, own):
        journal.append_and_wait(opening(1), opening(2), opening(3), closing(3))
        own.read(ALL)

        assert own.ready_ids(ALL, 0) == ids(3)
        assert own.ready_ids(ALL) == ids(1, 2, 3)
        assert own.ready_ids(1) == ids(1)
        assert own.unclosed_ids() == []  # they run


def test_records_of_a_request_come_in_order(tmp_path: Path) -> None:
    with life(tmp_path) as (journal, own):
        written = [opening(1), chunk(1), chunk(1, b"y"), closing(1)]
        journal.append_and_wait(*written[:2], opening(2), *written[2:3])
        own.read(ALL)
        assert records(own, 1) == written[:3]

        journal.append_and_wait(closing(1))
        own.read(ALL)

        assert records(own, 1) == written
        assert own.last_at(exchange_id(1)) == pytest.approx(time.time(), abs=60)
        assert list(own.bodies("req_unknown")) == []


def test_reading_stops_at_enough_closed_requests_and_goes_on_later(tmp_path: Path) -> None:
    """While the database is away the memory does not grow with the journal."""
    with life(tmp_path, segment_bytes=2_000) as (journal, own):
        for number in range(50):
            journal.append_and_wait(opening(number), closing(number))
        found = []
        while True:
            own.read(4)
            if not (some := own.ready_ids(ALL)):
                break
            assert len(own.unfinished) <= 5
            found += some
            own.mark_posted(some)

        assert found == ids(*range(50))
        assert (own.appended, own.waiting) == (100, 0)


def test_open_request_that_was_posted_is_ready_again_when_it_is_closed(tmp_path: Path) -> None:
    with life(tmp_path) as (journal, own):
        journal.append_and_wait(opening(1))
        own.read(ALL)
        own.mark_posted(own.ready_ids(ALL))
        assert (own.ready_ids(ALL), own.backlog().records) == ([], 0)

        journal.append_and_wait(closing(1))
        own.read(ALL)

        assert (own.ready_ids(ALL), own.backlog().records) == (ids(1), 1)
        assert len(records(own, 1)) == 2


def test_second_close_record_of_a_finished_request_changes_nothing(tmp_path: Path) -> None:
    numbers = range(1, KEEP_FINISHED + 2)
    frames = ((kind, 1.0, each, b"") for each in ids(*numbers) for kind in (OPEN, CLOSE))
    (tmp_path / "journal-0").mkdir()
    append_frames(tmp_path / "journal-0", *frames)
    with life(tmp_path) as (journal, own):
        own.read(ALL)
        own.mark_posted(ids(*numbers))
        journal.append_and_wait(closing(2), chunk(2), closing(numbers[-1]), closing(1))
        own.read(ALL)

        assert own.ready_ids(ALL) == ids(1)  # only the last ones are known
        assert own.appended == 3


def test_only_durable_records_are_read(tmp_path: Path, disk) -> None:
    with life(tmp_path) as (journal, own):
        journal.append_and_wait(opening(1))
        path = segments.path_of(journal.directory, 1)
        with path.open("ab") as file:  # written, not synced
            file.write(segments.encode_frame(9, 1.0, OPEN, "req_9", b"x"))
        own.read(ALL)

        assert own.ready_ids(ALL) == ids(1)


def test_backlog_counts_what_was_not_read_yet_and_knows_the_oldest(tmp_path: Path) -> None:
    with life(tmp_path) as (journal, own):
        journal.append_and_wait(opening(1), chunk(1), closing(1), opening(2))
        assert own.backlog() == Backlog(0, None, 0)
    with life(tmp_path) as (_, own):
        assert own.backlog() == Backlog(3, None, 0)
        own.read(1)
        assert (own.unread, own.backlog().records) == (1, 3)
        assert own.backlog().oldest == pytest.approx(time.time(), abs=60)


# Restarts


def test_next_process_reads_only_what_the_database_lacks(tmp_path: Path) -> None:
    with life(tmp_path, segment_bytes=2_000) as (journal, own):
        journal.append_and_wait(opening(1), opening(2), chunk(1))
        for number in range(3, 30):
            journal.append_and_wait(opening(number), closing(number))
        own.read(ALL)
        own.mark_posted(own.ready_ids(ALL))
        own.save_watermark()
        journal.append_and_wait(closing(2), opening(30))

    with life(tmp_path) as (_, own):
        assert own.backlog().records == 4  # two that run, and what came after the watermark
        own.read(ALL)

        assert own.ready_ids(ALL) == ids(2)
        assert own.unclosed_ids() == ids(1, 30)
        assert [type(one).__name__ for one in records(own, 1)] == ["OpenRecord", "Chunk"]
        assert len(records(own, 2)) == 2
        assert (own.unread, own.backlog().records) == (0, 4)


def test_process_without_a_watermark_reads_everything(tmp_path: Path) -> None:
    with life(tmp_path) as (journal, own):
        journal.append_and_wait(opening(1), closing(1))
        own.read(ALL)
        own.mark_posted(ids(1))
        own.save_watermark()
    (tmp_path / "journal-0" / "watermark.json").write_bytes(b'{"segment": 1, "off')

    with abandoned(tmp_path) as own:
        own.read(ALL)

        assert own.ready_ids(ALL) == ids(1)


def test_orphan_is_never_ready_before_it_is_closed(tmp_path: Path) -> None:
    with life(tmp_path) as (journal, _):
        journal.append_and_wait(opening(1))
    with life(tmp_path) as (journal, own):
        assert not own.has_read_earlier
        own.read(ALL)
        assert own.has_read_earlier
        assert (own.ready_ids(ALL), own.unclosed_ids()) == ([], ids(1))

        journal.append_and_wait(closing(1))
        own.read(ALL)

        assert (own.ready_ids(ALL), own.unclosed_ids()) == (ids(1), [])
        own.mark_posted(ids(1))
        assert own.backlog().records == 0


def test_watermark_is_written_only_if_it_changed(tmp_path: Path) -> None:
    with life(tmp_path) as (journal, own):
        own.save_watermark()
        path = journal.directory / "watermark.json"
        path.unlink()
        own.save_watermark()
        assert not path.exists()
        own.save_watermark(durably=True)
        assert json.loads(path.read_bytes())["unfinished"] == {}


# Damage


def test_torn_tail_is_cut_and_the_next_process_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with life(tmp_path) as (journal, _):
        journal.append_and_wait(opening(1), opening(2))
    path = segments.path_of(tmp_path / "journal-0", 1)
    os.truncate(path, path.stat().st_size - 7)

    with life(tmp_path) as (journal, own):
        journal.append_and_wait(opening(3))
        own.read(ALL)

        assert [*own.unfinished] == ids(1, 3)
        assert own.set_aside == 0
    assert "bytes of an incomplete record" in caplog.text
    with abandoned(tmp_path) as own:
        own.read(ALL)
    assert caplog.text.count("incomplete record") == 1


def test_damaged_frame_in_the_middle_is_quarantined_and_costs_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with life(tmp_path) as (journal, _):
        journal.append_and_wait(opening(1), opening(2), opening(3))
    path = segments.path_of(tmp_path / "journal-0", 1)
    data = bytearray(path.read_bytes())
    size = (len(data) - segments.HEADER.size) // 3
    middle = segments.HEADER.size + size + size // 2
    data[middle] ^= 0xFF
    path.write_bytes(data)

    with abandoned(tmp_path) as own:
        own.read(ALL)

        assert [*own.unfinished] == ids(1, 3)
        assert own.backlog().set_aside == 1
    (stored,) = (tmp_path / "journal-0" / "quarantine").iterdir()
    assert stored.name == f"000000000001.segment-{segments.HEADER.size + size}.bytes"
    assert stored.stat().st_size == size
    assert f"{size} damaged bytes" in caplog.text


def test_segment_with_a_damaged_header_is_read(tmp_path: Path) -> None:
    with life(tmp_path) as (journal, _):
        journal.append_and_wait(opening(1))
    path = segments.path_of(tmp_path / "journal-0", 1)
    path.write_bytes(b"\0" * 4 + path.read_bytes()[4:])

    with abandoned(tmp_path) as own:
        own.read(ALL)
        assert [*own.unfinished] == ids(1)


@pytest.mark.parametrize("size", [0, 5])
def test_segment_without_a_whole_header_is_empty(tmp_path: Path, size: int) -> None:
    folder = tmp_path / "journal-0"
    folder.mkdir()
    segments.path_of(folder, 1).write_bytes(bytes(size))

    with abandoned(tmp_path) as own:
        own.read(ALL)
        assert own.backlog() == Backlog(0, None, 0)


def test_refused_request_is_copied_to_the_quarantine(tmp_path: Path) -> None:
    with life(tmp_path) as (journal, own):
        journal.append_and_wait(opening(1), chunk(1), opening(2), closing(2))
        own.read(ALL)

        own.put_aside(exchange_id(1), "it is no good")
        own.put_aside(exchange_id(2), "nor is this one")
        journal.append_and_wait(closing(1))
        own.read(ALL)
        own.put_aside(exchange_id(1), "there is no open record")

        assert own.backlog() == Backlog(0, None, 2)
        assert own.unfinished == {}
        folder = journal.directory / "quarantine"
        with (folder / f"{exchange_id(1)}.frames").open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            kinds = [one.kind for one in segments.read_frames(file.fileno(), 0, size)]
        assert kinds == [OPEN, CHUNK, CLOSE]
        fault = (folder / f"{exchange_id(1)}.txt").read_text()
        assert fault == "it is no good\nthere is no open record\n"
    with abandoned(tmp_path) as own:
        assert own.set_aside == 2


# Removal


def three_segments(folder: Path) -> None:
    with life(folder, segment_bytes=1) as (journal, own):
        journal.append_and_wait(opening(1), closing(1))
        journal.append_and_wait(opening(2))
        journal.append_and_wait(opening(3), closing(3))
        own.read(ALL)
        own.mark_posted(own.ready_ids(ALL))
        own.save_watermark()


@pytest.mark.parametrize(
    ("before", "keep_bytes", "left"),
    [(0, ALL, [1, 2, 3]), (time.time() + 3_600, ALL, [2, 3]), (0, 0, [2, 3])],
    ids=["young and small", "old", "too large"],
)
def test_segments_are_removed_below_the_first_unfinished_request(
    tmp_path: Path, before: float, keep_bytes: int, left: list[int]
) -> None:
    three_segments(tmp_path)
    with abandoned(tmp_path) as own:
        own.read(ALL)
        own.remove_segments(before, keep_bytes)
        assert own.segment_numbers() == left
    with abandoned(tmp_path) as own:
        own.read(ALL)
        assert [*own.unfinished] == ids(2)
        assert own.newest_at() == pytest.approx(time.time(), abs=60)


def test_segment_that_was_removed_by_hand_is_passed_over(tmp_path: Path) -> None:
    three_segments(tmp_path)
    segments.path_of(tmp_path / "journal-0", 2).unlink()

    with abandoned(tmp_path) as own:
        own.read(ALL)
        assert own.backlog() == Backlog(0, None, 0)


def test_current_segment_is_never_removed(tmp_path: Path) -> None:
    with life(tmp_path) as (journal, own):
        journal.append_and_wait(opening(1), closing(1))
        own.read(ALL)
        own.mark_posted(ids(1))
        own.remove_segments(time.time() + 3_600, 0)

        assert own.segment_numbers() == [1]


def test_reader_from_the_start_reads_everything_and_changes_nothing(tmp_path: Path) -> None:
    three_segments(tmp_path)
    folder = tmp_path / "journal-0"
    with segments.path_of(folder, 3).open("ab") as file:
        file.write(b"in the middle of a write")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    with contextlib.closing(JournalReader(folder, from_start=True)) as own:
        own.read(ALL)
        assert own.ready_ids(ALL) == ids(1, 3)
        assert own.backlog().records == 5
        own.put_aside(exchange_id(1), "it is no good")
        own.save_watermark(durably=True)

    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}
