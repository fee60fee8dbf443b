"""The drainer's thread continues after outages and defects, and runs its periodic tasks."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection

from proxy.ledger.journal import locks
from proxy.ledger.journal.journal import Journal, append_durably
from proxy.ledger.journal.reader import JournalReader
from proxy.ledger.posting.drainer import Drainer, Pace
from proxy.models import DrainWatermark, Exchange
from tests.proxy.ledger.conftest import ids_in
from tests.proxy.ledger.factories import closing, exchange_id, opening
from tests.waiting import until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The directory of a journal that no process owns."""
    path = tmp_path / "journal-0"
    path.mkdir()
    return path


def states() -> dict[str, str]:
    return dict(Exchange.objects.values_list("pk", "state"))


@contextlib.contextmanager
def missing_table() -> Iterator[None]:
    def rename(old: str, new: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {old} RENAME TO {new}")

    rename("proxy_exchange", "proxy_renamed")
    yield
    rename("proxy_renamed", "proxy_exchange")


@pytest.mark.django_db(transaction=True)
def test_records_wait_in_the_journal_during_an_outage_and_its_cause_is_logged_once(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    journal.append_and_wait(opening(1), closing(1))
    one, next_one = Drainer(journal), Drainer(journal)

    with missing_table():
        one.start()
        until(lambda: one.error)
        one.stop()  # after another round
        assert "proxy_exchange" in one.error
        assert one.backlog.records == 2
    next_one.start()
    next_one.stop()

    assert (next_one.error, next_one.backlog.records) == ("", 0)
    assert states() == {exchange_id(1): "closed"}
    logged = [text for text in caplog.messages if "records wait in the journal" in text]
    assert len(logged) == 1, "once for each outage"


@pytest.mark.django_db(transaction=True)
def test_a_bug_does_not_end_the_thread(journal: Journal, caplog: pytest.LogCaptureFixture) -> None:
    journal.append_and_wait(opening(1), closing(1))
    one = Drainer(journal, pace=Pace(round_s=None))  # type: ignore[arg-type]  # comparing with it raises

    one.start()
    until(lambda: "unexpected fault" in caplog.text)
    one.stop()

    assert "NoneType" in caplog.text
    assert (one.error, states()) == ("", {exchange_id(1): "closed"})


def test_the_wait_after_a_fault_doubles_up_to_five_seconds(journal: Journal) -> None:
    one = Drainer(journal)
    fault, retry_s = OSError("away"), 0.0

    waits = [retry_s := one.note_failure(fault, retry_s) for _ in range(7)]

    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_a_wake_up_stays_set_during_the_wait_after_a_fault_and_not_during_a_rest(
    journal: Journal,
) -> None:
    one = Drainer(journal, pace=Pace(min_rest_s=0.0))
    one.wake()
    one.wake()

    one.rest(0.01)
    assert one.wake_event.is_set()

    one.rest(0.0)
    assert not one.wake_event.is_set()


def test_drainer_rests_neither_when_it_is_alone_nor_without_work(
    journal: Journal,
) -> None:
    """After a crash it posts without rests; without work it waits until it is woken."""
    endless = Pace(max_rest_s=3_600.0, idle_s=0.0)  # a rest is longer than a test may take
    one = Drainer(journal, pace=endless)
    one._computed_s = 3_600.0

    one._has_more = True
    one.rest(0.0)
    one._has_more = False
    one.rest(0.0)


@pytest.mark.django_db
def test_periodic_tasks_do_not_run_in_each_round(journal: Journal, own: JournalReader) -> None:
    hour = 3_600.0
    one = Drainer(
        journal, pace=Pace(idle_s=hour, watermark_s=hour, partitions_s=hour, cleanup_s=hour)
    )
    one.stop_event.set()

    one.run_round(own)
    marked = DrainWatermark.objects.get().seen
    one.run_round(own)

    assert DrainWatermark.objects.get().seen == marked


@pytest.mark.django_db
def test_orphans_are_not_closed_while_the_space_is_reserved_for_running_requests(
    tmp_path: Path, path: Path
) -> None:
    append_durably(path, opening(1))
    with locks.take(tmp_path) as lock:
        journal = Journal(lock, reserve_bytes=4_096)
        journal.start()
        one = Drainer(journal)
        one.stop_event.set()
        own = one.open_reader()

        journal.error = "No space left on device"
        one.post(own)
        assert (ids_in(path), states()) == ([exchange_id(1)], {})
        assert own.backlog().records == 1

        journal.error = ""
        one.post(own)
        assert (one._orphans, states()) == ([], {exchange_id(1): "closed"})
        assert own.backlog().records == 0
        own.close()
        journal.stop()


def test_journal_that_cannot_be_read_yet_is_read_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with locks.take(tmp_path) as lock:
        lock.path.write_text("a file, not a directory")
        journal = Journal(lock, reserve_bytes=4_096)
        journal.start()
        one = Drainer(journal)
        one.start()
        one.stop()
        assert "File exists" in one.error
        assert "the drainer tries again" in caplog.text
        journal.stop()
