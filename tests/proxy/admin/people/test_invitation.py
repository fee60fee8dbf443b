"""Inviting a colleague: user, role, team, first key and budget, all or nothing."""

from decimal import Decimal

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session

from proxy.models import ApiKey, Budget
from proxy.permissions.roles import MEMBER, OWNER
from proxy.secrets import digest_of
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db
URL = "/admin/people/invite/"


@pytest.fixture
def lead(client):
    factories.team("platform")
    factories.team("research")
    user = factories.staff("ada", groups=(OWNER, "team:platform"))
    client.force_login(user)
    return user


def form(**changes):
    return {
        "username": "dora", "email": "dora@example.com", "role": MEMBER, "team": "platform",
        "with_password": "on", "key_name": "", "usd": "20", "period": "month",
    } | changes  # fmt: skip


def test_a_lead_invites_a_member_with_a_key_and_a_budget(client, lead):
    answer = client.post(URL, form())

    dora = User.objects.get(username="dora")
    key, budget = ApiKey.objects.get(), Budget.objects.get()
    text = answer.content.decode()
    password = answer.context["password"]
    assert {group.name for group in dora.groups.all()} == {MEMBER, "team:platform"}
    assert (dora.is_staff, dora.is_superuser, dora.email) == (True, False, "dora@example.com")
    assert (key.user, str(key), key.scopes) == (dora, "platform/dora", ["messages"])
    assert bytes(key.digest) == digest_of(answer.context["secret"])
    assert (budget.key, budget.usd, budget.period) == (key, Decimal(20), "month")
    assert dora.check_password(password)
    assert password in text
    assert answer.context["secret"] in text
    assert "ANTHROPIC_AUTH_TOKEN" in text
    assert "no-store" in answer["Cache-Control"]
    entries = factories.audit(user="ada")
    added = [(entry.model, entry.object_name) for entry in entries if entry.action == "add"]
    assert ("user", "dora") in added
    assert ("key", str(key)) in added
    assert ("budget", str(budget)) in added
    stored = str([vars(entry) for entry in entries]) + str(
        [session.get_decoded() for session in Session.objects.all()]
    )
    assert password not in stored
    assert answer.context["secret"][10:] not in stored


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"team": "research"}, "Select a valid choice"),
        ({"role": "owner"}, "Select a valid choice"),
        ({"role": "auditor"}, "Select a valid choice"),
        ({"username": "Ada"}, "this name is taken"),
        ({"username": "gateway"}, "this name is taken"),
        ({"username": "two words"}, "Enter a valid username"),
        ({"key_name": "ci"}, "already exists"),
        ({"usd": "-1"}, "greater than or equal to 0"),
        ({"period": "year"}, "Select a valid choice"),
    ],
)
def test_a_wrong_invitation_creates_nothing(client, lead, changes, message):
    factories.key("ci")

    answer = client.post(URL, form(**changes))

    assert message in answer.content.decode()
    assert not User.objects.filter(username="dora").exists()
    assert (ApiKey.objects.count(), Budget.objects.count()) == (1, 0)
    assert factories.audit() == []


def test_a_superuser_invites_a_lead_without_a_password(root):
    factories.team("platform")

    answer = root.post(URL, form(role=OWNER, with_password="", usd="", key_name="first"))

    dora = User.objects.get(username="dora")
    assert {group.name for group in dora.groups.all()} == {OWNER, "team:platform"}
    assert not dora.has_usable_password()
    assert "Password of" not in answer.content.decode()
    assert ApiKey.objects.get().name == "first"
    assert not Budget.objects.exists()


def test_members_cannot_invite(client):
    factories.team("platform")
    client.force_login(factories.staff("ben", groups=(MEMBER, "team:platform")))

    assert client.get(URL).status_code == 403
    assert client.post(URL, form()).status_code == 403
    assert not User.objects.filter(username="dora").exists()
