"""Who owns which spool file: one owner for each, and what a dead one left is found."""

import os
from pathlib import Path

import pytest

from proxy.record import slots
from proxy.record.errors import SpoolInUse


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_each_owner_has_the_lowest_slot_that_is_free(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"

    before = os.umask(0)
    first, second = slots.take(folder), slots.take(folder)
    os.umask(before)

    assert (first.number, second.number) == (0, 1)
    assert second.path == folder / "spool-1.sqlite3"
    assert second.reserve == folder / "spool-1.reserve"
    assert names(folder) == ["spool-0.lock", "spool-1.lock"]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "spool-0.lock").stat().st_mode & 0o777 == 0o600
    first.release()
    first.release()
    assert first.lock == -1
    with slots.held(slots.take(folder)) as again:
        assert again.number == 0
    assert again.lock == -1
    second.release()


def test_where_all_are_held_there_is_none_for_anybody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "MOST_SLOTS", 2)
    held = [slots.take(tmp_path) for _ in range(2)]

    with pytest.raises(SpoolInUse) as refused:
        slots.take(tmp_path)

    assert str(refused.value) == f"all 2 spool slots in {tmp_path} are held by other processes"
    for slot in held:
        slot.release()


def test_a_slot_without_an_owner_is_found_where_its_file_is(tmp_path: Path) -> None:
    owned = slots.take(tmp_path)
    for name in ("0", "1", "3", "old", "3-copy"):
        (tmp_path / f"spool-{name}.sqlite3").touch()
    (tmp_path / "spool-2.lock").touch()

    found = list(slots.take_abandoned(tmp_path))

    assert [slot.number for slot in found] == [1, 3]
    assert list(slots.take_abandoned(tmp_path)) == []  # they have an owner now
    for slot in (*found, owned):
        slot.release()


def test_a_slot_that_somebody_drained_meanwhile_is_let_go_of(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"spool-{number}.sqlite3").touch()
    looking = slots.take_abandoned(tmp_path)
    next(looking).release()

    (tmp_path / "spool-2.sqlite3").unlink()

    assert list(looking) == []
    (tmp_path / "spool-2.sqlite3").touch()
    assert [slot.number for slot in slots.take_abandoned(tmp_path)] == [1, 2]


def test_of_a_drained_slot_the_lock_alone_stays(tmp_path: Path) -> None:
    slot = slots.take(tmp_path)
    for suffix in (".sqlite3", ".sqlite3-wal", ".sqlite3-shm", ".reserve"):
        (tmp_path / f"spool-0{suffix}").touch()

    slot.discard()

    assert names(tmp_path) == ["spool-0.lock"]
    assert slot.lock == -1
    slots.take(tmp_path).discard()  # none of them need be there
