"""The name of a deleted person or a renamed team is not given to another one."""

import pytest
from django.contrib.auth.models import User

from proxy.models import Team
from tests.fakes.servers.served_client import ServedClient
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def api():
    client = ServedClient()
    secret = factories.key("config", scopes=["admin", "config:write"])[1]

    def call(method, path, body):
        send = getattr(client, method)
        return send(f"/api/v1/{path}", body, "application/json", headers={"x-api-key": secret})

    return call


@pytest.fixture
def root():
    client = ServedClient()
    client.force_login(factories.superuser())
    return client


def test_no_new_or_renamed_user_gets_a_name_of_the_ledger(api, root):
    factories.record(opening={"user": "gone"})
    kim = factories.staff("kim")
    form = {"username": "gone", "usable_password": "false", "password1": "", "password2": ""}
    change = {"username": "gone", "date_joined_0": "2026-01-01", "date_joined_1": "00:00:00"}

    created = api("post", "users/", {"name": "gone"})
    renamed = api("patch", "users/kim/", {"name": "gone"})
    added = root.post("/admin/auth/user/add/", form)
    changed = root.post(f"/admin/auth/user/{kim.pk}/change/", change)

    assert created.status_code == 400
    assert renamed.status_code == 400
    for response in (added, changed):
        assert response.status_code == 200
        assert "the ledger has requests of it" in response.content.decode()
    assert not User.objects.filter(username="gone").exists()


def test_a_free_name_is_given(api):
    assert api("post", "users/", {"name": "new"}).status_code == 201
    assert api("patch", "users/new/", {"email": "new@example.com"}).status_code == 200


def test_two_renames_do_not_give_a_team_the_requests_of_another(api):
    alpha, _ = Team.objects.get_or_create(name="alpha")
    factories.record(
        key=factories.key("words", of="beta")[0], opening={"user": "ben", "team": "beta"}
    )

    first = api("patch", "teams/beta/", {"name": "old"})
    second = api("patch", "teams/alpha/", {"name": "beta"})
    new = api("post", "teams/", {"name": "beta"})

    assert first.status_code == 200, first.content
    assert second.status_code == 400
    assert new.status_code == 400
    assert b"the ledger has requests of a team" in second.content
    alpha.refresh_from_db()
    assert alpha.name == "alpha"
