"""A record that cannot begin, has not begun yet, or was stopped: who asks it is told so."""

import asyncio
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction

from proxy.conf import conf
from proxy.counters.windows import window
from proxy.models import Budget, Team
from proxy.record import recorder as recording
from proxy.record import slots, spending, spool_file
from proxy.record.amendment import amend
from proxy.record.errors import SpoolUnavailable
from proxy.record.posting import Story, post
from proxy.record.recorder import Recorder
from proxy.record.records import Chunk
from proxy.record.spool import Spool
from proxy.record.spool_file import Backlog

from .making import NOON, closing, exchange_id, opening


async def test_before_it_began_a_checkpoint_is_nothing_and_an_end_is_refused(
    tmp_path: Path,
) -> None:
    recorder = Recorder(tmp_path)

    recorder.chunk(Chunk(id="req_1", reads=[(1.0, b"x")]))
    with pytest.raises(SpoolUnavailable, match="stopped"):
        recorder.settle(closing(1))

    assert recorder.slot == -1


@pytest.mark.django_db(transaction=True)
async def test_who_waited_for_a_record_that_was_stopped_meanwhile_is_refused(
    tmp_path: Path,
) -> None:
    recorder = Recorder(tmp_path)

    class StopsIt(ThreadPoolExecutor):
        """Whatever was done in a thread, the record is stopped before anybody hears of it."""

        def submit(self, job: Callable[..., Any], *arguments: Any, **named: Any) -> Future[Any]:
            def both() -> Any:
                result = job(*arguments, **named)
                recorder.stop()
                return result

            return super().submit(both)

    asyncio.get_running_loop().set_default_executor(StopsIt())

    with pytest.raises(SpoolUnavailable, match="stopped"):
        await recorder.open(opening(1))


def test_its_directory_is_the_data_directory_unless_it_was_told_another(tmp_path: Path) -> None:
    assert Recorder().directory == conf.data_dir
    assert Recorder(tmp_path).directory == tmp_path


def test_what_cannot_be_looked_up_now_is_closed_at_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with slots.held(slots.take(tmp_path)) as slot:
        slot.path.mkdir()  # no file can be there
        spool = Spool(slot, reserve_bytes=65_536)
        spool.start()

        assert recording._left_behind(spool) == ([], Backlog(0, None, 0))

        spool.stop()
    assert "closed at the next start" in caplog.text


def test_a_spool_that_never_began_is_stopped_all_the_same(tmp_path: Path) -> None:
    with slots.held(slots.take(tmp_path)) as slot:
        spool = Spool(slot)

        spool.stop()

        assert (spool.ending, spool.writer) == (True, None)


def test_a_writer_that_ended_as_it_had_begun_is_not_replaced_at_once(tmp_path: Path) -> None:
    launched: list[object] = []
    with slots.held(slots.take(tmp_path)) as slot:
        spool = Spool(slot, launch=lambda *ends: launched.append(ends))  # type: ignore[arg-type, return-value]
        spool.began = float("inf")  # however slow this machine is, that is less than LIFE_S ago

        assert not spool.renew(0)

    assert launched == []


def test_a_file_that_cannot_be_opened_is_no_broken_one(tmp_path: Path) -> None:
    path = tmp_path / "spool-0.sqlite3"
    path.mkdir()

    with pytest.raises(spool_file.sqlite3.OperationalError, match="unable to open"):
        spool_file.create(path)

    assert [*tmp_path.iterdir()] == [path], "nothing was moved aside"


def test_room_is_taken_from_a_disk_that_has_it_and_for_a_log_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "spool-0.sqlite3"
    spool_file.create(path).close()
    log = Path(f"{path}-wal")

    spool_file.make_room(path)
    assert not log.exists()

    log.touch()
    monkeypatch.setattr(spool_file, "FREE_BYTES", shutil.disk_usage(tmp_path).total + 1)
    spool_file.make_room(path)
    assert log.stat().st_size == 0

    monkeypatch.setattr(spool_file, "FREE_BYTES", 0)
    spool_file.make_room(path)
    assert log.stat().st_size == spool_file.ROOM_BYTES


@pytest.mark.django_db
def test_a_budget_of_nobody_has_spent_nothing(team: Team) -> None:
    """The database lets none in; without an owner it would be everybody's."""
    post([Story(opening(1), [], closing(1))])
    when = window("month", "UTC", NOON)

    with transaction.atomic():
        assert spending.spent(Budget(team=team), when) == 0  # no price is known
        amend([exchange_id(1)], lambda _: {"cost_nanousd": 5})
        assert spending.spent(Budget(team=team), when) == 5
        assert spending.spent(Budget(), when) == 0
