"""Purges in the background: expired transcripts, progress and results."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import connection
from django.utils.timezone import now

from proxy.conf import conf
from proxy.ledger.maintenance import published_heads, retention
from proxy.ledger.maintenance.purge_jobs import (
    DAILY_PURGE,
    Nightly,
    PurgeAlreadyRunning,
    expired_by_team,
    run,
    runner,
    space,
    start_if_due,
    start_purge,
)
from proxy.ledger.posting.ledger_writer import ExchangeRecords, write_to_database
from proxy.models import Exchange, LedgerHead, Part, Purge, PurgeState, Team, Transcript
from proxy.models.purges import STALLED_AFTER
from tests.proxy.ledger.amending import FOR_PURGE
from tests.proxy.ledger.database.tables import failing_deletes, renamed
from tests.proxy.ledger.factories import NOON, answer, body, closing, opening
from tests.waiting import until

START = datetime.fromtimestamp(NOON, UTC)


@pytest.fixture
def ledger(db):
    Team.objects.create(name="short", ledger_id="short", retention_days=2)
    Team.objects.create(name="long", ledger_id="long", retention_days=60)
    write_to_database(
        [
            ExchangeRecords(
                opening(1, team="short", body=body("one")), [], closing(1, answer=None)
            ),
            ExchangeRecords(
                opening(2, team="short", body=body("two")), [], closing(2, answer=answer("2"))
            ),
            ExchangeRecords(
                opening(3, team="long", body=body("three")), [], closing(3, answer=None)
            ),
            ExchangeRecords(
                opening(4, team="forgotten", body=body("four")), [], closing(4, answer=None)
            ),
        ],
        START,
    )


def counted(days: float) -> dict[str, int]:
    return {one.team: one.transcripts for one in expired_by_team(START + timedelta(days=days))}


def test_expired_transcripts_are_those_that_a_purge_deletes(ledger):
    assert counted(1) == {}
    assert counted(3) == {"short": 2}
    assert counted(61) == {"long": 1, "short": 2}
    assert counted(91) == {"forgotten": 1, "long": 1, "short": 2}
    for days in (3, 61, 91):
        at = START + timedelta(days=days)
        count = sum(one.transcripts for one in expired_by_team(at))
        assert sum(retention.prune_transcripts(at, FOR_PURGE)) == count
        assert expired_by_team(at) == []


def test_expired_transcripts_have_retention_and_bytes(ledger):
    (short,) = expired_by_team(START + timedelta(days=3))

    assert (short.team, short.retention_days) == ("short", 2)
    assert short.oldest.date() == START.date()
    assert short.before == START + timedelta(days=1)
    transcripts = Transcript.objects.filter(exchange__team="short")
    assert short.bytes == sum(len(one.manifest) + len(one.stream or b"") for one in transcripts)


def test_space_returns_the_size_of_the_database(ledger):
    found = space()

    assert found.size > 0
    assert found.free is None or found.free <= found.size


@pytest.fixture
def ada(transactional_db):
    yield User.objects.create_user("ada")
    runner.join()


def old_ledger():
    """Write ten exchanges of ten days ago, of which seven are expired."""
    Team.objects.create(name="short", ledger_id="short", retention_days=2)
    Team.objects.create(name="long", ledger_id="long", retention_days=60)
    at = now() - timedelta(days=10)
    batch = [
        ExchangeRecords(opening(n, team=team, created=at.timestamp() + n, body=body(f"text {n}")), [],
              closing(n, answer=None))
        for n, team in enumerate(["short"] * 7 + ["long"] * 3)
    ]  # fmt: skip
    write_to_database(batch, at)


def test_a_purge_runs_in_the_background_and_stores_its_result(ada):
    old_ledger()
    parts = Part.objects.count()

    started = start_purge(ada, rewrite=True, expected=7)
    runner.join()

    purge = Purge.objects.get()
    assert purge.pk == started.pk
    assert (purge.state, purge.error, purge.step) == (PurgeState.DONE, "", "")
    assert (purge.username, purge.expected, purge.transcripts) == ("ada", 7, 7)
    assert purge.parts == parts - Part.objects.count() > 0
    assert purge.bytes_freed is not None
    assert purge.finished is not None
    assert Transcript.objects.count() == 3
    assert Exchange.objects.count() == 10


def test_one_purge_runs_at_a_time_until_it_is_stalled(ada):
    at = now()
    other = Purge.objects.create(user=ada, username="ada", created=at, seen=at)

    with pytest.raises(PurgeAlreadyRunning):
        start_purge(ada, rewrite=False, expected=None)
    assert not other.is_stalled
    Purge.objects.update(seen=at - STALLED_AFTER - timedelta(seconds=1))
    start_purge(ada, rewrite=False, expected=None)
    runner.join()

    other.refresh_from_db()
    assert (other.state, other.error) == (PurgeState.FAILED, "its process ended")
    assert Purge.objects.first().state == PurgeState.DONE


def failed_purge(ada):
    start_purge(ada, rewrite=False, expected=None)
    runner.join()
    return Purge.objects.get()


def test_a_purge_that_the_database_ends_has_its_error_and_counts(ada):
    old_ledger()

    with failing_deletes(Part, "disk I/O error\nat page 7"):
        purge = failed_purge(ada)

    assert (purge.state, purge.error) == (PurgeState.FAILED, "disk I/O error")
    assert purge.transcripts == 7


def test_a_purge_that_reads_a_damaged_manifest_has_an_error_and_counts(ada):
    old_ledger()
    Transcript.objects.filter(exchange__team="long").update(manifest=b"damaged")

    purge = failed_purge(ada)

    assert purge.state == PurgeState.FAILED
    assert purge.error == "internal error; see the log of the gateway"
    assert purge.transcripts == 7


def test_progress_is_stored_during_a_purge(ada):
    old_ledger()
    purge = Purge.objects.create(user=ada, username="ada", created=now(), seen=now())
    progress = []

    def note(execute, sql, *arguments):
        result = execute(sql, *arguments)
        if sql.startswith(f'UPDATE "{Purge._meta.db_table}"'):
            progress.append(Purge.objects.values_list("step", "transcripts").get())
        return result

    with connection.execute_wrapper(note):
        run(purge, batch=1, progress_interval_s=0)

    assert progress[:8] == [("transcripts", n) for n in range(8)]


HOUR = 3


@pytest.fixture
def expired(transactional_db):
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


def test_the_daily_purge_runs_once_after_its_hour_and_rows_stay(expired):
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


def test_a_manual_purge_replaces_the_daily_one(expired):
    at = datetime.now(UTC)
    Purge.objects.create(username="ada", created=at, seen=at, state=PurgeState.DONE)

    assert not start_if_due(at, at.hour)
    assert Transcript.objects.count() == 3


def test_no_purge_starts_during_another_or_without_expired_transcripts(expired):
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
    expired, caplog, started, frequent
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


def test_the_thread_survives_an_internal_error(expired, caplog, started, frequent):
    frequent.start(24)  # an hour that no day has

    until(lambda: caplog.text.count("hour must be in 0..23") > 1)

    assert len(started()) == 1


def test_without_a_purge_hour_the_head_of_the_ledger_is_published(expired, frequent):
    path = conf.data_dir / published_heads.FILE

    frequent.start(None)
    until(path.exists)
    frequent.stop()

    assert published_heads.published(path)[-1].sequence == LedgerHead.objects.get().sequence
    assert not Purge.objects.exists()
