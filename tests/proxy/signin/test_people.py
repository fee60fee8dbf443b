"""Who somebody is after a sign-in, and what their groups let them do."""

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client, override_settings

from proxy.models import Identity
from proxy.roles import AUDITOR, MEMBER, OWNER
from tests.proxy.admin import cast

from .walking import refused, signed_in

pytestmark = pytest.mark.django_db


class TestTheSubject:
    def test_stays_the_same_user_when_the_address_changes(self, provider):
        signed_in(provider)
        provider.claims = {"email": "alice.b@example.com", "preferred_username": "alice.b"}
        signed_in(provider)

        alice = User.objects.get()
        assert (alice.username, alice.email) == ("alice", "alice.b@example.com")
        assert Identity.objects.count() == 1

    def test_of_somebody_else_is_somebody_else_whatever_the_address(self, provider):
        ben = cast.staff("alice", groups=(OWNER,))
        User.objects.filter(pk=ben.pk).update(email="alice@example.com")
        client, _ = signed_in(provider)

        made = User.objects.exclude(pk=ben.pk).get()
        assert client.session["_auth_user_id"] == str(made.pk)
        assert made.username.startswith("alice-")
        assert {group.name for group in made.groups.all()} == {MEMBER}

    @pytest.mark.parametrize("name", ["admin", "gateway", "Admin"])
    def test_gets_no_name_that_means_something_here(self, provider, name):
        provider.claims = {"preferred_username": name}
        signed_in(provider)

        assert User.objects.get().username.startswith(f"{name}-")

    def test_gets_no_name_under_which_others_have_asked_before(self, provider):
        cast.record(opening={"user": "alice"})
        signed_in(provider)

        assert User.objects.get().username.startswith("alice-")

    def test_has_a_name_that_a_page_can_show(self, provider):
        provider.claims = {"preferred_username": "<img src=x>\0 ä"}
        signed_in(provider)

        assert User.objects.get().username == "img-src-x"


class TestTheGroups:
    def test_that_were_taken_away_there_are_gone_here_at_the_next_sign_in(self, provider):
        provider.claims = {"groups": ["leads", "bridge-platform"]}
        signed_in(provider)
        provider.claims = {"groups": ["audit"]}
        signed_in(provider)

        alice = User.objects.get()
        assert {group.name for group in alice.groups.all()} == {AUDITOR}

    def test_all_taken_away_end_the_old_session_too(self, provider):
        old, _ = signed_in(provider)
        assert old.get("/admin/").status_code == 200
        provider.claims = {"groups": []}

        assert "in no group" in refused(*signed_in(provider))
        assert old.get("/admin/").status_code == 302
        alice = User.objects.get()
        assert not alice.is_staff
        assert not alice.groups.exists()

    def test_that_are_none_of_the_providers_stay(self, provider):
        signed_in(provider)
        choir = cast.Group.objects.create(name="choir")
        User.objects.get().groups.add(choir)
        signed_in(provider)

        assert {group.name for group in User.objects.get().groups.all()} == {MEMBER, "choir"}

    def test_come_from_the_userinfo_where_the_token_has_none(self, provider):
        provider.claims = {"groups": None}
        provider.userinfo = {"sub": "subject-1", "groups": ["leads"], "email": "x@example.com"}
        signed_in(provider)

        alice = User.objects.get()
        assert {group.name for group in alice.groups.all()} == {OWNER}
        assert alice.email == "alice@example.com"  # the signed word wins

    def test_of_another_person_do_not_count(self, provider):
        provider.claims = {"groups": None}
        provider.userinfo = {"sub": "subject-2", "groups": ["leads"]}

        assert "could not be verified" in refused(*signed_in(provider))

    @pytest.mark.parametrize(
        ("verified", "enters"), [(True, True), (False, False), ("true", False)]
    )
    def test_by_address_need_a_verified_one(self, provider, verified, enters):
        provider.claims = {"email_verified": verified}
        with override_settings(
            OIDC_GROUPS_CLAIM="email", OIDC_GROUPS=["alice@example.com=auditor"]
        ):
            _, answer = signed_in(provider)

        assert (answer["Location"] == "/admin/") is enters


class TestASuperuser:
    def test_keeps_the_emergency_door(self, provider):
        root = cast.superuser()
        Identity.objects.create(user=root, issuer=provider.issuer, subject="subject-1")
        provider.claims = {"groups": []}

        assert "in no group" in refused(*signed_in(provider))
        root.refresh_from_db()
        assert root.is_staff
        assert root.is_superuser

    def test_signs_in_with_a_password_beside_the_provider(self, provider):
        root = cast.superuser()
        root.set_password("correct horse battery")
        root.save()
        client = Client()
        form = {"username": "root", "password": "correct horse battery"}
        client.post("/admin/login/?state=x&code=y", form)

        assert client.get("/admin/").status_code == 200
        assert provider.asked == []


def test_a_superuser_joins_a_subject_to_a_user_who_exists(provider, client):
    ben = cast.staff("ben")
    client.force_login(cast.superuser())
    page = f"/admin/auth/user/{ben.pk}/change/"
    assert "identities-TOTAL_FORMS" in client.get(page).content.decode()

    client.post(
        page,
        {"username": "ben", "is_active": "on", "date_joined_0": "2026-01-01",
         "date_joined_1": "00:00:00", "identities-TOTAL_FORMS": 1, "identities-INITIAL_FORMS": 0,
         "identities-0-user": ben.pk, "identities-0-issuer": provider.issuer,
         "identities-0-subject": "subject-1"},
    )  # fmt: skip
    client, _ = signed_in(provider)

    assert client.session["_auth_user_id"] == str(ben.pk)
    assert LogEntry.objects.filter(object_id=str(ben.pk), user__username="root").exists()


def test_who_is_switched_off_here_stays_outside(provider):
    signed_in(provider)
    User.objects.update(is_active=False)

    assert "switched off" in refused(*signed_in(provider))
