"""The roles owner, auditor and member: what each may read and write, and the log entries."""

import pytest
from django.contrib.auth.models import Group, Permission
from django.core.management import call_command
from django.db.models.signals import post_migrate

from proxy.bootstrap import first_start
from proxy.models import Budget, Team
from proxy.permissions.roles import (
    AUDITOR,
    MEMBER,
    OWNER,
    ROLES,
    STOP_REQUESTS,
    are_complete,
    make_roles,
)
from proxy.permissions.row_permissions import (
    reader_of_user,
    visible_budgets,
    visible_exchanges,
    visible_keys,
)
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db

LIST = "/admin/proxy/exchange/"


@pytest.fixture
def ben(client):
    """A member with one key and one request; another request is of the same team."""
    user = factories.staff("ben", groups=(MEMBER,))
    user.own_key, _ = factories.key("ben", user=user)
    user.own = factories.record(key=user.own_key, opening={"user": "ben"})
    user.other = factories.record(key=factories.key("ci")[0])
    client.force_login(user)
    return user


def as_role(client, role):
    client.force_login(factories.staff(role, groups=(role,)))
    return client


def test_the_groups_have_the_permissions_of_the_table():
    for name, granted in ROLES.items():
        permissions = Group.objects.get(name=name).permissions.select_related("content_type")
        assert {f"{one.content_type.app_label}.{one.codename}" for one in permissions} == set(
            granted
        )


def test_no_role_can_change_users_or_upstreams():
    granted = {label for labels in ROLES.values() for label in labels}

    assert not [label for label in granted if label.startswith("auth.") and "view" not in label]
    upstream_permissions = {label for label in granted if label.endswith("upstream")}
    assert upstream_permissions == {"proxy.view_upstream", "proxy.probe_upstream"}


def test_changes_to_a_group_are_preserved():
    owner = Group.objects.get(name=OWNER)
    owner.permissions.remove(Permission.objects.get(codename="view_transcript"))
    Group.objects.get(name=AUDITOR).delete()

    make_roles()

    assert not owner.permissions.filter(codename="view_transcript").exists()
    assert Group.objects.get(name=AUDITOR).permissions.exists()


class TestAMember:
    def test_sees_only_own_requests(self, client, ben):
        shown = client.get(LIST).content.decode()

        assert ben.own.pk in shown
        assert ben.other.pk not in shown

    @pytest.mark.parametrize("tail", ["change/", "part/", "change/?tab=record"])
    def test_reads_only_own_transcripts(self, client, ben, tail):
        assert client.get(f"{LIST}{ben.own.pk}/{tail}").status_code == 200
        assert client.get(f"{LIST}{ben.other.pk}/{tail}").status_code == 404

    def test_sees_only_own_requests_in_the_reports(self, client, ben):
        listed = client.get("/api/v1/requests/?from=2026-11-20&to=2026-11-21").json()["data"]

        assert [row["id"] for row in listed] == [ben.own.pk]
        for path, row, status in (("", ben.own, 200), ("", ben.other, 404),
                                  ("/transcript", ben.own, 200), ("/transcript", ben.other, 404)):  # fmt: skip
            assert client.get(f"/api/v1/requests/{row.pk}{path}").status_code == status
        assert client.get("/api/v1/usage/?from=2026-11-20&to=2026-11-21").status_code == 403

    def test_sees_own_spend_limits_and_budgets(self, client, ben):
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

    def test_cannot_write(self, client, ben):
        key = f"/admin/proxy/apikey/{ben.own_key.pk}"

        assert client.post(f"{key}/rotate/", {"overlap_h": 0}).status_code == 403
        assert client.get("/admin/proxy/team/").status_code == 403
        assert client.get("/admin/proxy/upstream/").status_code == 403
        assert client.get(f"{LIST}{ben.own.pk}/body/request/").status_code == 403

    def test_without_the_group_sees_nothing(self, client, ben):
        ben.groups.clear()

        assert client.get(LIST).status_code == 403
        assert client.get(f"{LIST}{ben.own.pk}/change/").status_code == 403


class TestAnAuditor:
    def test_sees_everything_and_cannot_write(self, client):
        exchange = factories.record()
        team = factories.team()
        role_client = as_role(client, AUDITOR)

        assert role_client.get(f"{LIST}{exchange.pk}/change/?tab=request").status_code == 200
        assert role_client.get("/admin/proxy/upstream/").status_code == 200
        assert (
            role_client.post(f"/admin/proxy/team/{team.pk}/change/", {"name": "x"}).status_code
            == 403
        )
        assert role_client.get("/admin/proxy/apikey/add/").status_code == 403


