"""The journal: a record is durable when it is acknowledged, and records are read in order."""

import asyncio
import os
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from proxy.ledger.errors import JournalUnavailable
from proxy.ledger.journal import journal as module
from proxy.ledger.journal import locks, segments
from proxy.ledger.journal.journal import DurabilityFuture, Journal
from proxy.ledger.journal.records import Chunk, OpenRecord, decode
from tests.for_each import for_each
from tests.proxy.ledger.conftest import ids_in
from tests.proxy.ledger.factories import closing, exchange_id, opening

from .appending import append_all, appended, eventually
from .faulty_disk import FaultyDisk

# Durability and order


def test_record_is_in_the_file_when_a_thread_continues(journal: Journal) -> None:
    for number in range(20):
        journal.append_and_wait(opening(number))
        assert ids_in(journal.directory)[-1] == exchange_id(number)
    assert journal.appended == 20


async def test_records_are_in_the_file_in_order_when_their_futures_resolve(
    journal: Journal,
) -> None:
    await append_all(journal, *(opening(n) for n in range(1_000)))

    assert ids_in(journal.directory) == [exchange_id(n) for n in range(1_000)]


async def test_record_is_synced_before_its_future_resolves(
    disk: FaultyDisk, journal: Journal
) -> None:
    disk.free.clear()
    future = appended(journal, opening(1))
    await eventually(lambda: not journal._queue)
    await asyncio.sleep(0.05)
    assert not future.future.done()

    disk.free.set()
    await future.wait()


async def test_records_that_wait_share_one_sync(disk: FaultyDisk, journal: Journal) -> None:
    disk.free.clear()
    first = appended(journal, opening(0))
    await eventually(lambda: not journal._queue)  # the thread is at the disk with the first one
    before = disk.syncs
    others = [appended(journal, opening(n)) for n in range(1, 200)]
    disk.free.set()

    await asyncio.gather(*(each.wait() for each in [first, *others]))

    assert disk.syncs == before + 2


async def test_event_loop_does_not_wait_for_a_disk_that_does_not_answer(
    disk: FaultyDisk, journal: Journal
) -> None:
    disk.free.clear()
    began = time.thread_time()
    futures = [appended(journal, opening(n)) for n in range(100)]
    journal.append(closing(1))
    await asyncio.sleep(0.02)

    assert time.thread_time() - began < 1
    assert not any(each.future.done() for each in futures)
    disk.free.set()
    await asyncio.gather(*(each.wait() for each in futures))


async def test_record_without_a_future_is_written_soon(journal: Journal) -> None:
    journal.append(closing(1))

    await eventually(lambda: ids_in(journal.directory) == [exchange_id(1)])


async def test_records_without_a_future_share_the_sync_of_another_one(journal: Journal) -> None:
    for number in range(5):
        journal.append(closing(number))
    await append_all(journal, opening(5))

    assert ids_in(journal.directory) == [exchange_id(n) for n in range(6)]


