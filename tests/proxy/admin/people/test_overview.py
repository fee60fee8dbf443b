"""The pages of a team and of a user, and what a member, a lead and a superuser see there."""

import pytest
from django.utils.timezone import now

from proxy.models import Budget
from proxy.permissions.roles import AUDITOR, MEMBER, OWNER
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def company():
    """Ben has requests in two teams; Ada leads one of them."""
    factories.price()
    people = {
        "ada": factories.staff("ada", groups=(OWNER, "team:platform")),
        "ben": factories.staff("ben", groups=(MEMBER, "team:platform")),
        "cleo": factories.staff("cleo", groups=(MEMBER, "team:research")),
        "aude": factories.staff("aude", groups=(AUDITOR,)),
    }
    keys = {
        "ben": factories.key("ben", user=people["ben"])[0],
        "lab": factories.key("lab", of="research", user=people["ben"])[0],
    }
    for key, team, session in (
        (keys["ben"], "platform", "s-one"),
        (keys["lab"], "research", "s-two"),
    ):
        opening = {"user": "ben", "session_id": session}
        factories.record(key=key, team=team, at=now(), opening=opening)
    Budget.objects.create(team=keys["ben"].team, usd=500)
    Budget.objects.create(user=people["ben"], usd=77)
    return people, keys


def text(client, url):
    answer = client.get(url)
    assert answer.status_code == 200, url
    return answer.content.decode()


def test_a_lead_sees_the_team_with_its_keys_people_budgets_and_sessions(client, company):
    people, keys = company
    client.force_login(people["ada"])

    page = text(client, f"/admin/people/team/{keys['ben'].team.pk}/")

    assert "platform/ben" in page
    assert "team platform" in page
    assert "$500.00 a month" in page
    assert "s-one" in page
    assert "Invite a colleague" in page
    assert f"/admin/people/user/{people['ben'].pk}/" in page
    assert not [other for other in ("research", "s-two", "cleo", "77.00") if other in page]


def test_a_lead_sees_of_a_member_only_the_own_team(client, company):
    people, _ = company
    client.force_login(people["ada"])

    page = text(client, f"/admin/people/user/{people['ben'].pk}/")

    assert "platform/ben" in page
    assert "s-one" in page
    assert not [other for other in ("research/lab", "s-two", "77.00") if other in page]


def test_foreign_teams_and_users_do_not_exist_for_a_lead(client, company):
    people, keys = company
    client.force_login(people["ada"])

    assert client.get(f"/admin/people/team/{keys['lab'].team.pk}/").status_code == 404
    assert client.get(f"/admin/people/user/{people['cleo'].pk}/").status_code == 404


def test_a_member_sees_only_the_own_page_with_own_budgets(client, company):
    people, keys = company
    client.force_login(people["ben"])

    page = text(client, "/admin/me/")

    assert "$77.00 a month" in page
    assert "$500.00" not in page
    assert "platform/ben" in page
    assert "research/lab" in page
    assert client.get(f"/admin/people/team/{keys['ben'].team.pk}/").status_code == 404
    assert client.get(f"/admin/people/user/{people['ben'].pk}/").status_code == 403


def test_an_auditor_sees_everything_and_changes_nothing(client, company):
    people, keys = company
    client.force_login(people["aude"])

    page = text(client, f"/admin/people/user/{people['ben'].pk}/")

    assert "s-one" in page
    assert "s-two" in page
    assert "$77.00 a month" in page
    assert "Rotate" not in page
    assert "Revoke" not in page
    assert "Invite" not in text(client, f"/admin/people/team/{keys['ben'].team.pk}/")


def test_an_empty_team_has_a_hint_what_to_do_next(root):
    page = text(root, f"/admin/people/team/{factories.team('new').pk}/")

    assert "Add a budget" in page
    assert "Add a key" in page
    assert "No requests in the last 30 days." in page
