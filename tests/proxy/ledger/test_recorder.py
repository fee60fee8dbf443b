"""The recorder: starts itself, reports its true state, survives cancelled callers."""

import asyncio
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from proxy.conf import conf
from proxy.ledger import recorder as module
from proxy.ledger.database import schema_check
from proxy.ledger.errors import JournalUnavailable, SchemaMismatch
from proxy.ledger.journal import locks
from proxy.ledger.journal.journal import append_durably
from proxy.ledger.journal.reader import Backlog
from proxy.ledger.journal.records import Chunk, CloseRecord
from proxy.ledger.posting.ledger_writer import underived
from proxy.ledger.recorder import Recorder
from proxy.ledger.transcripts import storage
from proxy.models import Exchange
from tests.waiting import until

from .factories import closing, exchange_id, opening

pytestmark = pytest.mark.django_db(transaction=True)


async def eventually(recorder: Recorder) -> None:
    await asyncio.to_thread(until, lambda: recorder.state()["backlog"] == 0)


async def closed() -> None:
    """A row is closed; before its close record is durable nothing need wait for the database."""
    async with asyncio.timeout(60):
        while not await Exchange.objects.filter(state="closed").aexists():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_recorder_starts_itself_and_posts_its_records(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)

    await recorder.open(opening(1))
    await recorder.close(closing(1))
    await eventually(recorder)

    assert (await Exchange.objects.aget()).outcome == "completed"
    state = recorder.state()
    assert (state["journal"], state["database"], state["set_aside"]) == (True, True, 0)
    await asyncio.to_thread(recorder.stop)
    await asyncio.to_thread(recorder.stop)


async def test_all_records_of_a_request_become_one_row(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)

    future = await recorder.begin_open(opening(1))
    await future.wait()
    recorder.start()
    assert recorder.state()["name"] == "journal-0"
    recorder.chunk(Chunk(id=exchange_id(1), reads=[(1.0, b"one ")]))
    recorder.begin_close(closing(1, reads=[(2.0, b"two")]))
    await closed()

    row = await Exchange.objects.aget()
    assert (row.outcome, row.worker) == ("completed", "here-1-aa")
    stored = await asyncio.to_thread(storage.read, row.pk)
    assert stored is not None
    assert stored.upstream_reads == [(1.0, b"one "), (2.0, b"two")]
    host, pid, chance = recorder.worker.rsplit("-", 2)
    assert (host, pid, len(chance)) == (socket.gethostname()[:32], str(os.getpid()), 8)
    await asyncio.to_thread(recorder.stop)
    assert not recorder.state()["started"]
    with locks.take(tmp_path) as lock:
        assert lock.path.name == "journal-0"  # it was released


async def test_client_that_leaves_while_its_record_is_written_has_a_closed_row(
    tmp_path: Path,
) -> None:
    recorder = Recorder(tmp_path)
    future = await recorder.begin_open(opening(1))
    future.future.cancel()
    await closed()
    await asyncio.to_thread(recorder.stop)

    row = await Exchange.objects.aget()
    assert (row.outcome, row.detail, row.status) == ("client_gone", "gone_before_upstream", 499)


async def test_two_recorders_share_a_directory_and_a_database(tmp_path: Path) -> None:
    first, second = Recorder(tmp_path), Recorder(tmp_path)

    await asyncio.gather(*(r.open(opening(n)) for n in range(20) for r in [(first, second)[n % 2]]))
    await asyncio.gather(
        *(r.close(closing(n)) for n in range(20) for r in [(first, second)[n % 2]])
    )
    await eventually(first)
    await eventually(second)

    assert await Exchange.objects.filter(outcome="completed").acount() == 20
    await asyncio.to_thread(first.stop)
    await asyncio.to_thread(second.stop)


@pytest.mark.parametrize("steps", range(6))
async def test_a_cancelled_open_ends_in_a_closed_row_or_none(tmp_path: Path, steps: int) -> None:
    recorder = Recorder(tmp_path)
    recorder.start()
    task = asyncio.create_task(recorder.open(opening(1)))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    result = (await asyncio.gather(task, return_exceptions=True))[0]
    await asyncio.to_thread(recorder.stop)

    row = await Exchange.objects.filter(pk=exchange_id(1)).afirst()

    if result is None:
        assert row is not None
    else:
        assert row is None or row.outcome == "client_gone"


