"""Which process owns which journal: one owner for each, and abandoned ones are found."""

import os
from pathlib import Path

import pytest

from proxy.ledger.errors import JournalInUse
from proxy.ledger.journal import locks


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_each_process_takes_the_first_free_journal(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"

    before = os.umask(0)
    first, second = locks.take(folder), locks.take(folder)
    os.umask(before)

    assert (first.path, second.path) == (folder / "journal-0", folder / "journal-1")
    assert names(folder) == ["journal-0.lock", "journal-1.lock"]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "journal-0.lock").stat().st_mode & 0o777 == 0o600
    first.release()
    first.release()
    assert first.handle == -1
    with locks.take(folder) as again:
        assert again.path == first.path
    assert again.handle == -1
    second.release()


def test_process_is_refused_while_every_journal_is_owned(tmp_path: Path) -> None:
    taken = [locks.take(tmp_path) for _ in range(locks.MAX_JOURNALS)]

    with pytest.raises(JournalInUse) as refused:
        locks.take(tmp_path)

    assert (
        str(refused.value)
        == f"all {locks.MAX_JOURNALS} journals in {tmp_path} are in use by other processes"
    )
    for lock in taken:
        lock.release()


def test_journal_without_an_owner_is_found_if_its_directory_exists(tmp_path: Path) -> None:
    owned = locks.take(tmp_path)
    for name in ("0", "1", "3", "old", "3-copy"):
        (tmp_path / f"journal-{name}").mkdir()
    (tmp_path / "journal-2.lock").touch()

    found = list(locks.take_abandoned(tmp_path))

    assert [lock.path.name for lock in found] == ["journal-1", "journal-3"]
    assert list(locks.take_abandoned(tmp_path)) == []  # they have an owner now
    for lock in (*found, owned):
        lock.release()


def test_journal_that_was_removed_by_its_owner_is_released(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"journal-{number}").mkdir()
    abandoned = locks.take_abandoned(tmp_path)
    next(abandoned).release()

    (tmp_path / "journal-2").rmdir()

    assert list(abandoned) == []
    (tmp_path / "journal-2").mkdir()
    assert [lock.path.name for lock in locks.take_abandoned(tmp_path)] == ["journal-1", "journal-2"]


def test_discarded_journal_leaves_only_its_lock_file(tmp_path: Path) -> None:
    lock = locks.take(tmp_path)
    (tmp_path / "journal-0" / "quarantine").mkdir(parents=True)
    (tmp_path / "journal-0" / "000000000001.segment").touch()

    lock.discard()

    assert names(tmp_path) == ["journal-0.lock"]
    assert lock.handle == -1
    locks.take(tmp_path).discard()  # its directory need not exist
