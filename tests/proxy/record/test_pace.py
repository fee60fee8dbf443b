"""The drainer lets the streams have the interpreter: its rounds end, and it rests between them."""

import asyncio
import time

import pytest

from proxy.models import Exchange
from proxy.record import drainer
from proxy.record.drainer import Drainer, Source, rest_after
from proxy.record.landing import Landing
from proxy.record.spool import Spool
from proxy.record.spool_file import Backlog

from .making import closing, opening


@pytest.mark.django_db
def test_a_round_ends_though_more_waits_and_the_last_one_takes_all(
    spool: Spool, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drainer, "ROUND_S", 0.0)
    monkeypatch.setattr(drainer, "MOST_RECORDS", 4)  # of what waits: young open records do not
    monkeypatch.setattr(drainer, "PATIENCE_S", 3_600.0)  # and the first one is young all the while
    for number in range(10):
        spool.append(opening(number))
        spool.append(closing(number))
    one = Drainer(spool, [], Backlog(0, None, 0))

    assert one._move(source), "it would have gone on as long as records come"
    assert Exchange.objects.count() == 4
    one._stop_asked.set()
    assert not one._move(source)
    assert Exchange.objects.count() == 10


async def test_streams_that_run_or_ran_are_no_time_to_go_on_without_a_rest(spool: Spool) -> None:
    running: list[str] = []
    one = Drainer(spool, [], Backlog(0, None, 0), running)
    spool.on_append = one.wake
    await asyncio.to_thread(spool.append, closing(1))  # what it closes itself after a crash
    assert one._is_alone()

    running.append("req_2")
    assert not one._is_alone()

    running.clear()
    spool.enter(opening(2), landing := Landing(lambda: None))
    await landing.future
    assert not one._is_alone()


def test_the_rest_is_nine_times_the_work_and_shrinks_the_longer_a_record_has_waited() -> None:
    assert rest_after(0.1, 0) == pytest.approx(0.9)
    assert rest_after(0.0, 0) == drainer.GATHER_S
    assert rest_after(60.0, 0) == drainer.LONGEST_REST_S
    rests = [rest_after(0.3, behind) for behind in range(2 * int(drainer.MOST_BEHIND_S))]
    assert rests == sorted(rests, reverse=True)
    assert rest_after(0.3, drainer.MOST_BEHIND_S) == rests[-1] == 0.0


def test_it_is_behind_by_what_the_oldest_record_waits_beyond_the_patience(spool: Spool) -> None:
    assert Drainer(spool, [], Backlog(0, None, 0)).behind_s == 0
    late = time.time() - drainer.PATIENCE_S - 20
    assert Drainer(spool, [], Backlog(9, late, 0)).behind_s == pytest.approx(20, abs=5)
    just_now = time.time()
    assert Drainer(spool, [], Backlog(9, just_now, 0)).behind_s == 0