async def test_records_of_a_dead_process_are_posted_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "journal-0").mkdir()
    append_durably(tmp_path / "journal-0", opening(1), opening(2), closing(2))

    recorder = Recorder(tmp_path)
    recorder.start()
    await eventually(recorder)

    outcomes = {row.pk: row.outcome async for row in Exchange.objects.all()}
    assert outcomes == {exchange_id(1): "interrupted", exchange_id(2): "completed"}
    await asyncio.to_thread(recorder.stop)


def test_the_schema_of_the_migrations_is_accepted() -> None:
    schema_check.check_schema()


def test_a_schema_that_lacks_a_migration_is_refused_by_name() -> None:
    from django.db.migrations.recorder import MigrationRecorder

    applied = MigrationRecorder.Migration.objects.filter(app="proxy").order_by("name").last()
    applied.delete()
    try:
        with pytest.raises(SchemaMismatch, match=rf"proxy\.{applied.name}.*manage\.py migrate"):
            schema_check.check_schema()
    finally:
        applied.save()


def test_a_schema_newer_than_the_code_is_refused_by_name() -> None:
    from django.db.migrations.recorder import MigrationRecorder

    newer = MigrationRecorder.Migration.objects.create(app="proxy", name="9999_future")
    try:
        with pytest.raises(SchemaMismatch, match="9999_future"):
            schema_check.check_schema()
    finally:
        newer.delete()


async def test_recorder_that_never_started_takes_no_close_record(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)

    recorder.chunk(Chunk(id="req_1", reads=[(1.0, b"x")]))
    with pytest.raises(JournalUnavailable, match="the record has been stopped"):
        recorder.begin_close(closing(1))

    assert not recorder.state()["started"]


async def test_request_is_refused_if_the_recorder_was_stopped_while_it_started(
    tmp_path: Path,
) -> None:
    recorder = Recorder(tmp_path)

    class StopsAfterwards(ThreadPoolExecutor):
        """Whatever runs in a thread, the recorder is stopped before its result is seen."""

        def submit(self, job: Callable[..., Any], *arguments: Any, **named: Any) -> Future[Any]:
            def both() -> Any:
                result = job(*arguments, **named)
                recorder.stop()
                return result

            return super().submit(both)

    asyncio.get_running_loop().set_default_executor(StopsAfterwards())

    with pytest.raises(JournalUnavailable, match="stopped"):
        await recorder.open(opening(1))


def test_directory_is_the_data_directory_by_default(tmp_path: Path) -> None:
    assert Recorder().directory == conf.data_dir
    assert Recorder(tmp_path).directory == tmp_path


def test_withdrawn_request_is_closed_as_left_by_its_client() -> None:
    record = module.withdrawn_record("req_1")

    assert record == CloseRecord(
        id="req_1",
        finished=record.finished,
        outcome="client_gone",
        status=499,
        detail="gone_before_upstream",
        delivered=False,
    )


@pytest.mark.parametrize("part", ["", "_journal", "_drainer"])  # while it starts, one comes first
def test_recorder_that_has_not_started_reports_no_backlog_and_no_fault(
    tmp_path: Path, part: str
) -> None:
    starting = Recorder(tmp_path)
    if part:
        setattr(starting, part, SimpleNamespace())

    assert starting.state() == {
        "started": False, "journal": True, "database": True, "backlog": 0, "oldest_s": 0.0,
    }  # fmt: skip


def test_running_recorder_reports_its_backlog_and_its_faults(tmp_path: Path) -> None:
    running = Recorder(tmp_path)
    journal = SimpleNamespace(error="", lost_chunks=0, directory=tmp_path / "journal-0")
    running.journal = journal
    running.drainer = SimpleNamespace(error="", backlog=Backlog(0, None, 0))
    assert running.state() == {
        "started": True, "name": "journal-0", "journal": True, "journal_error": "",
        "database": True, "database_error": "", "backlog": 0, "oldest_s": 0.0, "set_aside": 0,
        "lost_chunks": 0,
        "underived": underived.total(),
    }  # fmt: skip

    journal.error, journal.lost_chunks = "full", 4
    running.drainer = SimpleNamespace(error="away", backlog=Backlog(3, time.time() - 100, 2))
    state = running.state()
    assert state.pop("oldest_s") == pytest.approx(100, abs=5)
    assert state == {
        "started": True, "name": "journal-0", "journal": False, "journal_error": "full",
        "database": False, "database_error": "away", "backlog": 3, "set_aside": 2,
        "lost_chunks": 4,
        "underived": underived.total(),
    }  # fmt: skip
