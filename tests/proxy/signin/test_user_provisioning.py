"""The user of a subject after a sign-in, and its groups."""

import pytest
from django.contrib.auth.models import User
from django.test import Client, override_settings

from proxy.models import AuditEntry, Identity
from proxy.permissions.roles import AUDITOR, MEMBER, OWNER
from tests.proxy.admin import factories

from .oidc_flow import sign_in, sign_in_refusal

pytestmark = pytest.mark.django_db


class TestTheSubject:
    def test_stays_the_same_user_when_the_address_changes(self, provider):
        sign_in(provider)
        provider.claims = {"email": "alice.b@example.com", "preferred_username": "alice.b"}
        sign_in(provider)

        alice = User.objects.get()
        assert (alice.username, alice.email) == ("alice", "alice.b@example.com")
        assert Identity.objects.count() == 1

    def test_that_is_new_is_a_new_user_even_with_a_known_address(self, provider):
        ben = factories.staff("alice", groups=(OWNER,))
        User.objects.filter(pk=ben.pk).update(email="alice@example.com")
        client, _ = sign_in(provider)

        created = User.objects.exclude(pk=ben.pk).get()
        assert client.session["_auth_user_id"] == str(created.pk)
        assert created.username.startswith("alice-")
        assert {group.name for group in created.groups.all()} == {MEMBER}

    @pytest.mark.parametrize("name", ["admin", "gateway", "Admin"])
    def test_does_not_get_a_reserved_name(self, provider, name):
        provider.claims = {"preferred_username": name}
        sign_in(provider)

        assert User.objects.get().username.startswith(f"{name}-")

    def test_gets_the_name_of_a_deleted_user_without_the_requests(self, provider):
        factories.staff("alice")
        old = factories.record(opening={"user": "alice"})
        User.objects.all().delete()
        sign_in(provider)

        created = User.objects.get(username="alice")
        assert created.person.pk != old.user

    def test_gets_a_name_without_special_characters(self, provider):
        provider.claims = {"preferred_username": "<img src=x>\0 ä"}
        sign_in(provider)

        assert User.objects.get().username == "img-src-x"


class TestTheGroups:
    def test_removed_at_the_provider_are_removed_at_the_next_sign_in(self, provider):
        provider.claims = {"groups": ["leads", "bridge-platform"]}
        sign_in(provider)
        provider.claims = {"groups": ["audit"]}
        sign_in(provider)

        alice = User.objects.get()
        assert {group.name for group in alice.groups.all()} == {AUDITOR}

    @pytest.mark.parametrize("group", ["bridge-a b", "bridge-", "bridge-*", "elsewhere"])
    def test_of_a_role_without_a_valid_team_show_nothing(self, provider, group):
        factories.record()
        provider.claims = {"groups": ["leads", group]}
        client, _ = sign_in(provider)

        alice = User.objects.get()
        assert {group.name for group in alice.groups.all()} == {OWNER}
        assert client.get("/admin/proxy/exchange/").status_code == 403
        assert client.get("/api/v1/teams/").status_code == 403
        listed = client.get("/api/v1/requests/?from=2026-11-20&to=2026-11-21")
        assert listed.json()["data"] == []

    def test_all_removed_end_the_old_session(self, provider):
        session_client, _ = sign_in(provider)
        assert session_client.get("/admin/").status_code == 200
        provider.claims = {"groups": []}

        assert "in no group" in sign_in_refusal(*sign_in(provider))
        assert session_client.get("/admin/").status_code == 302
        alice = User.objects.get()
        assert not alice.is_staff
        assert not alice.groups.exists()

    def test_that_the_provider_does_not_control_stay(self, provider):
        sign_in(provider)
        choir = factories.Group.objects.create(name="choir")
        User.objects.get().groups.add(choir)
        sign_in(provider)

        assert {group.name for group in User.objects.get().groups.all()} == {MEMBER, "choir"}

    def test_are_read_from_the_userinfo_if_the_token_has_none(self, provider):
        provider.claims = {"groups": None}
        provider.userinfo = {"sub": "subject-1", "groups": ["leads"], "email": "x@example.com"}
        sign_in(provider)

        alice = User.objects.get()
        assert {group.name for group in alice.groups.all()} == {OWNER}
        assert alice.email == "alice@example.com"  # the claim in the token is used

    def test_of_another_subject_are_refused(self, provider):
        provider.claims = {"groups": None}
        provider.userinfo = {"sub": "subject-2", "groups": ["leads"]}

        assert "could not be verified" in sign_in_refusal(*sign_in(provider))

    @pytest.mark.parametrize(
        ("verified", "signed_in"), [(True, True), (False, False), ("true", False)]
    )
    def test_by_address_need_a_verified_address(self, provider, verified, signed_in):
        provider.claims = {"email_verified": verified}
        with override_settings(
            OIDC_GROUPS_CLAIM="email", OIDC_GROUPS=["alice@example.com=auditor"]
        ):
            _, response = sign_in(provider)

        assert (response["Location"] == "/admin/") is signed_in


class TestASuperuser:
    def test_keeps_its_permissions(self, provider):
        root = factories.superuser()
        Identity.objects.create(user=root, issuer=provider.issuer, subject="subject-1")
        provider.claims = {"groups": []}

        assert "in no group" in sign_in_refusal(*sign_in(provider))
        root.refresh_from_db()
        assert root.is_staff
        assert root.is_superuser

    def test_can_sign_in_with_a_password(self, provider):
        root = factories.superuser()
        root.set_password("correct horse battery")
        root.save()
        client = Client()
        form = {"username": "root", "password": "correct horse battery"}
        client.post("/admin/login/?state=x&code=y", form)

        assert client.get("/admin/").status_code == 200
        assert provider.requested_paths == []


def test_a_superuser_links_a_subject_to_an_existing_user(provider, client):
    ben = factories.staff("ben")
    client.force_login(factories.superuser())
    page = f"/admin/auth/user/{ben.pk}/change/"
    assert "identities-TOTAL_FORMS" in client.get(page).content.decode()

    client.post(
        page,
        {"username": "ben", "is_active": "on", "date_joined_0": "2026-01-01",
         "date_joined_1": "00:00:00", "identities-TOTAL_FORMS": 1, "identities-INITIAL_FORMS": 0,
         "identities-0-user": ben.pk, "identities-0-issuer": provider.issuer,
         "identities-0-subject": "subject-1"},
    )  # fmt: skip
    client, _ = sign_in(provider)

    assert client.session["_auth_user_id"] == str(ben.pk)
    assert AuditEntry.objects.filter(
        AuditEntry.acted_by("root"), model="identity", action="add"
    ).exists()


def test_an_inactive_user_is_refused(provider):
    sign_in(provider)
    User.objects.update(is_active=False)

    assert "deactivated" in sign_in_refusal(*sign_in(provider))
