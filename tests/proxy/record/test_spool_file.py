"""The file of a spool: whole after a torn write, small, and with nothing twice."""

import contextlib
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from proxy.record import slots, spool_file
from proxy.record.records import OpenRecord, decode
from proxy.record.spool import Spool

from .making import closing, exchange_id, opening, rows
from .writing import full, read_ids


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
