"""Members make, rotate and revoke their own keys, within the limits that their team sets."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import Group
from django.utils.timezone import now

from proxy.models import ApiKey, Team
from proxy.permissions.roles import MEMBER
from proxy.secrets import digest_of
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db
URL = "/admin/me/keys/add/"
LIMITS = {"count": 2, "days": 30, "models": ["claude-*", "qwen3"]}


def team(name="platform", **limits):
    return factories.team(name, member_keys=LIMITS | limits)


@pytest.fixture
def ben(client):
    team()
    factories.team("research")
    user = factories.staff("ben", groups=(MEMBER, "team:platform"))
    client.force_login(user)
    return user


def form(**changes):
    return {
        "team": "platform", "name": "laptop", "days": "30", "scopes": ["messages"], "models": ""
    } | changes  # fmt: skip


def test_a_member_makes_a_key_within_the_limits(client, ben):
    page = client.get(URL).content.decode()

    answer = client.post(URL, form())

    key = ApiKey.objects.get()
    assert "platform: 0 of 2 keys in use, each valid for up to 30 days" in page
    assert bytes(key.digest) == digest_of(answer.context["secret"])
    assert "ANTHROPIC_AUTH_TOKEN" in answer.content.decode()
    assert (key.user, key.models_allowed, key.scopes) == (
        ben,
        ["claude-*", "qwen3"],
        ["messages"],
    )
    assert now() + timedelta(days=29) < key.expires <= now() + timedelta(days=30)
    (entry,) = factories.audit()
    assert (entry.action, entry.names.user, entry.changes["user"]) == (
        "add",
        "ben",
        {"after": "ben"},
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"days": "31"}, "expires on"),
        ({"days": ""}, "This field is required"),
        ({"days": "99999999"}, "less than or equal to 36500"),
        ({"scopes": ["reports"]}, "Select a valid choice"),
        ({"scopes": ["admin"]}, "Select a valid choice"),
        ({"team": "research"}, "Select a valid choice"),
        ({"models": "gpt-5"}, "is not one of claude-*, qwen3"),
        ({"models": "claude-[o]*"}, "is not one of claude-*, qwen3"),
        ({"name": "two words"}, "valid “slug”"),
        ({"name": "taken"}, "already exists"),
    ],
)
def test_a_key_beyond_the_limits_is_refused(client, ben, changes, message):
    factories.key("taken")

    answer = client.post(URL, form(**changes))

    assert message in answer.content.decode().replace("&#x27;", "'")
    assert ApiKey.objects.get().name == "taken"


def test_a_member_cannot_exceed_the_number_of_keys(client, ben):
    for name in ("one", "two"):
        client.post(URL, form(name=name))

    answer = client.post(URL, form(name="three"))

    assert "2 of 2 keys of" in answer.content.decode()
    assert ApiKey.objects.count() == 2
    ApiKey.objects.get(name="one").revoke()
    client.post(URL, form(name="three"))
    assert ApiKey.objects.filter(name="three").exists()


def test_a_model_name_that_a_glob_of_the_team_matches_is_allowed(client, ben):
    client.post(URL, form(models="claude-opus-5-5\nqwen3"))

    assert ApiKey.objects.get().models_allowed == ["claude-opus-5-5", "qwen3"]


def test_without_the_consent_of_a_team_members_make_no_keys(client, ben):
    Team.objects.update(member_keys={})

    assert client.get(URL).status_code == 403
    assert client.post(URL, form()).status_code == 403
    assert "New key for yourself" not in client.get("/admin/me/").content.decode()


def test_an_invalid_stored_limit_lets_members_make_no_keys(client, ben):
    Team.objects.update(member_keys={"count": "many"})

    assert client.get(URL).status_code == 403


def test_a_member_rotates_and_revokes_an_own_key_only(client, ben):
    own = factories.key(
        "own", user=ben, expires=now() + timedelta(days=3), models_allowed=["qwen3"]
    )
    foreign = factories.key("ci")
    lab = factories.key("lab", of="research", user=ben)
    page = client.get("/admin/me/").content.decode()

    rotated = client.post(f"/admin/proxy/apikey/{own[0].pk}/rotate/", {"overlap_h": "0"})

    own[0].refresh_from_db()
    assert bytes(own[0].digest) == digest_of(rotated.context["secret"])
    assert f"/apikey/{own[0].pk}/rotate/" in page
    assert f"/apikey/{lab[0].pk}/rotate/" not in page
    assert client.post(f"/admin/proxy/apikey/{foreign[0].pk}/rotate/").status_code == 404
    assert client.post(f"/admin/proxy/apikey/{lab[0].pk}/rotate/").status_code == 403
    assert client.post(f"/admin/proxy/apikey/{lab[0].pk}/revoke/").status_code == 302
    assert client.post(f"/admin/proxy/apikey/{foreign[0].pk}/revoke/").status_code == 404
    lab[0].refresh_from_db()
    foreign[0].refresh_from_db()
    assert (bool(lab[0].revoked), foreign[0].revoked) == (True, None)


def test_a_member_cannot_rotate_an_own_key_with_more_than_the_limits(client, ben):
    wide = factories.key("wide", user=ben, scopes=["messages", "reports"])[0]

    assert client.post(f"/admin/proxy/apikey/{wide.pk}/rotate/").status_code == 403


def test_a_user_outside_the_group_is_no_member(client, ben):
    ben.groups.remove(Group.objects.get(name="team:platform"))
    factories.key("own", user=ben)

    assert client.post(URL, form()).status_code == 403


def test_the_form_of_a_team_sets_the_limits_of_members(root):
    platform = factories.team("platform")
    sent = {
        "name": "platform", "store": "full", "retention_days": 90, "models_allowed": "",
        **dict.fromkeys(("limits_0", "limits_1", "limits_2"), ""),
        "member_keys_0": "3", "member_keys_1": "90", "member_keys_2": "messages,reports",
        "member_keys_3": "claude-*\nqwen3",
    }  # fmt: skip
    url = f"/admin/proxy/team/{platform.pk}/change/"

    root.post(url, sent)

    platform.refresh_from_db()
    assert platform.member_keys == {
        "count": 3, "days": 90, "scopes": ["messages", "reports"], "models": ["claude-*", "qwen3"]
    }  # fmt: skip
    page = root.get(url).content.decode()
    assert 'value="3"' in page
    assert "claude-*\nqwen3</textarea>" in page
    root.post(url, sent)
    (entry,) = factories.audit()
    assert list(entry.changes) == ["member_keys"]
    root.post(url, sent | dict.fromkeys([f"member_keys_{n}" for n in range(4)], ""))
    platform.refresh_from_db()
    assert platform.member_keys == {}


def test_a_lead_lets_members_have_only_scopes_that_the_lead_may_grant(client):
    platform = factories.team("platform")
    clerk = factories.staff("carl", "view_team", "change_team", groups=("team:platform",))
    client.force_login(clerk)
    sent = {"name": "platform", "store": "full", "retention_days": 90, "member_keys_0": "1"}

    client.post(
        f"/admin/proxy/team/{platform.pk}/change/", sent | {"member_keys_2": "messages,reports"}
    )

    platform.refresh_from_db()
    assert platform.member_keys == {}
