"""The drainer leaves the interpreter to the streams: its rounds end, and it rests between them."""

import asyncio
import time

import pytest

from proxy.ledger.journal.journal import DurabilityFuture, Journal
from proxy.ledger.journal.reader import Backlog, JournalReader
from proxy.ledger.posting.drainer import MAX_LAG_S, Drainer, Pace
from proxy.ledger.posting.journal_posting import MAX_RECORDS
from proxy.models import Exchange
from tests.proxy.ledger.factories import closing, opening


@pytest.mark.django_db
def test_a_round_ends_while_more_waits_and_the_last_one_posts_all(
    journal: Journal, own: JournalReader
) -> None:
    requests = MAX_RECORDS  # with two records each, so that one batch is not enough
    records = (each for n in range(requests) for each in (opening(n), closing(n)))
    journal.append_and_wait(*records)
    one = Drainer(journal, pace=Pace(round_s=0.0))

    assert one.post(own), "it would continue as long as records come"
    assert Exchange.objects.count() == MAX_RECORDS / 2
    one.stop_event.set()
    assert not one.post(own)
    assert Exchange.objects.count() == requests


async def test_drainer_is_not_alone_while_a_request_runs_or_after_one_was_recorded(
    journal: Journal,
) -> None:
    running: list[str] = []
    one = Drainer(journal, running)
    journal.on_append = one.wake
    # The drainer writes such records itself when it closes orphans.
    await asyncio.to_thread(journal.append_and_wait, closing(1))
    assert one.is_alone()

    running.append("req_2")
    assert not one.is_alone()

    running.clear()
    journal.append(opening(2), future := DurabilityFuture(lambda: None))
    await future.wait()
    assert not one.is_alone()


def test_the_rest_is_nine_times_the_work_and_shrinks_the_longer_a_record_has_waited() -> None:
    pace = Pace()
    assert pace.rest_after(0.1, 0) == pytest.approx(0.9)
    assert pace.rest_after(0.0, 0) == pace.min_rest_s
    assert pace.rest_after(60.0, 0) == pace.max_rest_s
    rests = [pace.rest_after(0.3, behind) for behind in range(2 * int(MAX_LAG_S))]
    assert rests == sorted(rests, reverse=True)
    assert pace.rest_after(0.3, MAX_LAG_S) == rests[-1] == 0.0


def test_the_lag_is_what_the_oldest_record_has_waited_beyond_the_delay_of_open_rows(
    journal: Journal,
) -> None:
    one = Drainer(journal)
    assert one.lag_s == 0
    late = time.time() - Pace().open_delay_s - 20
    one._known = (Backlog(9, late, 0), 0)
    assert one.lag_s == pytest.approx(20, abs=5)
    one._known = (Backlog(9, time.time(), 0), 0)
    assert one.lag_s == 0
