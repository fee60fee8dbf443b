"""The front door: starts itself, tells the truth about its state, survives cancelled callers."""

import asyncio
import os
import socket
import sqlite3
import sys
from pathlib import Path

import pytest

from proxy.models import Exchange
from proxy.record import recovery, schema, slots, spool_file, transcripts
from proxy.record.errors import SchemaMismatch
from proxy.record.recorder import SWITCH_S, Recorder
from proxy.record.records import Chunk, Record

from .driver import until
from .making import closing, exchange_id, opening, rows

pytestmark = pytest.mark.django_db(transaction=True)


async def eventually(recorder: Recorder) -> None:
    await asyncio.to_thread(until, lambda: recorder.state()["backlog"] == 0)


def spools_in(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("*.sqlite3")]


async def closed() -> None:
    """A row is; before its close record has landed nothing need wait for the database."""
    async with asyncio.timeout(60):
        while not await Exchange.objects.filter(state="closed").aexists():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_it_starts_itself_and_moves_what_it_is_told(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)

    await recorder.open(opening(1))
    await recorder.close(closing(1))
    await eventually(recorder)

    assert (await Exchange.objects.aget()).outcome == "completed"
    state = recorder.state()
    assert (state["spool"], state["database"], state["set_aside"]) == (True, True, 0)
    await asyncio.to_thread(recorder.stop)
    await asyncio.to_thread(recorder.stop)


async def test_a_start_takes_the_writer_that_was_prepared(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.prepare()
    recorder.prepare()
    assert (recorder.slot, recorder.state()["started"]) == (0, False)

    recorder.start()
    recorder.prepare()

    await recorder.open(opening(1))
    assert (recorder.slot, recorder.state()["started"]) == (0, True)
    assert spools_in(tmp_path) == ["spool-0.sqlite3"]
    await asyncio.to_thread(recorder.stop)


async def test_all_that_it_is_told_of_an_exchange_is_one_row(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    assert recorder.slot == -1

    landing = await recorder.enter(opening(1))
    await landing.landed()
    recorder.start()
    assert recorder.slot == 0
    recorder.chunk(Chunk(id=exchange_id(1), reads=[(1.0, b"one ")]))
    recorder.settle(closing(1, reads=[(2.0, b"two")]))
    await closed()

    row = await Exchange.objects.aget()
    assert (row.outcome, row.worker) == ("completed", "here-1-aa")
    kept = await asyncio.to_thread(transcripts.read, row.pk)
    assert kept is not None
    assert kept.upstream_reads == [(1.0, b"one "), (2.0, b"two")]
    assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    host, pid, chance = recorder.worker.rsplit("-", 2)
    assert (host, pid, len(chance)) == (socket.gethostname()[:32], str(os.getpid()), 8)
    await asyncio.to_thread(recorder.stop)
    assert recorder.slot == -1
    with slots.held(slots.take(tmp_path)) as slot:
        assert slot.number == 0  # it has let go of it


async def test_who_leaves_while_its_record_lands_leaves_a_closed_row(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    landing = await recorder.enter(opening(1))
    landing.future.cancel()
    await closed()
    await asyncio.to_thread(recorder.stop)

    row = await Exchange.objects.aget()
    assert (row.outcome, row.detail, row.status) == ("client_gone", "gone_before_dial", 499)


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
    told = (await asyncio.gather(task, return_exceptions=True))[0]
    await asyncio.to_thread(recorder.stop)

    row = await Exchange.objects.filter(pk=exchange_id(1)).afirst()

    if told is None:
        assert row is not None
    else:
        assert row is None or row.outcome == "client_gone"


async def test_what_a_stopped_recorder_left_is_moved_by_the_next(tmp_path: Path) -> None:
    link = spool_file.create(tmp_path / "spool-0.sqlite3")
    spool_file.append(link, rows(opening(1), opening(2), closing(2)))
    link.close()

    recorder = Recorder(tmp_path)
    recorder.start()
    await eventually(recorder)

    outcomes = {row.pk: row.outcome async for row in Exchange.objects.all()}
    assert outcomes == {exchange_id(1): "interrupted", exchange_id(2): "completed"}
    await asyncio.to_thread(recorder.stop)


def test_the_schema_we_ship_is_accepted() -> None:
    schema.check_schema()


def test_a_schema_that_lacks_a_migration_is_refused_by_name() -> None:
    from django.db.migrations.recorder import MigrationRecorder

    applied = MigrationRecorder.Migration.objects.filter(app="proxy").order_by("name").last()
    applied.delete()
    try:
        with pytest.raises(SchemaMismatch, match=rf"proxy\.{applied.name}.*manage\.py migrate"):
            schema.check_schema()
    finally:
        applied.save()


def test_a_schema_newer_than_the_code_is_refused_by_name() -> None:
    from django.db.migrations.recorder import MigrationRecorder

    newer = MigrationRecorder.Migration.objects.create(app="proxy", name="9999_future")
    try:
        with pytest.raises(SchemaMismatch, match="9999_future"):
            schema.check_schema()
    finally:
        newer.delete()


def test_an_orphan_without_its_open_record_is_nobodys(tmp_path: Path) -> None:
    link = spool_file.create(tmp_path / "spool-0.sqlite3")
    written: list = []

    assert sum(recovery.close_orphans(link, ["req_gone"], written.append)) == 0

    assert written == []
    link.close()


def test_orphans_share_commits_and_a_commit_that_fails_leaves_them_orphans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "MOST_TOGETHER", 4)
    monkeypatch.setattr(recovery, "MOST_BYTES", 10_000)
    link = spool_file.create(tmp_path / "spool-0.sqlite3")
    spool_file.append(
        link, rows(*(opening(n, body=b"x" * (20_000 if n == 5 else 9)) for n in range(10)))
    )
    ids = spool_file.unclosed_ids(link)
    written: list = []

    def write(*records: Record) -> None:
        if len(written) == 2:
            raise sqlite3.OperationalError("disk I/O error")
        written.append([record.id for record in records])
        spool_file.append(link, rows(*records))

    with pytest.raises(sqlite3.OperationalError, match="I/O"):
        list(recovery.close_orphans(link, ids, write))

    assert [len(some) for some in written] == [4, 2]  # then a large one: they are in memory at once
    assert ids == spool_file.unclosed_ids(link) == [exchange_id(n) for n in range(6, 10)]
    link.close()
