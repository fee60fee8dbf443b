"""The name of a deleted person or a renamed team is not given to another one."""

import html
import io
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import CommandError, call_command

from proxy.audit_log import Action, Actor, acting_as, record
from proxy.config.apply import apply
from proxy.config.load import read
from proxy.models import ActorKind, Team
from proxy.secrets import ConfigError
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


def test_nobody_gets_the_name_of_a_deleted_person_of_the_audit_log(api):
    gone = factories.staff("gone", "view_auditentry", "view_exchange")
    with acting_as(Actor(kind=ActorKind.USER, user="gone")):
        record(Action.READ, detail="a transcript")
    gone.delete()

    assert api("post", "users/", {"name": "gone"}).status_code == 400


@pytest.mark.parametrize("interactive", [False, True])
def test_createsuperuser_refuses_the_name_of_a_deleted_person(monkeypatch, interactive):
    factories.record(opening={"user": "gone"})
    answers = iter(["gone", "new"])
    monkeypatch.setattr("builtins.input", lambda *_: next(answers))
    monkeypatch.setattr("getpass.getpass", lambda *_: "a long enough password")
    stdin = SimpleNamespace(isatty=lambda: True)
    said = io.StringIO()

    if interactive:
        call_command("createsuperuser", email="a@example.com", stdin=stdin, stderr=said)
    else:
        with pytest.raises(CommandError) as refused:
            call_command("createsuperuser", username="gone", email="a@x.de", interactive=False)
        said.write(str(refused.value))
        call_command("createsuperuser", username="new", email="a@x.de", interactive=False)

    assert "have a deleted user of the name 'gone'" in said.getvalue()
    assert list(User.objects.filter(is_superuser=True).values_list("username", flat=True)) == [
        "new"
    ]


@pytest.fixture
def beta():
    """A team with a request, a lead and a budget."""
    key, _ = factories.key("words", of="beta")
    factories.record(key=key, opening={"user": "ben", "team": "beta"})
    factories.staff("lead", groups=("owner", "team:beta"))
    return Team.objects.get(name="beta")


def test_a_team_with_requests_keeps_its_name(api, root, beta):
    renamed = api("patch", "teams/beta/", {"name": "old"})
    form = {"name": "old", "store": "full", "retention_days": 9}
    changed = root.post(f"/admin/proxy/team/{beta.pk}/change/", form)

    assert renamed.status_code == 400
    for response in (renamed, changed):
        assert "the ledger has requests of" in html.unescape(response.content.decode())
    assert Team.objects.filter(name="beta").exists()
    assert api("patch", "teams/beta/", {"retention_days": 7}).status_code == 200


def test_no_team_gets_a_name_of_the_ledger(api, root):
    factories.record(opening={"team": "beta"})
    alpha, _ = Team.objects.get_or_create(name="alpha")
    form = {"name": "beta", "store": "full", "retention_days": 9}

    responses = [
        api("patch", "teams/alpha/", {"name": "beta"}),
        api("post", "teams/", {"name": "beta"}),
        root.post("/admin/proxy/team/add/", form),
        root.post(f"/admin/proxy/team/{alpha.pk}/change/", form),
    ]

    assert [response.status_code for response in responses] == [400, 400, 200, 200]
    for response in responses:
        assert "the ledger has requests of a team" in response.content.decode()
    with pytest.raises(ConfigError, match=r"teams\[0\].name: the ledger has requests of a team"):
        apply(read('[[teams]]\nname = "beta"\n'))
    with pytest.raises(CommandError, match="no team 'beta'"):
        call_command("createkey", "--team", "beta", "--name", "k")
    assert set(Team.objects.values_list("name", flat=True)) >= {"alpha"}
    assert not Team.objects.filter(name="beta").exists()


@pytest.mark.parametrize("is_known", [False, True])
def test_the_group_of_a_renamed_team_follows(api, is_known):
    Team.objects.create(name="early")
    lead = factories.staff("lead", groups=("owner", "team:early"))
    if is_known:
        Group.objects.create(name="team:late")

    assert api("patch", "teams/early/", {"name": "late"}).status_code == 200

    assert set(lead.groups.values_list("name", flat=True)) == {"owner", "team:late"}
    assert not Group.objects.filter(name="team:early").exists()


def test_the_group_of_a_deleted_team_goes(api, root):
    for name, delete in (
        ("early", lambda _: api("delete", "teams/early/", {})),
        ("later", lambda team: root.post(f"/admin/proxy/team/{team.pk}/delete/", {"post": "yes"})),
    ):
        team = Team.objects.create(name=name)
        lead = factories.staff(f"lead-{name}", groups=("owner", f"team:{name}"))
        assert delete(team).status_code in {204, 302}

        assert not Group.objects.filter(name=f"team:{name}").exists()
        assert api("post", "teams/", {"name": name}).status_code == 201
        assert set(lead.groups.values_list("name", flat=True)) == {"owner"}
