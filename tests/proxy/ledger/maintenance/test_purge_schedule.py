"""The daily purge of expired transcripts."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.sessions.models import Session

from proxy.conf import conf
from proxy.ledger.maintenance import published_heads
from proxy.ledger.maintenance.purge_jobs import DAILY_PURGE, Nightly, runner, start_if_due
from proxy.ledger.posting.ledger_writer import ExchangeRecords, write_to_database
from proxy.models import Exchange, LedgerHead, Purge, PurgeState, Team, Transcript
from tests.proxy.ledger.database.tables import renamed
from tests.proxy.ledger.factories import body, closing, opening
from tests.waiting import until

HOUR = 3


@pytest.fixture
def ledger(transactional_db):
    """Three exchanges of ten days ago, of a team with a retention of two days."""
    Team.objects.create(name="short", ledger_id="short", retention_days=2)
    at = datetime.now(UTC) - timedelta(days=10)
    write_to_database(
        [
            ExchangeRecords(opening(n, team="short", created=at.timestamp() + n, body=body(f"text {n}")), [],
                  closing(n, answer=None))
            for n in range(3)
        ],
        at,
    )  # fmt: skip
    yield
    runner.join()


def today(hour: int) -> datetime:
    return datetime.now(UTC).replace(hour=hour, minute=30)


def test_the_daily_purge_runs_once_after_its_hour_and_rows_stay(ledger):
    at = datetime.now(UTC)

    assert not start_if_due(today(HOUR - 1), HOUR)  # not yet
    assert start_if_due(at, at.hour)
    runner.join()

    purge = Purge.objects.get()
    assert (purge.username, purge.user) == (DAILY_PURGE, None)
    assert (purge.state, purge.expected, purge.transcripts) == (PurgeState.DONE, 3, 3)
    assert not Transcript.objects.exists()
    assert Exchange.objects.count() == 3
    assert not start_if_due(at, at.hour)  # again


def test_a_manual_purge_replaces_the_daily_one(ledger):
    at = datetime.now(UTC)
    Purge.objects.create(username="ada", created=at, seen=at, state=PurgeState.DONE)

    assert not start_if_due(at, at.hour)
    assert Transcript.objects.count() == 3


def test_no_purge_starts_during_another_or_without_expired_transcripts(ledger):
    at = datetime.now(UTC)
    Purge.objects.create(username="ada", created=at - timedelta(days=1), seen=at)

    assert not start_if_due(at, at.hour)
    Purge.objects.all().delete()
    Team.objects.update(retention_days=30)
    assert not start_if_due(at, at.hour)

    assert Transcript.objects.count() == 3
    assert not Purge.objects.exists()


def test_expired_sessions_are_deleted(db):
    at = datetime.now(UTC)
    for name, hours in (("over", -1), ("on", 1)):
        Session.objects.create(
            session_key=name, session_data="", expire_date=at + timedelta(hours=hours)
        )

    assert not start_if_due(at, at.hour)

    assert Session.objects.get().session_key == "on"


@pytest.fixture
def started():
    """Return a function that lists the new purge threads; other tests may have one too."""
    before = set(threading.enumerate())

    def threads():
        return [one for one in set(threading.enumerate()) - before if one.name == "nightly"]

    return threads


@pytest.fixture
def frequent():
    """A scheduler that checks a hundred times a second and is stopped after the test."""
    nightly = Nightly(every_s=0.01)
    yield nightly
    nightly.stop()
    (conf.data_dir / published_heads.FILE).unlink(missing_ok=True)


def test_the_thread_survives_a_database_error_and_ends_when_stopped(
    ledger, caplog, started, frequent
):
    with renamed(Session):
        frequent.start(0)
        frequent.start(0)  # a second call does nothing
        assert len(started()) == 1
        until(lambda: "not started: " in caplog.text)
    until(Purge.objects.exists)
    frequent.stop()
    frequent.stop()
    runner.join()

    assert not started()
    assert not Transcript.objects.exists()


def test_the_thread_survives_an_internal_error(ledger, caplog, started, frequent):
    frequent.start(24)  # an hour that no day has

    until(lambda: caplog.text.count("hour must be in 0..23") > 1)

    assert len(started()) == 1


def test_without_a_purge_hour_the_head_of_the_ledger_is_published(ledger, frequent):
    path = conf.data_dir / published_heads.FILE

    frequent.start(None)
    until(path.exists)
    frequent.stop()

    assert published_heads.published(path)[-1].sequence == LedgerHead.objects.get().sequence
    assert not Purge.objects.exists()
