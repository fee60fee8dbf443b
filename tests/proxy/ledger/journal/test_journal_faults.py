"""The journal on a full or broken disk: requests are rejected, close records are written later."""

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from proxy.ledger.errors import JournalUnavailable
from proxy.ledger.journal import locks, segments
from proxy.ledger.journal.journal import RETRY_S, Journal
from proxy.ledger.journal.records import Chunk
from tests.proxy.ledger.conftest import ids_in
from tests.proxy.ledger.factories import closing, exchange_id, opening
from tests.waiting import until

from .appending import append_all, appended, eventually
from .faulty_disk import FaultyDisk


async def test_failed_sync_is_never_reported_as_durable_and_is_written_once_more(
    disk: FaultyDisk, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    await append_all(journal, opening(1))
    disk.failing_syncs = 1

    await append_all(journal, opening(2), closing(1))

    assert (journal.error, segments.numbers_in(journal.directory)) == ("", [1, 2])
    assert ids_in(journal.directory) == [exchange_id(n) for n in (1, 2, 1)]
    assert "writing into a new segment" in caplog.text


async def test_record_that_a_failed_sync_left_on_the_disk_counts_once(
    disk: FaultyDisk, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk that cannot sync cannot truncate either."""
    disk.ftruncate = lambda *_: None  # type: ignore[attr-defined]
    await append_all(journal, opening(1))
    disk.failing_syncs = 1

    await append_all(journal, opening(2), Chunk(id=exchange_id(2), reads=[(1.0, b"once")]))

    first, second = (segments.path_of(journal.directory, n).stat().st_size for n in (1, 2))
    assert first > second, "the second commit is in both segments"
    assert ids_in(journal.directory) == [exchange_id(n) for n in (1, 2, 2)]


async def test_disk_that_cannot_sync_rejects_requests_and_writes_close_records_later(
    disk: FaultyDisk, journal: Journal
) -> None:
    await append_all(journal, opening(1))
    disk.failing_syncs = 10**9

    with pytest.raises(JournalUnavailable, match="Input/output error"):
        await append_all(journal, opening(2))
    close = appended(journal, closing(1))
    with pytest.raises(JournalUnavailable):
        await append_all(journal, opening(3))
    assert not close.future.done()
    disk.failing_syncs = 0

    await close.wait()
    await eventually(lambda: not journal.error)
    await append_all(journal, opening(4))
    assert ids_in(journal.directory) == [exchange_id(n) for n in (1, 1, 4)]


async def test_full_disk_rejects_requests_and_writes_close_records_later(
    disk: FaultyDisk, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    await append_all(journal, opening(1))
    disk.full = True

    with pytest.raises(JournalUnavailable, match="No space left"):
        await append_all(journal, opening(2, body=os.urandom(100_000)))
    close = appended(journal, closing(1))
    journal.append(Chunk(id=exchange_id(1), reads=[(1.0, b"part")]))
    with pytest.raises(JournalUnavailable):
        await append_all(journal, opening(3))
    assert not close.future.done()
    assert not journal.reserve.exists()
    disk.full = False

    await close.wait()
    await eventually(lambda: not journal.error)
    await append_all(journal, opening(4))
    assert ids_in(journal.directory) == [exchange_id(n) for n in (1, 1, 4)]
    assert journal.lost_chunks == 1
    assert journal.reserve.stat().st_size == 65_536
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "new requests are rejected" in caplog.text
    assert "writable again after: [Errno 28]" in caplog.text


async def test_close_records_that_were_never_written_are_counted_at_the_end(
    disk: FaultyDisk, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    disk.full = True
    journal.append(closing(1))

    await asyncio.to_thread(journal.stop)

    assert "1 close records could not be written" in caplog.text


def test_journal_without_a_directory_rejects_requests_until_there_is_one(
    tmp_path: Path,
) -> None:
    with locks.take(tmp_path) as lock:
        lock.path.write_text("a file, not a directory")
        journal = Journal(lock, reserve_bytes=4_096)
        journal.start()
        with pytest.raises(JournalUnavailable, match="File exists"):
            journal.append_and_wait(opening(1))
        lock.path.unlink()
        until(lambda: not journal.error)

        journal.append_and_wait(opening(2))

        journal.stop()
        assert ids_in(lock.path) == [exchange_id(2)]


def test_journal_that_is_too_large_rejects_requests_and_takes_close_records(
    small: Journal, tmp_path: Path
) -> None:
    small.append_and_wait(opening(1, body=os.urandom(200_000)))
    with pytest.raises(JournalUnavailable, match="larger than 100000 bytes"):
        small.append_and_wait(opening(2))
    small.append_and_wait(closing(1))
    time.sleep(RETRY_S)

    assert ids_in(small.directory) == [exchange_id(1)] * 2
    assert not small.reserve.exists()
    small.stop()
    with locks.take(tmp_path / "other") as lock:
        (tmp_path / "journal-0").rename(lock.path)
        following = Journal(lock, max_bytes=100_000)
        following.start()
        assert "larger than 100000 bytes" in following.error
        for number in segments.numbers_in(lock.path):  # the drainer posted them
            segments.path_of(lock.path, number).unlink()
        until(lambda: not following.error)
        following.stop()


def test_segments_that_were_removed_do_not_count_towards_the_limit(small: Journal) -> None:
    for number in range(20):
        small.append_and_wait(opening(number, body=os.urandom(10_000)))
        segments.path_of(small.directory, number).unlink(missing_ok=True)  # the drainer posted it

    assert segments.numbers_in(small.directory) == [20]


async def test_record_that_fits_no_frame_is_a_fault_and_does_not_end_the_thread(
    journal: Journal,
) -> None:
    with pytest.raises(JournalUnavailable, match="format requires"):
        await append_all(journal, opening(1, id="x" * 2**16))

    await eventually(lambda: not journal.error)
    await append_all(journal, opening(2))
    assert ids_in(journal.directory) == [exchange_id(2)]


def test_thread_that_waits_too_long_gets_an_error(disk: FaultyDisk, tmp_path: Path) -> None:
    with locks.take(tmp_path) as lock:
        journal = Journal(lock, reserve_bytes=4_096, wait_s=0.01)
        journal.start()
        disk.free.clear()

        with pytest.raises(JournalUnavailable, match="does not answer"):
            journal.append_and_wait(opening(1))
        disk.free.set()
        journal.stop()


def test_journal_thread_does_not_keep_the_process_alive(journal: Journal) -> None:
    assert [each.daemon for each in threading.enumerate() if each.name == "journal"] == [True]
