"""Storage: what is past its time is shown, asked for once more, and purged by whoever may."""

from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.utils.timezone import now

from proxy.admin import storage
from proxy.models import Exchange, Purge, PurgeState, Team, Transcript
from proxy.models.purges import SILENT
from proxy.record.purging import Space, runner
from proxy.roles import AUDITOR, MEMBER, OWNER
from tests.proxy.admin import cast

PAGE = "/admin/storage/"
ASK = "/admin/storage/purge/"


@pytest.fixture
def owner(client, db):
    client.force_login(cast.staff("olga", groups=(OWNER,)))
    return client


def past(count, team="platform", days=100):
    for n in range(count):
        cast.record(team=team, at=now() - timedelta(days=days, minutes=n))


@pytest.fixture
def purges(transactional_db):
    yield
    runner.join()


def test_what_is_past_its_time_is_shown_by_team(owner):
    cast.team("platform", retention_days=30)
    cast.team("research", retention_days=365)
    past(2)
    past(1, team="research")

    asked = owner.get(ASK)

    assert "2 transcripts of 1 team" in owner.get(PAGE).content.decode()
    assert [(one["team"], one["keeps"]) for one in asked.context["due"]["teams"]] == [
        ("platform", 30)
    ]
    assert Transcript.objects.count() == 3
    assert not Purge.objects.exists()


def test_a_purge_begins_with_a_post_and_stands_in_the_log(purges, owner):
    cast.team("platform", retention_days=30)
    past(2)

    answer = owner.post(ASK, follow=True)
    runner.join()

    assert answer.redirect_chain == [(PAGE, 302)]
    assert not Transcript.objects.exists()
    assert Exchange.objects.count() == 2
    entry = LogEntry.objects.get(object_id=str(Purge.objects.get().pk))
    assert entry.user.username == "olga"
    assert entry.change_message == "Purged what was past its time: 2 transcripts of 1 team."
    page = owner.get(PAGE)
    assert "done" in page.content.decode()
    assert "Refresh" not in page


def test_a_post_without_our_token_is_refused(db):
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(cast.staff("olga", groups=(OWNER,)))

    assert strict.post(ASK).status_code == 403
    assert not Purge.objects.exists()


def test_a_second_purge_is_not_begun_beside_the_first(owner):
    at = now()
    Purge.objects.create(username="ada", created=at, seen=at, expected=8, transcripts=2)

    page = owner.post(ASK, follow=True)

    assert "A purge is running already." in page.content.decode()
    assert "2 of 8" in page.content.decode()
    assert page["Refresh"] == "5"
    assert page.context["purges"][0]["percent"] == 25
    assert Purge.objects.count() == 1
    assert not LogEntry.objects.exists()


def test_one_that_fell_silent_says_so_and_no_longer_counts(purges, owner):
    at = now() - SILENT - timedelta(minutes=1)
    Purge.objects.create(username="ada", created=at, seen=at)

    assert "silent since" in owner.get(PAGE).content.decode()
    owner.post(ASK)
    runner.join()

    assert list(Purge.objects.values_list("state", flat=True)) == [
        PurgeState.DONE, PurgeState.FAILED,
    ]  # fmt: skip


def test_what_cannot_be_counted_in_time_can_be_purged_all_the_same(owner, monkeypatch):
    past(1)
    monkeypatch.setattr(storage, "patient", hurried)

    asked = owner.get(ASK).content.decode()

    assert "too much to be counted in two seconds" in asked
    assert ">Purge</button>" in asked


def hurried():
    raise storage.TooSlow


@pytest.mark.parametrize("who", [AUDITOR, MEMBER, "nobody"])
def test_who_has_no_right_sees_no_button_and_no_page(client, db, who):
    client.force_login(cast.staff(who, groups=() if who == "nobody" else (who,)))

    assert client.get(PAGE).status_code == 403
    assert client.post(ASK).status_code == 403
    assert PAGE not in client.get("/admin/password_change/").content.decode()


def test_an_owner_of_one_team_purges_nothing_of_all(client, db):
    client.force_login(cast.staff("ada", groups=(OWNER, "team:platform")))

    assert client.get(PAGE).status_code == 403
    assert client.post(ASK).status_code == 403


@pytest.mark.skipif(connection.vendor != "sqlite", reason="only SQLite writes its file anew")
def test_a_disk_without_room_offers_no_rewriting(owner, monkeypatch):
    monkeypatch.setattr(storage.purging, "space", lambda: Space(10 * 2**30, 4 * 2**30, 2**30))

    asked = owner.get(ASK).content.decode()

    assert "the disk has no room for that" in asked
    assert 'name="rewrite"' not in asked
    assert "10.0 GiB" in asked


def test_nothing_past_its_time_is_said(owner):
    Team.objects.all().delete()

    assert "Nothing is past its time." in owner.get(ASK).content.decode()
