"""Names are changed and given anew without effect on who sees what: rows belong to ids."""

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.core.management import call_command

from proxy.audit_log import Action, record
from proxy.config.apply import apply
from proxy.config.load import read
from proxy.counters.budget_periods import window
from proxy.ledger.posting.budget_sync import spent_nanousd
from proxy.models import ApiKey, Budget, Exchange, Team
from tests.fakes.servers.served_client import ServedClient
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db

WORDS = "the plans of the northern harbour"
MONTH = "from=2026-11-01&to=2026-12-01"


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
    return signed_in(factories.superuser())


def signed_in(user):
    client = ServedClient()
    client.force_login(User.objects.get(pk=user.pk))
    return client


def lead_of(team):
    return factories.staff(
        f"lead-{team}", "view_exchange", "view_transcript", groups=(f"team:{team}",)
    )


def request_of(team, user="", **fields):
    key, _ = factories.key(f"key-{ApiKey.objects.count()}", of=team)
    body = factories.request_body(messages=[{"role": "user", "content": WORDS}])
    return factories.record(key=key, body=body, opening={"user": user, "team": team}, **fields)


def listed(client, **headers):
    rows = client.get(f"/api/v1/requests/?{MONTH}", headers=headers).json()["data"]
    return [row["id"] for row in rows]


def grouped(client, report, name):
    bucket = "&bucket=all" if report == "usage" else ""
    rows = client.get(f"/api/v1/{report}/?{MONTH}{bucket}&group_by={name}").json()["data"]
    return [row[name] for row in rows]


def test_two_renames_show_no_transcript_of_another_team(api, root):
    for name in ("north", "south"):
        factories.team(name)
    leads = {name: lead_of(name) for name in ("north", "south")}
    own = {name: request_of(name) for name in ("north", "south")}

    first = api("patch", "teams/north/", {"name": "old"})
    south = Team.objects.get(name="south")
    form = {"name": "north", "store": "full", "retention_days": 9}
    second = root.post(f"/admin/proxy/team/{south.pk}/change/", form)

    assert (first.status_code, second.status_code) == (200, 302)
    for name, other in (("north", "south"), ("south", "north")):
        client = signed_in(leads[name])
        assert listed(client) == [own[name].pk]
        assert WORDS in factories.page(client, own[name]).content.decode()
        assert factories.page(client, own[other]).status_code == 404
        transcript = client.get(f"/api/v1/requests/{own[other].pk}/transcript/")
        assert transcript.status_code == 404
        found = client.get("/api/v1/search/?q=northern+harbour").json()["data"]
        assert [each["request_id"] for each in found] == [own[name].pk]
    assert grouped(root, "usage", "team") == ["north", "old"]
    assert "old / key" in factories.page(root, own["north"]).content.decode()


def test_the_name_of_a_deleted_person_shows_none_of_the_old_words(api, root):
    gone = factories.staff("gone", "view_own_exchange", "view_transcript")
    old = request_of("platform", "gone")
    record(Action.READ, old, detail="a reading of the old words")
    gone.delete()

    assert api("post", "users/", {"name": "gone"}).status_code == 201

    heir = User.objects.get(username="gone")
    User.objects.filter(pk=heir.pk).update(is_staff=True)
    names = ("view_own_exchange", "view_transcript")
    heir.user_permissions.set(Permission.objects.filter(codename__in=names))
    new = request_of("platform", "gone", at=factories.NOON.replace(hour=13))
    client = signed_in(heir)
    assert listed(client) == [new.pk]
    assert factories.page(client, old).status_code == 404
    assert "gone" not in client.get("/admin/my-readings/").content.decode().partition("<main")[2]
    assert grouped(root, "usage", "user") == ["gone", "gone"], "one name, two groups"
    both = root.get(f"/api/v1/requests/?{MONTH}&user=gone").json()["data"]
    assert [row["user"]["id"] for row in both] == ["gone", "gone"]


