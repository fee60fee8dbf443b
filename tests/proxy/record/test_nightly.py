"""What is past its team's retention goes once a day, by itself."""

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.sessions.models import Session
from django.db import DatabaseError

from proxy.models import Exchange, Purge, PurgeState, Team, Transcript
from proxy.record import nightly as module
from proxy.record.nightly import Nightly, look
from proxy.record.posting import Story, post
from proxy.record.purging import NOBODY, runner

from .making import body, closing, opening

HOUR = 3
WITHIN_S = 60


@pytest.fixture
def ledger(transactional_db):
    """Three conversations of ten days ago, of a team that keeps two days."""
    Team.objects.create(name="short", retention_days=2)
    at = datetime.now(UTC) - timedelta(days=10)
    post(
        [
            Story(opening(n, team="short", created=at.timestamp() + n, body=body(f"say {n}")), [],
                  closing(n, answer=None))
            for n in range(3)
        ],
        at,
    )  # fmt: skip
    yield
    runner.join()


def today(hour: int) -> datetime:
    return datetime.now(UTC).replace(hour=hour, minute=30)


def test_it_goes_after_its_hour_once_a_day_and_rows_stay(ledger):
    at = datetime.now(UTC)

    assert not look(today(HOUR - 1), HOUR)  # not yet
    assert look(at, at.hour)
    runner.join()

    purge = Purge.objects.get()
    assert (purge.username, purge.user) == (NOBODY, None)
    assert (purge.state, purge.expected, purge.transcripts) == (PurgeState.DONE, 3, 3)
    assert not Transcript.objects.exists()
    assert Exchange.objects.count() == 3
    assert not look(at, at.hour)  # again


def test_one_that_was_asked_for_since_is_the_day_s(ledger):
    at = datetime.now(UTC)
    Purge.objects.create(username="ada", created=at, seen=at, state=PurgeState.DONE)

    assert not look(at, at.hour)
    assert Transcript.objects.count() == 3


def test_beside_another_and_without_anything_past_its_time_it_begins_none(ledger):
    at = datetime.now(UTC)
    Purge.objects.create(username="ada", created=at - timedelta(days=1), seen=at)

    assert not look(at, at.hour)
    Purge.objects.all().delete()
    Team.objects.update(retention_days=30)
    assert not look(at, at.hour)

    assert Transcript.objects.count() == 3
    assert not Purge.objects.exists()


def test_sign_ins_that_have_ended_are_forgotten(db):
    at = datetime.now(UTC)
    for name, hours in (("over", -1), ("on", 1)):
        Session.objects.create(
            session_key=name, session_data="", expire_date=at + timedelta(hours=hours)
        )

    assert not look(at, at.hour)

    assert Session.objects.get().session_key == "on"


def wait_until(holds):
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def started():
    """Its threads, of which another test's gateway may have one as well."""
    before = set(threading.enumerate())

    def threads():
        return [one for one in set(threading.enumerate()) - before if one.name == "nightly"]

    return threads


@pytest.fixture
def hasty():
    """It looks a hundred times a second, and no longer than its test."""
    nightly = Nightly(every_s=0.01)
    yield nightly
    nightly.stop()


def test_the_thread_goes_on_after_a_fault_and_ends_when_it_is_told(
    ledger, monkeypatch, caplog, started, hasty
):
    faults = [DatabaseError("locked"), RuntimeError("of ours")]
    real = module.present

    def present():
        if faults:
            raise faults.pop(0)
        return real()

    monkeypatch.setattr(module, "present", present)

    hasty.start(0)
    hasty.start(0)  # again is fine
    assert len(started()) == 1
    wait_until(Purge.objects.exists)
    hasty.stop()
    hasty.stop()
    runner.join()

    assert not started()
    assert not Transcript.objects.exists()
    assert "stays for now: locked" in caplog.text
    assert "RuntimeError: of ours" in caplog.text


def test_where_an_operator_s_timer_does_it_nothing_is_started(started):
    nightly = Nightly()

    nightly.start(None)

    assert not started()
