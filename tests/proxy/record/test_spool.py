"""The spool: durable when it says so, honest when it cannot be."""

import asyncio
import os
import signal
import socket
import sqlite3
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from secrets import token_hex
from typing import NoReturn

import pytest

from proxy.record import slots, spool_file, spool_writer
from proxy.record.errors import SpoolUnavailable
from proxy.record.landing import Landing
from proxy.record.loop_line import COMPANY
from proxy.record.records import (
    Chunk,
    CloseRecord,
    OpenRecord,
    Record,
    carried,
    decode,
    encode,
)
from proxy.record.spool import LIFE_S, Spool
from proxy.record.spool_writer import MOST_TOGETHER, RETRY_S

from .driver import until
from .making import closing, exchange_id, opening
from .writing import full, read_ids, roomy, spool_in_a_thread


@pytest.mark.parametrize("record", [opening(), Chunk(id="req_1", reads=[(0.5, b"x")]), closing()])
def test_a_record_is_the_same_after_the_spool(record: OpenRecord | Chunk | CloseRecord) -> None:
    assert decode(encode(record)) == record


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (2**64 - 1, 2**64 - 1),
        (2**64, "18446744073709551616"),
        (-(2**63), -(2**63)),
        (-(2**63) - 1, "-9223372036854775809"),
        (-127, -127),
        ({"a": ("\ud800é", [2**70])}, {"a": ["\\ud800é", [str(2**70)]]}),
        ({"\ud800": None}, {"\\ud800": None}),
        (b"bytes", b"bytes"),
        (1.5, 1.5),
    ],
)
def test_what_no_record_can_carry_is_carried_as_text(value: object, kept: object) -> None:
    assert carried(value) == kept
    record = closing(answer={"content": 2**70, "input": value})
    assert decode(encode(record)).answer == {"content": str(2**70), "input": kept}


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


async def test_while_the_writer_is_busy_what_one_turn_says_goes_in_company(spool: Spool) -> None:
    landings = [Landing(lambda: None) for _ in range(COMPANY + 2)]

    for number, landing in enumerate(landings):
        spool.enter(opening(number), landing)
    until(lambda: len(read_ids(spool.path)) > COMPANY)  # while this turn of the loop lasts

    assert read_ids(spool.path) == [exchange_id(n) for n in range(COMPANY + 1)]
    await asyncio.gather(*(landing.landed() for landing in landings))
    assert len(read_ids(spool.path)) == COMPANY + 2


async def test_more_than_the_socket_takes_goes_in_pieces(spool: Spool) -> None:
    large = [opening(n, body=os.urandom(2**20)) for n in range(12)]

    await entered(spool, *large, opening(12))

    assert read_ids(spool.path) == [exchange_id(n) for n in range(13)]


async def test_what_waits_for_the_socket_is_not_there_twice(spool: Spool) -> None:
    """Beside what is kept until it has landed."""
    await entered(spool, opening())
    assert spool.writer
    spool.writer.send_signal(signal.SIGSTOP)
    large = [opening(n, body=os.urandom(2**20)) for n in range(1, 9)]
    tracemalloc.start()
    for each in large:
        spool.enter(each)
    spool.enter(opening(9), Landing(lambda: None))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    spool.writer.send_signal(signal.SIGCONT)

    await entered(spool, opening(10))
    assert kept < 9 * 2**20


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


def test_a_writer_that_outlasts_the_wait_for_it_writes_all_the_same(tmp_path: Path) -> None:
    async def saying() -> None:
        spool.enter(closing(1))

    with slots.held(slots.take(tmp_path)) as slot:
        spool = Spool(slot, reserve_bytes=65_536)
        spool.start()
        os.kill(spool.writer.pid, signal.SIGSTOP)
        os.waitpid(spool.writer.pid, os.WUNTRACED)  # it stands still
        asyncio.run(saying())
        spool.stop(timeout_s=0.01)
        assert read_ids(slot.path) == []
        os.kill(spool.writer.pid, signal.SIGCONT)
        assert spool.writer.wait(60) == 0
        assert read_ids(slot.path) == [exchange_id(1)]


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


def test_what_the_socket_did_not_take_is_left_to_the_next_loop(spool: Spool) -> None:
    async def leaving() -> None:
        for number in range(8):
            spool.enter(opening(number, body=os.urandom(2**20)))

    asyncio.run(leaving())
    asyncio.run(entered(spool, opening(8)))

    assert read_ids(spool.path) == [exchange_id(n) for n in range(9)]


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
    await came(lambda: not spool.error and spool.appended >= 304)  # and so they are in the file

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


def test_a_fault_is_told_once_and_so_is_its_end(tmp_path: Path, caplog) -> None:
    with slots.held(slots.take(tmp_path)) as slot:
        spool = Spool(slot)
    assert str(spool.refusal()) == "the record has been stopped"

    faults = [((1, 2), "full"), ((1, 2), ""), ((1, 1), ""), ((1, 3), "fuller"), ((2, 0), "")]
    errors = []
    for when, fault in [*faults, ((2, 1), "")]:
        spool.hear_fault(when, fault)
        errors.append((spool.error, str(spool.refusal())))

    assert (
        errors
        == [("full", "full")] * 3
        + [("fuller", "fuller")]
        + [("", "the record has been stopped")] * 2
    )
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("ERROR", "spool: full; new requests are refused"),
        ("WARNING", "spool: writable again after: fuller"),
    ]


def test_numbers_go_on_behind_those_of_the_file(tmp_path: Path) -> None:
    with slots.held(slots.take(tmp_path)) as slot:
        spool = Spool(slot)
    assert (spool.number(), spool.number()) == (1, 2)

    spool.opened(10)
    assert spool.number() == 10
    spool.opened(5)
    assert spool.number() == 11


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
    lying: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await entered(lying, opening(1))
    monkeypatch.setattr(spool_writer, "RETRY_S", 3_600.0)  # not before there is room
    lying.call(full)

    with pytest.raises(SpoolUnavailable, match="full"):
        await entered(lying, opening(2, body=os.urandom(100_000)))
    late = asyncio.create_task(entered(lying, closing(1, error_message=token_hex(100_000))))
    lying.enter(Chunk(id=exchange_id(1), reads=[(1.0, b"what was said")]))
    with pytest.raises(SpoolUnavailable):
        await entered(lying, opening(3))
    assert not late.done()
    monkeypatch.setattr(spool_writer, "RETRY_S", RETRY_S)
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
