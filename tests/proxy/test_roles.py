"""Owner, auditor, member: what each sees and may do, and that it stands in the log."""

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, Permission
from django.core.management import call_command

from proxy.models import Budget, Team
from proxy.roles import AUDITOR, MEMBER, OWNER, ROLES, make_roles
from proxy.visibility import reader_of_user, visible_budgets, visible_exchanges, visible_keys
from tests.proxy.admin import cast

pytestmark = pytest.mark.django_db

LIST = "/admin/proxy/exchange/"


@pytest.fixture
def ben(client):
    """A member with one key and one request; his team made another one."""
    user = cast.staff("ben", groups=(MEMBER,))
    user.own_key, _ = cast.key("ben", user=user)
    user.own = cast.record(key=user.own_key, opening={"user": "ben"})
    user.other = cast.record(key=cast.key("ci")[0])
    client.force_login(user)
    return user


def as_role(client, role):
    client.force_login(cast.staff(role, groups=(role,)))
    return client


def notes_of(obj):
    return list(
        LogEntry.objects.filter(object_id=str(obj.pk)).values_list(
            "user__username", "change_message"
        )
    )


def test_the_groups_have_what_the_table_says():
    for name, granted in ROLES.items():
        held = Group.objects.get(name=name).permissions.select_related("content_type")
        assert {f"{one.content_type.app_label}.{one.codename}" for one in held} == set(granted)


def test_no_role_reaches_users_or_the_addresses_of_upstreams():
    granted = {label for labels in ROLES.values() for label in labels}

    assert not [label for label in granted if label.startswith("auth.") and "view" not in label]
    about = {label for label in granted if label.endswith("upstream")}
    assert about == {"proxy.view_upstream", "proxy.probe_upstream"}


def test_a_group_that_was_changed_stays_as_it_is():
    owner = Group.objects.get(name=OWNER)
    owner.permissions.remove(Permission.objects.get(codename="view_transcript"))
    Group.objects.get(name=AUDITOR).delete()

    make_roles()

    assert not owner.permissions.filter(codename="view_transcript").exists()
    assert Group.objects.get(name=AUDITOR).permissions.exists()


class TestAMember:
    def test_sees_only_the_own_requests(self, client, ben):
        shown = client.get(LIST).content.decode()

        assert ben.own.pk in shown
        assert ben.other.pk not in shown

    @pytest.mark.parametrize("tail", ["change/", "part/", "change/?tab=record"])
    def test_reads_the_own_transcript_and_no_other(self, client, ben, tail):
        assert client.get(f"{LIST}{ben.own.pk}/{tail}").status_code == 200
        assert client.get(f"{LIST}{ben.other.pk}/{tail}").status_code == 404

    def test_the_reports_say_the_same(self, client, ben):
        listed = client.get("/api/v1/requests/?from=2026-11-20&to=2026-11-21").json()["data"]

        assert [row["id"] for row in listed] == [ben.own.pk]
        for path, row, status in (("", ben.own, 200), ("", ben.other, 404),
                                  ("/transcript", ben.own, 200), ("/transcript", ben.other, 404)):  # fmt: skip
            assert client.get(f"/api/v1/requests/{row.pk}{path}").status_code == status
        assert client.get("/api/v1/usage/?from=2026-11-20&to=2026-11-21").status_code == 403

    def test_sees_the_own_spend_limits_and_budgets(self, client, ben):
        team = Team.objects.get(name="platform")
        own = Budget.objects.create(user=ben, usd=10)
        of_key = Budget.objects.create(key=ben.own_key, usd=5)
        Budget.objects.create(team=team, usd=1000)

        reader = reader_of_user(ben)
        assert set(visible_budgets(reader)) == {own, of_key}
        assert [each.name for each in visible_keys(reader)] == ["ben"]
        budgets = client.get("/admin/proxy/budget/").content.decode()
        assert "user ben" in budgets
        assert "team platform" not in budgets
        keys = client.get("/admin/proxy/apikey/").content.decode()
        assert f"/admin/proxy/apikey/{ben.own_key.pk}/change/" in keys
        assert keys.count("/change/") == 1
        assert client.get("/api/v1/me/").json()["budgets"][0]["limit_usd"] == "10"

    def test_changes_nothing(self, client, ben):
        key = f"/admin/proxy/apikey/{ben.own_key.pk}"

        assert client.post(f"{key}/rotate/", {"overlap_h": 0}).status_code == 403
        assert client.post(f"{key}/revoke/").status_code == 403
        assert client.get("/admin/proxy/team/").status_code == 403
        assert client.get("/admin/proxy/upstream/").status_code == 403
        assert client.get(f"{LIST}{ben.own.pk}/body/request/").status_code == 403

    def test_who_loses_the_group_sees_nothing(self, client, ben):
        ben.groups.clear()

        assert client.get(LIST).status_code == 403
        assert client.get(f"{LIST}{ben.own.pk}/change/").status_code == 403


