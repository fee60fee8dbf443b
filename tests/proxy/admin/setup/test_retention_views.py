"""The storage page: transcripts past retention, the confirmation, and the purge."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.utils.timezone import now

from proxy.admin.setup import retention_views
from proxy.ledger.maintenance.purge_jobs import Space, runner
from proxy.models import Exchange, Purge, PurgeState, Team, Transcript
from proxy.models.purges import STALLED_AFTER
from proxy.permissions.roles import AUDITOR, MEMBER, OWNER
from tests.fakes.stopped_queries import stopped_queries
from tests.proxy.admin import factories

PAGE = "/admin/storage/"
PURGE = "/admin/storage/purge/"


@pytest.fixture
def owner(client, db):
    client.force_login(factories.staff("olga", groups=(OWNER,)))
    return client


def old_requests(count, team="platform", days=100):
    for n in range(count):
        factories.record(team=team, at=now() - timedelta(days=days, minutes=n))


@pytest.fixture
def purges(transactional_db):
    yield
    runner.join()


def test_transcripts_past_retention_are_shown_by_team(owner):
    factories.team("platform", retention_days=30)
    factories.team("research", retention_days=365)
    old_requests(2)
    old_requests(1, team="research")

    response = owner.get(PURGE)

    assert "2 transcripts of 1 team" in owner.get(PAGE).content.decode()
    assert [(row["team"], row["retention_days"]) for row in response.context["due"]["teams"]] == [
        ("platform", 30)
    ]
    assert Transcript.objects.count() == 3
    assert not Purge.objects.exists()


def test_a_post_starts_the_purge_and_is_logged(purges, owner):
    factories.team("platform", retention_days=30)
    old_requests(2)

    answer = owner.post(PURGE, follow=True)
    runner.join()

    assert answer.redirect_chain == [(PAGE, 302)]
    assert not Transcript.objects.exists()
    assert Exchange.objects.count() == 2
    (entry,) = factories.audit(object_id=str(Purge.objects.get().pk), action="purge")
    assert (entry.names.user, entry.detail) == ("olga", "2 transcripts past their retention")
    page = owner.get(PAGE)
    assert "done" in page.content.decode()
    assert "Refresh" not in page


def test_a_post_without_a_csrf_token_is_rejected(db):
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(factories.staff("olga", groups=(OWNER,)))

    assert strict.post(PURGE).status_code == 403
    assert not Purge.objects.exists()


def test_a_second_purge_does_not_start_while_one_runs(owner):
    at = now()
    Purge.objects.create(username="ada", created=at, seen=at, expected=8, transcripts=2)

    page = owner.post(PURGE, follow=True)

    assert "A purge is already running." in page.content.decode()
    assert "2 of 8" in page.content.decode()
    assert page["Refresh"] == "5"
    assert page.context["purges"][0]["percent"] == 25
    assert Purge.objects.count() == 1
    assert factories.audit() == []


def test_a_stalled_purge_is_reported_and_does_not_block_another(purges, owner):
    at = now() - STALLED_AFTER - timedelta(minutes=1)
    Purge.objects.create(username="ada", created=at, seen=at)

    assert "no progress since" in owner.get(PAGE).content.decode()
    owner.post(PURGE)
    runner.join()

    assert list(Purge.objects.values_list("state", flat=True)) == [
        PurgeState.DONE, PurgeState.FAILED,
    ]  # fmt: skip


def test_a_purge_is_possible_when_counting_takes_too_long(owner):
    old_requests(1)

    with stopped_queries("COUNT(") as stopped:
        response = owner.get(PURGE).content.decode()

    assert len(stopped) == 1
    assert "too many to count within two seconds" in response
    assert ">Purge</button>" in response


@pytest.mark.parametrize("who", [AUDITOR, MEMBER, "nobody"])
def test_without_the_permission_there_is_no_page_and_no_link(client, db, who):
    client.force_login(factories.staff(who, groups=() if who == "nobody" else (who,)))

    assert client.get(PAGE).status_code == 403
    assert client.post(PURGE).status_code == 403
    assert PAGE not in client.get("/admin/password_change/").content.decode()


def test_an_owner_of_one_team_cannot_purge(client, db):
    client.force_login(factories.staff("ada", groups=(OWNER, "team:platform")))

    assert client.get(PAGE).status_code == 403
    assert client.post(PURGE).status_code == 403


@pytest.mark.skipif(connection.vendor != "sqlite", reason="only SQLite rewrites its file")
def test_a_full_disk_offers_no_rewrite(owner, monkeypatch):
    # A test cannot fill the disk.
    monkeypatch.setattr(
        retention_views.purge_jobs, "space", lambda: Space(10 * 2**30, 4 * 2**30, 2**30)
    )

    response = owner.get(PURGE).content.decode()

    assert "not have enough free space" in response
    assert 'name="rewrite"' not in response
    assert "10.0 GiB" in response


def test_an_empty_purge_is_reported(owner):
    Team.objects.all().delete()

    assert "No transcript is past its retention." in owner.get(PURGE).content.decode()
