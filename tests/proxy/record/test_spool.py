"""The spool: durable when it says so, honest when it cannot be, whole after a torn write."""

import asyncio
import contextlib
import os
import secrets
import shutil
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from proxy.record import slots, spool_file
from proxy.record.errors import SpoolUnavailable
from proxy.record.landing import Landing
from proxy.record.records import Chunk, CloseRecord, OpenRecord, Record, decode, encode
from proxy.record.spool import LIFE_S, Spool
from proxy.record.spool_writer import MOST_TOGETHER

from .driver import until
from .making import closing, exchange_id, opening, rows
from .writing import full, roomy, spool_in_a_thread


def read_ids(path: Path) -> list[str]:
    with contextlib.closing(spool_file.connect(path)) as link:
        return [row[0] for row in link.execute("SELECT id FROM records ORDER BY seq")]


@pytest.mark.parametrize("record", [opening(), Chunk(id="req_1", reads=[(0.5, b"x")]), closing()])
def test_a_record_is_the_same_after_the_spool(record: OpenRecord | Chunk | CloseRecord) -> None:
    assert decode(encode(record)) == record


async def entered(spool: Spool, *records: Record) -> None:
    """Returns when all are durable."""
    landings = [Landing(lambda: None) for _ in records]
    for record, landing in zip(records, landings, strict=True):
        spool.enter(record, landing)
    await asyncio.wait_for(asyncio.gather(*(landing.future for landing in landings)), 60)


async def came(true: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, true)


def test_what_was_acknowledged_is_in_the_file(spool: Spool) -> None:
    for number in range(20):
        spool.append(opening(number))
        assert read_ids(spool.path)[-1] == exchange_id(number)


async def test_what_landed_is_in_the_file_in_its_order(spool: Spool) -> None:
    await entered(spool, *(opening(n) for n in range(1_000)))

    assert read_ids(spool.path) == [exchange_id(n) for n in range(1_000)]


async def test_what_nobody_waits_for_needs_no_company(spool: Spool) -> None:
    spool.enter(closing(1))

    await came(lambda: read_ids(spool.path) == [exchange_id(1)])


async def test_what_nobody_waits_for_goes_with_what_somebody_does(spool: Spool) -> None:
    for number in range(5):
        spool.enter(closing(number))
    await entered(spool, opening(5))

    assert read_ids(spool.path) == [exchange_id(n) for n in range(6)]


async def test_more_than_the_socket_takes_goes_in_pieces(spool: Spool) -> None:
    large = [opening(n, body=os.urandom(2**20)) for n in range(12)]

    await entered(spool, *large, opening(12))

    assert read_ids(spool.path) == [exchange_id(n) for n in range(13)]


async def test_what_nobody_waits_for_is_written_before_the_end(tmp_path: Path) -> None:
    slot = slots.take(tmp_path)
    spool = Spool(slot, reserve_bytes=65_536)
    await asyncio.to_thread(spool.start)
    for number in range(3 * MOST_TOGETHER):
        spool.enter(closing(number))
    await asyncio.to_thread(spool.stop)

    assert len(read_ids(slot.path)) == 3 * MOST_TOGETHER
    slot.release()


async def test_what_a_dead_writer_was_told_is_written_before_the_end(tmp_path: Path) -> None:
    slot = slots.take(tmp_path)
    spool = Spool(slot, reserve_bytes=65_536)
    await asyncio.to_thread(spool.start)
    await entered(spool, opening(1))
    await came(lambda: time.monotonic() - spool.began > LIFE_S)  # else it is not replaced at once
    assert spool.writer
    spool.writer.kill()
    spool.writer.wait()
    spool.enter(closing(1))
    spool.stop()  # before the loop can hear of it

    assert read_ids(slot.path) == [exchange_id(1), exchange_id(1)]
    slot.release()


def test_two_loops_at_once_and_one_after_the_other(spool: Spool) -> None:
    """The first one reads the answers, also those for the second."""

    async def both() -> None:
        await entered(spool, opening(1))
        await asyncio.to_thread(asyncio.run, entered(spool, opening(2)))
        await entered(spool, opening(3))

    asyncio.run(both())
    asyncio.run(entered(spool, opening(4)))

    assert read_ids(spool.path) == [exchange_id(n) for n in range(1, 5)]