class TestAnOwner:
    def test_writes_teams_but_not_users(self, client):
        factories.team()
        role_client = as_role(client, OWNER)
        user = factories.staff("ben")

        assert role_client.get("/admin/proxy/apikey/add/").status_code == 200
        assert role_client.get("/admin/proxy/team/add/").status_code == 200
        assert role_client.get("/admin/proxy/upstream/add/").status_code == 403
        assert role_client.get(f"/admin/auth/user/{user.pk}/change/").status_code == 200
        refused = role_client.post(f"/admin/auth/user/{user.pk}/change/", {"is_superuser": "on"})
        assert refused.status_code == 403


class TestTheLog:
    def test_reading_a_transcript_with_a_key_is_logged_with_the_key(self, client):
        exchange = factories.record()
        _, secret = factories.key("finance", scopes=["admin"])

        client.get(f"/api/v1/requests/{exchange.pk}/transcript", headers={"x-api-key": secret})

        (entry,) = factories.audit(object_id=exchange.pk)
        assert (entry.actor_kind, entry.key) == ("key", "platform/finance")
        assert (entry.action, entry.names.team, entry.address) == ("read", "platform", "127.0.0.1")
        assert secret not in str(vars(entry))

    def test_reading_a_transcript_in_a_session_is_logged_with_the_user(self, client, ben):
        client.get(f"/api/v1/requests/{ben.own.pk}/transcript")
        client.get(f"/api/v1/requests/{ben.other.pk}/transcript")

        (entry,) = factories.audit(object_id=ben.own.pk)
        assert (entry.names.user, entry.action, entry.names.subject) == ("ben", "read", "ben")
        assert factories.audit(object_id=ben.other.pk) == []

    def test_a_changed_group_is_logged_without_the_password(self, client):
        client.force_login(factories.superuser())
        ben = factories.staff("ben")
        member = Group.objects.get(name=MEMBER)

        client.post(
            f"/admin/auth/user/{ben.pk}/change/",
            {"username": "ben", "is_active": "on", "is_staff": "on", "groups": [member.pk],
             "date_joined_0": "2026-01-01", "date_joined_1": "00:00:00",
             "identities-TOTAL_FORMS": 0, "identities-INITIAL_FORMS": 0},
        )  # fmt: skip

        entries = factories.audit(object_id=str(ben.pk), model="user", user="root")
        assert {"groups": {"after": ["member"]}} in [entry.changes for entry in entries]

    def test_a_changed_target_of_a_route_is_logged_with_old_and_new_value(self, client):
        from proxy.models import Route, RouteTarget, Upstream

        client.force_login(factories.superuser())
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

        (entry,) = factories.audit(object_id=str(target.pk), model="target")
        assert (entry.names.user, entry.changes) == (
            "root",
            {"model": {"before": "qwen3", "after": "qwen4"}},
        )


@pytest.mark.django_db(transaction=True)
def test_migrating_twice_creates_the_groups_once():
    call_command("migrate", verbosity=0)

    assert set(Group.objects.values_list("name", flat=True)) >= {OWNER, AUDITOR, MEMBER}


@pytest.mark.django_db(transaction=True)
def test_a_start_creates_what_is_missing_without_a_migration():
    """For example after an upgrade that only adds a permission of this kind."""
    Group.objects.filter(name=AUDITOR).delete()
    Permission.objects.filter(codename=STOP_REQUESTS).delete()

    first_start.migrate()

    assert are_complete()


def test_a_start_with_all_migrations_runs_no_migrate_command():
    signals = []

    def receive(sender, **_):
        signals.append(sender)

    post_migrate.connect(receive)
    try:
        first_start.migrate()
    finally:
        post_migrate.disconnect(receive)

    assert signals == []


@pytest.mark.django_db(transaction=True)
def test_an_upgrade_grants_only_permissions_that_are_new():
    owner = Group.objects.get(name=OWNER)
    Permission.objects.get(codename="view_drift").delete()  # so that it is new in this upgrade
    owner.permissions.remove(Permission.objects.get(codename="view_transcript"))

    call_command("migrate", verbosity=0)

    granted = owner.permissions.values_list("content_type__app_label", "codename")
    assert {*ROLES[OWNER]} - {".".join(one) for one in granted} == {"proxy.view_transcript"}


def test_a_staff_user_without_a_role_sees_only_own_rows():
    plain = factories.staff("olga")
    factories.record()

    assert not visible_exchanges(reader_of_user(plain)).exists()