async def test_records_larger_than_a_commit_are_written_in_several(journal: Journal) -> None:
    half = os.urandom(module.MAX_COMMIT_BYTES // 2)
    large = [opening(n, body=half) for n in range(5)]

    await append_all(journal, *large, opening(5))

    assert ids_in(journal.directory) == [exchange_id(n) for n in range(6)]


@pytest.mark.parametrize("size", [1, 5_000, module.LARGE_BYTES - 400, 2 * module.LARGE_BYTES])
@pytest.mark.parametrize("content", [os.urandom, bytes], ids=["random", "zeros"])
async def test_body_of_any_size_is_read_back(journal: Journal, size: int, content: Any) -> None:
    body = content(size)
    await append_all(journal, opening(1, body=body))

    path = segments.path_of(journal.directory, journal.first_segment)
    with path.open("rb") as file:
        stored = segments.read_frames(file.fileno(), segments.HEADER.size, path.stat().st_size)
        [frame] = [one for one in stored if isinstance(one, segments.Frame)]
        record = decode(segments.body_of(segments.read_frame(file.fileno(), frame.offset)))
    assert isinstance(record, OpenRecord)
    assert record.body == body


async def test_stop_writes_what_is_queued(journal: Journal) -> None:
    for number in range(3 * module.MAX_COMMIT_RECORDS):
        journal.append(closing(number))
    await asyncio.to_thread(journal.stop)

    assert len(ids_in(journal.directory)) == 3 * module.MAX_COMMIT_RECORDS


async def test_record_after_the_end_is_refused(journal: Journal) -> None:
    await asyncio.to_thread(journal.stop)

    with pytest.raises(JournalUnavailable, match="stopped"):
        journal.append(closing(1))
    with pytest.raises(JournalUnavailable, match="stopped"):
        await append_all(journal, opening(1))
    with pytest.raises(JournalUnavailable, match="stopped"):
        await asyncio.to_thread(journal.append_and_wait, closing(1))


async def test_record_appended_in_the_moment_of_the_end_is_refused(journal: Journal) -> None:
    class EndsNow(deque[Any]):
        """The thread ends after the record was accepted and before it is queued."""

        def append(self, entry: Any) -> None:
            super().append(entry)
            journal._stopped = True

        def extend(self, entries: Iterable[Any]) -> None:
            super().extend(entries)
            journal._stopped = True

    await asyncio.to_thread(journal.stop)
    journal._stopped, journal._queue = False, EndsNow()
    future = appended(journal, opening(1))
    with pytest.raises(JournalUnavailable, match="stopped"):
        await future.wait()

    journal._stopped = False
    with pytest.raises(JournalUnavailable, match="stopped"):
        await asyncio.to_thread(journal.append_and_wait, opening(2))


def test_journal_that_never_started_can_be_stopped(tmp_path: Path) -> None:
    with locks.take(tmp_path) as lock:
        Journal(lock).stop()


def test_several_event_loops_append_at_once_and_one_after_the_other(journal: Journal) -> None:
    async def both() -> None:
        await append_all(journal, opening(1))
        await asyncio.to_thread(asyncio.run, append_all(journal, opening(2)))
        await append_all(journal, opening(3))

    asyncio.run(both())
    asyncio.run(append_all(journal, opening(4)))

    assert ids_in(journal.directory) == [exchange_id(n) for n in range(1, 5)]


async def test_record_of_a_closed_event_loop_is_written(journal: Journal) -> None:
    async def leave() -> None:
        appended(journal, opening(2))
        journal.append(closing(2))

    await asyncio.to_thread(asyncio.run, leave())
    await append_all(journal, opening(3))

    assert ids_in(journal.directory) == [exchange_id(n) for n in (2, 2, 3)]


def test_future_of_an_event_loop_that_is_closed_is_forgotten(
    disk: FaultyDisk, journal: Journal
) -> None:
    async def leave() -> None:
        appended(journal, opening(1))

    disk.free.clear()
    asyncio.run(leave())
    disk.free.set()
    journal.append_and_wait(opening(2))

    assert ids_in(journal.directory) == [exchange_id(1), exchange_id(2)]
    assert journal._resolving == {}


async def test_last_record_of_a_closed_event_loop_needs_no_other_one(journal: Journal) -> None:
    async def leave() -> None:
        journal.append(closing(1))

    await asyncio.to_thread(asyncio.run, leave())

    await eventually(lambda: ids_in(journal.directory) == [exchange_id(1)])


async def test_flush_returns_when_records_are_durable_and_the_loop_has_seen_it(
    journal: Journal,
) -> None:
    withdrawn = DurabilityFuture(lambda: journal.append(closing(1)))
    journal.append(opening(1), withdrawn)
    withdrawn.future.cancel()

    await asyncio.to_thread(journal.flush, 60)

    assert ids_in(journal.directory) == [exchange_id(1)] * 2


def test_journal_is_readable_by_its_owner_only(journal: Journal) -> None:
    journal.append_and_wait(opening())

    modes = {path.name: path.stat().st_mode & 0o077 for path in journal.directory.rglob("*")}
    assert modes
    assert not any(modes.values()), modes
    assert journal.directory.stat().st_mode & 0o077 == 0


async def test_drainer_is_woken_by_records_of_requests_and_not_by_its_own(
    journal: Journal,
) -> None:
    woken: list[bool] = []
    journal.on_append = lambda: woken.append(True)

    await asyncio.to_thread(journal.append_and_wait, closing(1))
    await append_all(journal, Chunk(id="req_1", reads=[(1.0, b"x")]))
    assert woken == []
    await append_all(journal, opening(2))

    assert woken == [True]
    assert journal.appended == 2


# Segments


async def test_full_segment_is_followed_by_another_one(small: Journal) -> None:
    for number in range(8):
        await append_all(small, opening(number, body=os.urandom(4_000)))

    assert len(segments.numbers_in(small.directory)) == 3
    assert ids_in(small.directory) == [exchange_id(n) for n in range(8)]


@pytest.mark.parametrize(("segment_s", "numbers"), [(-1, [1, 2]), (3_600, [1])])
async def test_old_segment_is_followed_by_another_one_unless_it_is_empty(
    tmp_path: Path, segment_s: float, numbers: list[int]
) -> None:
    with locks.take(tmp_path) as lock:
        journal = Journal(lock, reserve_bytes=4_096, segment_s=segment_s)
        journal.start()

        await append_all(journal, opening(1))
        await append_all(journal, opening(2))

        assert segments.numbers_in(journal.directory) == numbers
        await asyncio.to_thread(journal.stop)


def test_next_process_begins_a_segment_behind_the_last_one(tmp_path: Path) -> None:
    for number in (1, 2):
        with locks.take(tmp_path) as lock:
            journal = Journal(lock, reserve_bytes=4_096)
            journal.start()
            assert journal.first_segment == number
            journal.append_and_wait(opening(number))
            journal.stop()

    assert ids_in(lock.path) == [exchange_id(1), exchange_id(2)]


def test_records_of_an_unowned_journal_are_durable_or_an_error(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    module.append_durably(tmp_path, opening(1), closing(1))
    assert ids_in(tmp_path) == [exchange_id(1)] * 2

    disk.full = True
    with pytest.raises(OSError, match="No space"):
        module.append_durably(tmp_path, opening(2))
    disk.full = False
    disk.good_syncs, disk.failing_syncs = 1, 1  # that of the header, that of the record
    with pytest.raises(OSError, match="Input/output error"):
        module.append_durably(tmp_path, opening(3))

    assert segments.numbers_in(tmp_path) == [1]


def nothing() -> None:
    pytest.fail("withdrawn, and a caller got a result")


async def test_request_that_waits_returns_when_its_record_is_durable() -> None:
    future = DurabilityFuture(nothing)

    future.resolve(None)

    await future.wait()


async def test_record_that_cannot_be_written_raises_where_it_is_awaited() -> None:
    future = DurabilityFuture(nothing)

    future.resolve(JournalUnavailable("full"))

    with pytest.raises(JournalUnavailable, match="full"):
        await future.wait()


@for_each(("error", "times"), [(None, 1), (JournalUnavailable("full"), 0)])
async def test_record_durable_after_its_caller_was_cancelled_is_withdrawn(
    error: Exception | None, times: int
) -> None:
    withdrawn: list[bool] = []
    future = DurabilityFuture(lambda: withdrawn.append(True))
    future.future.cancel()

    future.resolve(error)

    assert len(withdrawn) == times


@for_each(("error", "times"), [(None, 1), (JournalUnavailable("full"), 0)])
async def test_caller_cancelled_in_the_same_moment_withdraws_the_record(
    error: Exception | None, times: int
) -> None:
    withdrawn: list[bool] = []
    future = DurabilityFuture(lambda: withdrawn.append(True))
    waiting = asyncio.create_task(future.wait())
    await asyncio.sleep(0)  # it waits
    future.resolve(error)
    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(withdrawn) == times