def test_a_freed_team_name_shows_and_counts_nothing_of_the_earlier_team(api, root):
    old = request_of("harbour")
    assert api("patch", "teams/harbour/", {"name": "port"}).status_code == 200

    assert api("post", "teams/", {"name": "harbour"}).status_code == 201

    client = signed_in(lead_of("harbour"))
    assert listed(client) == []
    assert factories.page(client, old).status_code == 404
    harbour, port = (Team.objects.get(name=name) for name in ("harbour", "port"))
    secret = ApiKey.issue(harbour, "reader", scopes=["reports"])[1]
    assert listed(ServedClient(), **{"x-api-key": secret}) == []
    Exchange.objects.filter(pk=old.pk).update(cost_nanousd=7)
    for team, requests in ((port, 1), (harbour, 0)):
        budget = Budget.objects.create(team=team, usd=5)
        when = window(budget.period, budget.zone, old.created.timestamp())
        assert budget.sums_of_usage(when.start, when.end, "requests") == [requests]
        assert spent_nanousd(budget, when) == 0
    assert root.get(f"/api/v1/requests/{old.pk}/").json()["team"] == {"id": "port", "name": "port"}
    assert [row["id"] for row in root.get(f"/api/v1/requests/?{MONTH}&team=port").json()["data"]]


def test_a_freed_name_is_given_by_the_file_and_by_commands(api):
    request_of("beta", "gone")
    assert api("patch", "teams/beta/", {"name": "old"}).status_code == 200

    apply(read('[[teams]]\nname = "beta"\n'))
    call_command("createsuperuser", username="gone", email="a@x.de", interactive=False)

    assert Team.objects.get(name="beta").ledger_id != Team.objects.get(name="old").ledger_id
    assert User.objects.get(username="gone").person.pk != "gone"


def test_a_renamed_person_and_key_show_their_new_names(api, root):
    kim = factories.staff("kim", "view_own_exchange", "view_transcript")
    row = request_of("platform", "kim")
    ApiKey.objects.filter(pk=row.key_id).update(name="laptop")

    assert api("patch", "users/kim/", {"name": "kimberly"}).status_code == 200

    assert listed(signed_in(kim)) == [row.pk]
    for report, name, shown in (
        ("usage", "user", "kimberly"),
        ("usage", "key", "laptop"),
        ("outcomes", "user", "kimberly"),
        ("outcomes", "key", "laptop"),
        ("stop_reasons", "user", "kimberly"),
    ):
        assert grouped(root, report, name) == [shown]
        filtered = f"/api/v1/{report}/?{MONTH}&group_by={name}&{name}={shown}"
        assert root.get(filtered).json()["data"][0]["requests"] == 1
    found = root.get(f"/api/v1/requests/?{MONTH}&q=platform/laptop").json()["data"]
    assert [each["key"]["name"] for each in found] == ["laptop"]


def test_a_row_of_a_team_and_a_person_that_are_gone_shows_their_names(root):
    row = factories.record(opening={"team": "closed", "user": "former", "key_id": None})

    shown = root.get(f"/api/v1/requests/?{MONTH}&team=closed&user=former").json()["data"]

    assert [(each["id"], each["team"]["name"], each["user"]["id"]) for each in shown] == [
        (row.pk, "closed", "former")
    ]


def test_a_user_has_another_name_than_each_other_user(api):
    assert api("post", "users/", {"name": "new"}).status_code == 201
    assert api("patch", "users/new/", {"email": "new@example.com"}).status_code == 200
    assert api("post", "users/", {"name": "NEW"}).status_code == 400


@pytest.mark.parametrize("is_known", [False, True])
def test_the_group_of_a_renamed_team_follows_and_grants_it_to_nobody_else(api, is_known):
    Team.objects.create(name="early")
    lead = factories.staff("lead", groups=("owner", "team:early"))
    if is_known:
        waiting = factories.staff("waiting", groups=("owner",), teams=())
        waiting.groups.add(Group.objects.create(name="team:late"))

    assert api("patch", "teams/early/", {"name": "late"}).status_code == 200

    assert set(lead.groups.values_list("name", flat=True)) == {"owner", "team:late"}
    assert not Group.objects.filter(name="team:early").exists()
    if is_known:
        assert set(waiting.groups.values_list("name", flat=True)) == {"owner"}


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