async def test_a_loop_that_has_ended_is_passed_over(spool: Spool) -> None:
    """Whoever waited there waits no more; what it entered is written all the same."""
    await entered(spool, opening(1))

    async def leaving() -> None:
        spool.enter(opening(2), Landing(lambda: None))

    await asyncio.to_thread(asyncio.run, leaving())
    await entered(spool, opening(3))

    assert read_ids(spool.path) == [exchange_id(n) for n in (1, 2, 3)]


async def test_a_loop_that_ends_at_once_leaves_nothing_behind(spool: Spool) -> None:
    """Whatever it entered is written, and what another loop enters afterwards as well."""
    await entered(spool, opening(1))

    async def leaving() -> None:
        spool.enter(closing(1))

    await asyncio.to_thread(asyncio.run, leaving())
    await came(lambda: len(read_ids(spool.path)) == 2)
    spool.enter(closing(2))
    await came(lambda: len(read_ids(spool.path)) == 3)


def test_the_spool_is_for_its_owner_only(spool: Spool) -> None:
    spool.append(opening())

    modes = {path.name: path.stat().st_mode & 0o077 for path in spool.path.parent.iterdir()}
    assert not any(modes.values()), modes


def environment_of(pid: int) -> str:
    return Path(f"/proc/{pid}/environ").read_text()


def test_the_writer_is_told_no_secret(spool: Spool, tmp_path: Path) -> None:
    assert spool.writer
    told = environment_of(spool.writer.pid)

    assert [part.partition("=")[0] for part in told.split("\0") if part] == ["PYTHONPATH"]


async def test_a_killed_writer_is_replaced_and_nothing_is_lost_or_doubled(spool: Spool) -> None:
    await entered(spool, opening(0))
    for life in range(3):
        waiting = asyncio.gather(
            *(entered(spool, opening(n)) for n in range(life * 50 + 1, life * 50 + 51))
        )
        for number in range(life * 50 + 1, life * 50 + 51):
            spool.enter(closing(number))
        await asyncio.sleep(0)
        assert spool.writer
        spool.writer.kill()
        await waiting
        spool.append(opening(1_000 + life))
    await came(lambda: not spool.error and len(read_ids(spool.path)) == 304)

    opened = [*range(151), *range(1_000, 1_003)]
    assert sorted(read_ids(spool.path)) == sorted(exchange_id(n) for n in [*opened, *range(1, 151)])
    assert spool.appended == 304


def test_a_thread_that_waits_is_answered_by_the_next_writer(spool: Spool) -> None:
    assert spool.writer
    spool.writer.kill()

    spool.append(opening(1))

    assert read_ids(spool.path) == [exchange_id(1)]
    assert spool.call(spool_file.unclosed_ids) == [exchange_id(1)]


def test_a_writer_that_cannot_be_started_is_told_by_name(tmp_path: Path) -> None:
    def broken(_spool: Spool, _ends: list[socket.socket]) -> NoReturn:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with slots.held(slots.take(tmp_path)) as slot:
        spool = Spool(slot, launch=broken)
        spool.ending = True  # else it tries for half a minute
        with pytest.raises(SpoolUnavailable):
            spool.start()
        assert not spool.renew(0)

    assert spool.error.startswith("its writer cannot be started: [Errno 11]")


def test_a_job_that_fails_is_told_to_who_asked(spool: Spool) -> None:
    with pytest.raises(sqlite3.OperationalError, match="argument"):
        spool.call(spool_file.forget, "too", "many", "arguments")

    assert spool.call(spool_file.backlog) == [0, None, 0]


async def test_a_record_that_cannot_be_written_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt(body: bytes) -> bytes:
        if b"poison" in body:
            raise ValueError("no bytes at all")
        return body

    with spool_in_a_thread(tmp_path, monkeypatch) as spool:
        monkeypatch.setattr(spool_file, "_packed", spoilt)
        refused = asyncio.create_task(entered(spool, opening(2, body=b"poison")))
        await entered(spool, opening(1), opening(3))
        with pytest.raises(SpoolUnavailable):
            await refused

    assert read_ids(tmp_path / "spool-0.sqlite3") == [exchange_id(1), exchange_id(3)]


