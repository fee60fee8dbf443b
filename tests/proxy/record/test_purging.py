"""What is past its time, counted and purged in the background, and how far that has come."""

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.db import DatabaseError
from django.utils.timezone import now

from proxy.models import Exchange, Part, Purge, PurgeState, Team, Transcript
from proxy.models.purges import SILENT
from proxy.record import purging, retention
from proxy.record.posting import Story, post
from proxy.record.purging import Running, begin, due, runner, space

from .making import NOON, answer, body, closing, opening

START = datetime.fromtimestamp(NOON, UTC)


@pytest.fixture
def ledger(db):
    Team.objects.create(name="short", retention_days=2)
    Team.objects.create(name="long", retention_days=60)
    post(
        [
            Story(opening(1, team="short", body=body("one")), [], closing(1, answer=None)),
            Story(opening(2, team="short", body=body("two")), [], closing(2, answer=answer("2"))),
            Story(opening(3, team="long", body=body("three")), [], closing(3, answer=None)),
            Story(opening(4, team="forgotten", body=body("four")), [], closing(4, answer=None)),
        ],
        START,
    )


def counted(days: float) -> dict[str, int]:
    return {one.team: one.transcripts for one in due(START + timedelta(days=days))}


def test_what_is_due_is_what_a_purge_would_delete(ledger):
    assert counted(1) == {}
    assert counted(3) == {"short": 2}
    assert counted(61) == {"long": 1, "short": 2}
    assert counted(91) == {"forgotten": 1, "long": 1, "short": 2}
    for days in (3, 61, 91):
        at = START + timedelta(days=days)
        told = sum(one.transcripts for one in due(at))
        assert sum(retention.prune_transcripts(at)) == told
        assert due(at) == []


def test_a_team_is_told_with_its_days_and_bytes(ledger):
    (short,) = due(START + timedelta(days=3))

    assert (short.team, short.keeps_days) == ("short", 2)
    assert short.oldest.date() == START.date()
    assert short.before == START + timedelta(days=1)
    kept = Transcript.objects.filter(exchange__team="short")
    assert short.bytes == sum(len(one.manifest) + len(one.stream or b"") for one in kept)


def test_the_room_that_the_database_takes_is_known(ledger):
    found = space()

    assert found.size > 0
    assert found.free is None or found.free <= found.size


@pytest.fixture
def ada(transactional_db):
    yield User.objects.create_user("ada")
    runner.join()


def old_ledger():
    """The same, of which all but nothing is past its time today."""
    Team.objects.create(name="short", retention_days=2)
    Team.objects.create(name="long", retention_days=60)
    at = now() - timedelta(days=10)
    stories = [
        Story(opening(n, team=team, created=at.timestamp() + n, body=body(f"say {n}")), [],
              closing(n, answer=None))
        for n, team in enumerate(["short"] * 7 + ["long"] * 3)
    ]  # fmt: skip
    post(stories, at)


def test_a_purge_runs_in_the_background_and_tells_how_it_went(ada):
    old_ledger()
    parts = Part.objects.count()

    begun = begin(ada, rewrite=True, expected=7)
    runner.join()

    purge = Purge.objects.get()
    assert purge.pk == begun.pk
    assert (purge.state, purge.error, purge.step) == (PurgeState.DONE, "", "")
    assert (purge.username, purge.expected, purge.transcripts) == ("ada", 7, 7)
    assert purge.parts == parts - Part.objects.count() > 0
    assert purge.bytes_freed is not None
    assert purge.finished is not None
    assert Transcript.objects.count() == 3
    assert Exchange.objects.count() == 10


def test_one_purge_runs_at_a_time_until_it_is_silent(ada):
    at = now()
    other = Purge.objects.create(user=ada, username="ada", created=at, seen=at)

    with pytest.raises(Running):
        begin(ada, rewrite=False, expected=None)
    assert not other.silent
    Purge.objects.update(seen=at - SILENT - timedelta(seconds=1))
    begin(ada, rewrite=False, expected=None)
    runner.join()

    other.refresh_from_db()
    assert (other.state, other.error) == (PurgeState.FAILED, "its process ended")
    assert Purge.objects.first().state == PurgeState.DONE


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (DatabaseError("disk I/O error\nat page 7"), "disk I/O error"),
        (RuntimeError("of ours"), "internal error; the log of the gateway has it"),
    ],
)
def test_a_purge_that_fails_says_why_and_what_it_had_deleted(ada, monkeypatch, fault, said):
    old_ledger()

    def failing(*_, **__):
        raise fault

    monkeypatch.setattr(retention, "prune_parts", failing)
    begin(ada, rewrite=False, expected=None)
    runner.join()

    purge = Purge.objects.get()
    assert (purge.state, purge.error) == (PurgeState.FAILED, said)
    assert purge.transcripts == 7


def test_long_work_is_told_while_it_goes_on(ada, monkeypatch):
    old_ledger()
    monkeypatch.setattr(purging, "SPEAK_S", -1.0)
    told = []
    real = retention.prune_transcripts

    def one_by_one(at):
        for count in real(at, 1):
            yield count
            told.append(Purge.objects.values_list("step", "transcripts").get())

    monkeypatch.setattr(retention, "prune_transcripts", one_by_one)
    begin(ada, rewrite=False, expected=7)
    runner.join()

    assert told == [("transcripts", n) for n in range(1, 8)]
