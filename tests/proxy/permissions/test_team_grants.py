"""A role counts only in the teams that the user's groups grant: fewer groups never show more."""

import importlib
from types import SimpleNamespace

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, User
from django.db import connection

from proxy.models import Budget, Route, Team, Upstream
from proxy.permissions.roles import ALL_TEAMS, AUDITOR, MEMBER, OWNER
from tests.fakes.servers.served_client import ServedClient
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db

DAY = "from=2026-11-20&to=2026-11-21"
LISTS = ("exchange", "team", "apikey", "route", "budget", "price", "upstream", "pause", "drift",
         "auditentry", "webhook", "savedreport", "upstreampolicy")  # fmt: skip


@pytest.fixture
def rows():
    """One request, key, budget, route and price of each of two teams."""
    for name in ("red", "blue"):
        key, _ = factories.key(f"{name}-key", of=name)
        factories.record(team=name, key=key, opening={"session_id": f"{name}-session"})
        Budget.objects.create(team=Team.objects.get(name=name), usd=10)
        Route.objects.create(model=f"{name}-model", team=Team.objects.get(name=name))
    Route.objects.create(model="shared-model")
    Upstream.objects.create(name="vllm-east", dialect="chat", base_url="http://127.0.0.1:9")
    factories.price()


@pytest.fixture
def root():
    client = ServedClient()
    client.force_login(factories.superuser())
    return client


def browser(user):
    client = ServedClient()
    client.force_login(user)
    return client


def pages(client):
    """Return the content of all lists that the user may open."""
    paths = ["/admin/", *(f"/admin/proxy/{name}/" for name in LISTS), "/admin/auth/user/",
             f"/api/v1/requests/?{DAY}", "/api/v1/teams/", "/api/v1/keys/", "/api/v1/routes/",
             "/api/v1/budgets/", "/api/v1/upstreams/", "/api/v1/prices/"]  # fmt: skip
    return "".join(
        response.content.decode()
        for path in paths
        if (response := client.get(path)).status_code == 200
    )


@pytest.mark.parametrize("role", [OWNER, AUDITOR])
def test_the_last_team_that_is_removed_leaves_nothing(rows, root, role):
    olga = factories.staff("olga", groups=(role, "team:red"), teams=())
    client = browser(olga)
    before = pages(client)
    assert "red-key" in before
    assert "blue-key" not in before

    changed = root.patch("/api/v1/users/olga/", {"groups": [role]}, "application/json")

    assert (changed.status_code, changed.json()["teams"]) == (200, [])
    after = pages(client)
    words = ("red-key", "blue-key", "red-model", "shared-model", "vllm-east", "gpt-5.2")
    assert [word for word in words if word in after] == []


def test_a_role_without_a_team_writes_nothing(rows):
    olga = factories.staff("olga", "delete_team", groups=(OWNER,), teams=())
    client = browser(olga)
    red = Team.objects.get(name="red")

    for path, body in (
        (f"/admin/proxy/team/{red.pk}/change/", {"name": "x"}),
        (f"/admin/proxy/team/{red.pk}/delete/", {"post": "yes"}),
        ("/admin/proxy/team/add/", {"name": "new"}),
        ("/admin/proxy/price/add/", {"model": "m"}),
        ("/admin/proxy/stop/", {"kind": "team", "name": "red"}),
        ("/admin/proxy/purge/", {}),
    ):
        assert client.post(path, body).status_code in {403, 404}, path
    assert client.post("/api/v1/teams/", {"name": "new"}, "application/json").status_code == 403


@pytest.mark.parametrize("role", [OWNER, AUDITOR])
def test_the_group_of_all_teams_grants_all(rows, role):
    shown = pages(browser(factories.staff("olga", groups=(role, ALL_TEAMS), teams=())))

    words = ("red-key", "blue-key", "shared-model", "vllm-east")
    assert [word for word in words if word not in shown] == []


def test_a_member_needs_no_team_for_own_requests(rows):
    ben = factories.staff("ben", groups=(MEMBER,), teams=())
    key, _ = factories.key("ben-key", of="red", user=ben)
    own = factories.record(team="red", key=key, opening={"user": "ben"})
    client = browser(ben)

    listed = client.get(f"/api/v1/requests/?{DAY}").json()["data"]
    assert [row["id"] for row in listed] == [own.pk]
    assert client.get(f"/admin/proxy/exchange/{own.pk}/change/").status_code == 200


def test_a_member_of_all_teams_makes_keys_only_in_named_teams(rows):
    Team.objects.update(member_keys={"count": 3})
    client = browser(factories.staff("ben", groups=(MEMBER, ALL_TEAMS, "team:red"), teams=()))

    made = [
        client.post("/api/v1/me/keys/", {"name": "own", "team": name}, "application/json")
        for name in ("red", "blue")
    ]
    assert [response.status_code for response in made] == [201, 400]


def test_the_form_of_a_user_says_what_the_groups_show(root):
    olga = factories.staff("olga", groups=(OWNER,), teams=())
    page = root.get(f"/admin/auth/user/{olga.pk}/change/").content.decode()
    assert "no team: add a group team:&lt;name&gt;, or team:* for all teams" in page

    olga.groups.add(Group.objects.get(name="team:*"))
    page = root.get(f"/admin/auth/user/{olga.pk}/change/").content.decode()
    assert "all teams" in page


@pytest.mark.parametrize(
    ("groups", "teams"),
    [
        ((OWNER,), []),
        ((OWNER, "team:red", "team:blue"), ["blue", "red"]),
        ((AUDITOR, "team:*", "team:red"), ["*"]),
    ],
)
def test_the_api_names_the_teams_of_a_user(root, groups, teams):
    factories.staff("olga", groups=groups, teams=())

    assert root.get("/api/v1/users/olga/").json()["teams"] == teams


def test_the_upgrade_grants_all_teams_to_roles_without_a_team():
    people = {
        "owner": (OWNER,),
        "auditor": (AUDITOR,),
        "lead": (OWNER, "team:red"),
        "member": (MEMBER,),
        "nobody": (),
    }
    for name, groups in people.items():
        factories.staff(name, groups=groups, teams=())
    factories.staff("clerk", "view_exchange", teams=())
    factories.superuser()
    migration = importlib.import_module("proxy.migrations.0006_all_teams")

    migration.grant_all_teams(apps, SimpleNamespace(connection=connection))

    granted = User.objects.filter(groups__name=ALL_TEAMS)
    assert set(granted.values_list("username", flat=True)) == {"owner", "auditor", "clerk"}
