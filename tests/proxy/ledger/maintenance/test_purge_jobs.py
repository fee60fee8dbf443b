"""Purges in the background: expired transcripts, progress and results."""

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils.timezone import now

from proxy.ledger.maintenance import retention
from proxy.ledger.maintenance.purge_jobs import (
    PurgeAlreadyRunning,
    expired_by_team,
    run,
    runner,
    space,
    start_purge,
)
from proxy.ledger.posting.ledger_writer import ExchangeRecords, write_to_database
from proxy.models import Exchange, Part, Purge, PurgeState, Team, Transcript
from proxy.models.purges import STALLED_AFTER
from tests.proxy.ledger.amending import FOR_PURGE
from tests.proxy.ledger.database.tables import failing_deletes
from tests.proxy.ledger.factories import NOON, answer, body, closing, opening

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