class TestAnAuditor:
    def test_sees_everything_and_changes_nothing(self, client):
        exchange = cast.record()
        team = cast.team()
        seen = as_role(client, AUDITOR)

        assert seen.get(f"{LIST}{exchange.pk}/change/?tab=request").status_code == 200
        assert seen.get("/admin/proxy/upstream/").status_code == 200
        assert seen.post(f"/admin/proxy/team/{team.pk}/change/", {"name": "x"}).status_code == 403
        assert seen.get("/admin/proxy/apikey/add/").status_code == 403


class TestAnOwner:
    def test_runs_the_teams_but_not_the_people(self, client):
        cast.team()
        seen = as_role(client, OWNER)
        user = cast.staff("ben")

        assert seen.get("/admin/proxy/apikey/add/").status_code == 200
        assert seen.get("/admin/proxy/team/add/").status_code == 200
        assert seen.get("/admin/proxy/upstream/add/").status_code == 403
        assert seen.get(f"/admin/auth/user/{user.pk}/change/").status_code == 200
        refused = seen.post(f"/admin/auth/user/{user.pk}/change/", {"is_superuser": "on"})
        assert refused.status_code == 403


class TestTheLog:
    def test_a_transcript_read_by_a_key_is_noted_with_the_key(self, client):
        exchange = cast.record()
        key, secret = cast.key("finance", scopes=["admin"])

        client.get(f"/api/v1/requests/{exchange.pk}/transcript", headers={"x-api-key": secret})

        ((who, message),) = notes_of(exchange)
        assert who == "gateway"
        assert f"with key platform/finance ({key.prefix}" in message
        assert secret not in message

    def test_a_transcript_read_in_a_session_is_noted_with_the_user(self, client, ben):
        client.get(f"/api/v1/requests/{ben.own.pk}/transcript")
        client.get(f"/api/v1/requests/{ben.other.pk}/transcript")

        assert [who for who, _ in notes_of(ben.own)] == ["ben"]
        assert notes_of(ben.other) == []

    def test_who_joins_a_group_stands_there_and_no_password(self, client):
        client.force_login(cast.superuser())
        ben = cast.staff("ben")
        member = Group.objects.get(name=MEMBER)

        client.post(
            f"/admin/auth/user/{ben.pk}/change/",
            {"username": "ben", "is_active": "on", "is_staff": "on", "groups": [member.pk],
             "date_joined_0": "2026-01-01", "date_joined_1": "00:00:00",
             "identities-TOTAL_FORMS": 0, "identities-INITIAL_FORMS": 0},
        )  # fmt: skip

        told = LogEntry.objects.get(object_id=str(ben.pk)).get_change_message()
        assert "member" in told
        assert "groups: [] → member" in told

    def test_a_changed_target_of_a_route_is_told_from_what_to_what(self, client):
        from proxy.models import Route, RouteTarget, Upstream

        client.force_login(cast.superuser())
        upstream = Upstream.objects.create(name="vllm", dialect="chat", base_url="http://vllm/v1")
        route = Route.objects.create(model="claude-*")
        target = RouteTarget.objects.create(route=route, upstream=upstream, model="qwen3")

        client.post(
            f"/admin/proxy/route/{route.pk}/change/",
            {"model": "claude-*", "position": 0, "targets-TOTAL_FORMS": 1,
             "targets-INITIAL_FORMS": 1, "targets-0-id": target.pk, "targets-0-route": route.pk,
             "targets-0-position": 0, "targets-0-upstream": upstream.pk,
             "targets-0-model": "qwen4", "targets-0-weight": 1},
        )  # fmt: skip

        entry = LogEntry.objects.get(object_id=str(route.pk))
        assert entry.user.username == "root"
        assert "model: qwen3 → qwen4" in entry.get_change_message()


@pytest.mark.django_db(transaction=True)
def test_migrating_twice_makes_the_groups_once():
    call_command("migrate", verbosity=0)

    assert set(Group.objects.values_list("name", flat=True)) >= {OWNER, AUDITOR, MEMBER}


def test_a_plain_staff_user_still_sees_only_rows_of_their_own_name():
    plain = cast.staff("olga")
    cast.record()

    assert not visible_exchanges(reader_of_user(plain)).exists()