@pytest.fixture
def lying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spool]:
    """A spool whose disk can be full."""
    with spool_in_a_thread(tmp_path, monkeypatch) as running:
        yield running


async def test_a_full_disk_refuses_new_requests_and_keeps_the_close_of_running_ones(
    lying: Spool,
) -> None:
    await entered(lying, opening(1))
    lying.call(full)

    with pytest.raises(SpoolUnavailable, match="full"):
        await entered(lying, opening(2, body=os.urandom(100_000)))
    big = closing(1, error_message=secrets.token_hex(100_000))
    late = asyncio.create_task(entered(lying, big))
    lying.enter(Chunk(id=exchange_id(1), reads=[(1.0, b"what was said")]))
    with pytest.raises(SpoolUnavailable):
        await entered(lying, opening(3))
    assert not late.done()
    lying.call(roomy)

    await late
    await came(lambda: not lying.error)
    await entered(lying, opening(4))
    assert read_ids(lying.path) == [exchange_id(1), exchange_id(1), exchange_id(4)]
    assert lying.lost_chunks == 1


async def test_the_reserve_is_given_up_when_the_disk_is_full_and_taken_back_later(
    lying: Spool,
) -> None:
    reserve = lying.slot.reserve
    assert reserve.stat().st_size == 65_536
    lying.call(full)

    with pytest.raises(SpoolUnavailable):
        await entered(lying, opening(2, body=os.urandom(100_000)))

    await came(lambda: not reserve.exists() or not lying.error)
    lying.call(roomy)
    await came(lambda: not lying.error)
    assert reserve.stat().st_size == 65_536


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A spool whose process died: twenty commits, all of them still in the write-ahead log."""
    home = tmp_path / "home"
    home.mkdir()
    slot = slots.take(home)
    link = spool_file.create(slot.path)
    link.execute("PRAGMA wal_autocheckpoint=0")
    for number in range(20):
        spool_file.append(link, rows(opening(number)))
    dead = tmp_path / "dead"
    shutil.copytree(home, dead)
    link.close()
    slot.release()
    return dead / slot.path.name


def room_of(path: Path) -> int:
    return Path(f"{path}-wal").stat().st_size


def test_the_log_has_its_length_before_it_is_needed(spool: Spool) -> None:
    if shutil.disk_usage(spool.path.parent).free < spool_file.FREE_BYTES:
        pytest.skip("the disk of the tests is nearly full")
    spool.append(opening(1))
    before = room_of(spool.path)

    for number in range(2, 60):
        spool.append(opening(number, body=os.urandom(50_000)))

    assert spool_file.ROOM_BYTES <= before == room_of(spool.path)


def test_room_in_the_log_costs_no_record_and_shows_none(written: Path) -> None:
    spool_file.make_room(written)

    with contextlib.closing(spool_file.create(written)) as link:
        spool_file.append(link, rows(opening(20)))
        ids = [row[0] for row in link.execute("SELECT id FROM records ORDER BY seq")]

    assert ids == [exchange_id(n) for n in range(21)]


@pytest.mark.parametrize("fraction", [0.0, 0.13, 0.37, 0.5, 0.71, 0.9, 0.999])
@pytest.mark.parametrize("garbage", [b"", b"\xff" * 3000])
def test_a_torn_tail_costs_nothing_before_the_tear(
    written: Path, fraction: float, garbage: bytes
) -> None:
    log = Path(f"{written}-wal")
    whole = log.read_bytes()
    log.write_bytes(whole[: int(len(whole) * fraction)] + garbage)

    with contextlib.closing(spool_file.create(written)) as link:
        ids = [row[0] for row in link.execute("SELECT id FROM records ORDER BY seq")]
        spool_file.append(link, rows(opening(99)))

    assert ids == [exchange_id(n) for n in range(len(ids))]
    assert len(ids) >= int(20 * fraction) - 6  # the schema takes the first pages of the log


def test_a_broken_file_is_moved_aside_and_what_can_be_read_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "spool-0.sqlite3"
    with contextlib.closing(spool_file.create(path)) as link:
        for number in range(200):
            spool_file.append(link, rows(opening(number, body=b"x" * 2000)))
    whole = bytearray(path.read_bytes())
    middle = len(whole) // 2 // 4096 * 4096
    whole[middle : middle + 8192] = b"\x00" * 8192
    path.write_bytes(whole)

    with contextlib.closing(spool_file.create(path)) as link:
        ids = {row[0] for row in link.execute("SELECT id FROM records")}

    assert 150 < len(ids) < 200
    assert list(tmp_path.glob("spool-0.sqlite3.broken-*"))


def test_a_slot_has_one_owner_and_is_free_when_that_one_is_gone(tmp_path: Path) -> None:
    first, second = slots.take(tmp_path), slots.take(tmp_path)
    spool_file.create(first.path).close()

    assert (first.number, second.number) == (0, 1)
    assert not list(slots.take_abandoned(tmp_path))
    first.release()
    with slots.held(next(slots.take_abandoned(tmp_path))) as adopted:
        assert adopted.path == first.path
    second.release()


def test_moved_records_are_forgotten_only_when_their_exchange_is_closed(tmp_path: Path) -> None:
    with contextlib.closing(spool_file.create(tmp_path / "spool-0.sqlite3")) as link:
        spool_file.append(link, rows(opening(1), opening(2), closing(2)))
        spool_file.mark_moved(link, [1, 2, 3])

        forgotten = spool_file.forget(link, float("inf"))

        assert forgotten == 2
        assert spool_file.unclosed_ids(link) == [exchange_id(1)]


def test_a_large_record_takes_little_room_and_comes_back_whole(spool: Spool) -> None:
    said = b"data: a delta like all others\n\n" * 5_000
    spool.append(opening(1, body=said))

    with contextlib.closing(spool_file.connect(spool.path)) as link:
        ((kept,),) = link.execute("SELECT length(body) FROM records")
        ((_, plain),) = spool_file.bodies_of(link, exchange_id(1))

    assert kept < len(said) / 50
    assert decode(plain).body == said


def test_a_torn_record_is_handed_out_as_it_is(spool: Spool) -> None:
    spool.append(opening(1, body=b"x" * 100_000))
    torn = spool_file.ZSTD_MAGIC + b"torn"

    with contextlib.closing(spool_file.connect(spool.path)) as link:
        link.execute("UPDATE records SET body = ?", (torn,))
        assert [body for _, body in spool_file.bodies_of(link, exchange_id(1))] == [torn]


def large_ones() -> list[OpenRecord]:
    """More than one statement may take."""
    size = spool_file.TOGETHER_BYTES // 4
    return [opening(n, body=os.urandom(size)) for n in range(5)]


def test_large_records_of_one_commit_are_all_there_in_their_order(tmp_path: Path) -> None:
    records = large_ones()
    path = tmp_path / "spool-0.sqlite3"

    with contextlib.closing(spool_file.create(path)) as link:
        spool_file.append(link, rows(*records))
        for record in records:
            ((_, body),) = spool_file.bodies_of(link, record.id)
            assert decode(body) == record

    assert read_ids(path) == [record.id for record in records]


def test_large_records_of_one_commit_are_on_the_disk_together_or_not_at_all(
    tmp_path: Path,
) -> None:
    path = tmp_path / "spool-0.sqlite3"
    with contextlib.closing(spool_file.create(path)) as link:
        full(link)
        with pytest.raises(sqlite3.OperationalError, match="full"):
            spool_file.append(link, rows(*large_ones()))

    assert read_ids(path) == []


def test_what_is_said_again_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "spool-0.sqlite3"
    with contextlib.closing(spool_file.create(path)) as link:
        numbered = [(5 + n, *row[1:]) for n, row in enumerate(rows(opening(1), closing(1)))]
        spool_file.append(link, numbered)
        with pytest.raises(sqlite3.IntegrityError):
            spool_file.append(link, numbered)

        spool_file.append(link, [*numbered, (7, *rows(opening(2))[0][1:])], again=True)

        assert spool_file.next_number(link) == 8
    assert read_ids(path) == [exchange_id(n) for n in (1, 1, 2)]
