"""Keys: issue, rotate and revoke; the secret is shown on one page, once."""

from datetime import UTC, datetime, timedelta
from html import unescape

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.utils.timezone import now

from proxy.admin.setup.key_admin import KeyAdmin
from proxy.models import ApiKey, Budget, Price, Route, Team, Upstream
from proxy.secrets import digest_of
from tests.proxy.admin import factories

from .key_form import URL, form

pytestmark = pytest.mark.django_db
PAST, EXPIRES = datetime(2026, 1, 2, tzinfo=UTC), datetime(2100, 1, 2, tzinfo=UTC)


def test_a_new_key_is_shown_once(root):
    answer = root.post(f"{URL}add/", form(factories.team()))

    key = ApiKey.objects.get()
    secret = answer.context["secret"]
    assert bytes(key.digest) == digest_of(secret)
    assert secret in answer.content.decode()
    assert "ANTHROPIC_BASE_URL=http://testserver" in answer.content.decode()
    assert 'data-copy="secret"' in answer.content.decode()
    assert "no-store" in answer["Cache-Control"]
    pages = [URL, f"{URL}{key.pk}/change/", f"{URL}{key.pk}/history/"]
    for url in pages:
        assert secret not in root.get(url).content.decode()
    log_text = " ".join(str(vars(entry)) for entry in factories.audit())
    session_text = " ".join(str(session.get_decoded()) for session in Session.objects.all())
    assert secret[10:] not in log_text + session_text
    assert "laptop" in log_text


def test_rotation_retains_the_name_and_the_old_secret_expires(root):
    key, secret = factories.key("laptop", limits={"rpm": 5})
    Budget.objects.create(key=key, usd=5)

    root.get(f"{URL}{key.pk}/rotate/")
    answer = root.post(f"{URL}{key.pk}/rotate/", {"overlap_h": "1"})

    key.refresh_from_db()
    assert key.name == "laptop"
    assert bytes(key.digest) == digest_of(answer.context["secret"])
    old = ApiKey.objects.get(digest=digest_of(secret))
    assert (old.limits, old.team) == ({"rpm": 5}, key.team)
    assert old.successor == key  # both use its budget
    assert not old.budget_set.exists()
    assert root.post(f"{URL}{old.pk}/rotate/", {"overlap_h": "1"}).status_code == 404
    assert old.name.startswith("laptop-until-")
    assert now() < old.expires < now() + timedelta(hours=1, minutes=1)


def test_revocation_is_final_and_logged(root):
    key, _ = factories.key("laptop")

    confirmation = root.get(f"{URL}{key.pk}/revoke/")
    key.refresh_from_db()
    assert key.revoked is None  # a GET changes nothing
    root.post(f"{URL}{key.pk}/revoke/")

    key.refresh_from_db()
    assert confirmation.status_code == 200
    assert key.revoked is not None
    assert len(factories.audit(action="revoke", object_id=str(key.pk))) == 1


def test_a_team_is_deleted_with_its_revoked_keys_unless_one_was_used(root):
    key, _ = factories.key("laptop", revoked=now())
    url = f"/admin/proxy/team/{key.team_id}/delete/"
    ApiKey.objects.update(last_used=now())
    assert "requests are recorded with the key laptop" in root.get(url).text
    root.post(url, {"post": "yes"})
    assert root.post(f"{URL}{key.pk}/delete/", {"post": "yes"}).status_code == 403
    assert Team.objects.exists()

    ApiKey.objects.update(last_used=None)
    assert root.get(f"{URL}{key.pk}/delete/").status_code == 200
    assert root.post(url, {"post": "yes"}).status_code == 302
    assert not Team.objects.exists()
    assert not ApiKey.objects.exists()


def test_valid_keys_are_not_deleted(root):
    key, _ = factories.key("laptop")

    assert root.post(f"{URL}{key.pk}/delete/", {"post": "yes"}).status_code == 403


def test_only_a_superuser_grants_the_admin_scope(client):
    team = factories.team()
    client.force_login(factories.staff("dan", "add_apikey", "view_apikey", "view_exchange"))

    refused = client.post(f"{URL}add/", form(team, scopes=["admin"]))
    granted = client.post(f"{URL}add/", form(team, scopes=["messages", "reports"]))

    assert "only a superuser" in refused.content.decode()
    assert "secret" in granted.context
    assert ApiKey.objects.get().scopes == ["messages", "reports"]


def test_a_team_lead_issues_keys_of_their_team_only(client):
    factories.team("research")
    other, _ = factories.key("theirs", of="research")
    lead = factories.staff(
        "ada",
        "add_apikey",
        "change_apikey",
        "view_apikey",
        "view_exchange",
        groups=("team:platform",),
    )
    factories.team("platform")
    client.force_login(lead)

    refused = client.post(f"{URL}add/", form(Team.objects.get(name="research")))

    assert "Select a valid choice" in refused.content.decode()
    assert client.get(f"{URL}{other.pk}/change/").status_code == 302
    assert client.post(f"{URL}{other.pk}/revoke/").status_code == 404
    other.refresh_from_db()
    assert other.revoked is None


def test_objects_of_the_config_file_are_read_only(root):
    team = factories.team("filed", managed=True)
    key, _ = factories.key("k", of="filed", managed=True)
    upstream = Upstream.objects.create(
        name="u", dialect="chat", base_url="https://x.example", managed=True
    )
    route = Route.objects.create(model="claude-*", managed=True)
    budget = Budget.objects.create(team=team, usd=5, managed=True)
    for obj in (team, key, upstream, route, budget):
        url = f"/admin/proxy/{obj._meta.model_name}/{obj.pk}"
        assert root.get(f"{url}/change/").status_code == 200
        for write, sent in (("change", {"name": "mine"}), ("delete", {"post": "yes"})):
            refused = root.post(f"{url}/{write}/", sent)
            assert refused.status_code == 403
            assert f"{obj} is managed by bridge.toml" in unescape(refused.content.decode())
    assert root.post(f"{URL}{key.pk}/rotate/", {"overlap_h": "0"}).status_code == 403
    assert factories.audit() == []


def test_a_key_of_the_config_file_can_be_revoked(root):
    key, _ = factories.key("k", managed=True)
    assert f"{URL}{key.pk}/revoke/" in root.get(f"{URL}{key.pk}/change/").content.decode()
    assert "only with a new secret" in root.get(f"{URL}{key.pk}/revoke/").content.decode()

    root.post(f"{URL}{key.pk}/revoke/")

    key.refresh_from_db()
    assert key.revoked is not None
    assert f"{URL}{key.pk}/revoke/" not in root.get(f"{URL}{key.pk}/change/").content.decode()
    assert len(factories.audit(action="revoke", object_id=str(key.pk))) == 1


def test_without_change_permission_a_key_of_the_config_file_cannot_be_revoked(client):
    key, _ = factories.key("k", managed=True)
    client.force_login(factories.staff("olga", "view_apikey", "view_exchange"))

    assert client.post(f"{URL}{key.pk}/revoke/").status_code == 403
    assert "/revoke/" not in client.get(f"{URL}{key.pk}/change/").content.decode()
    assert "managed by" not in client.post(f"{URL}{key.pk}/change/").content.decode()
    key.refresh_from_db()
    assert key.revoked is None


def test_rotation_gives_a_key_its_first_secret(root):
    key, _ = factories.key("k")
    ApiKey.objects.filter(pk=key.pk).update(prefix="", digest=None)
    page = unescape(root.get(URL).content.decode())

    answer = root.post(f"{URL}{key.pk}/rotate/", {"overlap_h": "1"})

    assert "no secret: createkey --team platform --name k creates one" in page
    key.refresh_from_db()
    assert bytes(key.digest) == digest_of(answer.context["secret"])
    assert ApiKey.objects.count() == 1  # there was no old secret
    (entry,) = factories.audit()
    assert (entry.action, entry.changes["digest"]) == ("rotate", {"changed": True})


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, "valid"),
        ({"expires": EXPIRES}, "valid until 2100-01-02"),
        ({"expires": PAST}, "expired 2026-01-02"),
        ({"revoked": PAST, "expires": PAST}, "revoked 2026-01-02"),
        ({"user": "left"}, "user deactivated"),
        ({"prefix": "", "digest": None, "revoked": PAST}, "revoked 2026-01-02"),
    ],
)
def test_the_list_shows_the_state_of_a_key(root, fields, state):
    if "user" in fields:
        fields = {"user": factories.staff("left")}
        User.objects.filter(username="left").update(is_active=False)
    key, _ = factories.key("k")
    ApiKey.objects.filter(pk=key.pk).update(**fields)

    (row,) = root.get(URL).context["cl"].result_list
    assert KeyAdmin(ApiKey, site).state(row) == state


def test_an_old_secret_shows_the_revocation_of_its_key(root):
    key, _ = factories.key("k")
    old, _ = key.rotate(timedelta(hours=1))
    ApiKey.objects.filter(pk=key.pk).update(revoked=PAST)

    rows = {row.pk: row for row in root.get(URL).context["cl"].result_list}
    assert KeyAdmin(ApiKey, site).state(rows[old.pk]) == "revoked 2026-01-02"


def test_a_change_is_logged_with_its_values(root):
    team = factories.team()

    root.post(
        f"/admin/proxy/team/{team.pk}/change/",
        {
            "name": "platform",
            "store": "metadata",
            "retention_days": 30,
            "models_allowed": "claude-*\ngpt-5.2",
            "limits_0": "60",
        },
    )

    (entry,) = factories.audit()
    assert entry.changes == {
        "models_allowed": {"before": [], "after": ["claude-*", "gpt-5.2"]},
        "limits": {"before": {}, "after": {"rpm": 60}},
        "retention_days": {"before": 90, "after": 30},
        "store": {"before": "full", "after": "metadata"},
    }


def test_prices_are_added_and_never_overwritten(root):
    price = factories.price()

    assert root.post(f"/admin/proxy/price/{price.pk}/change/", {"input": "9"}).status_code == 403
    assert Price.objects.get().input == price.input


@pytest.mark.parametrize(
    "model", ["team", "apikey", "upstream", "route", "price", "budget", "exchange"]
)
def test_every_list_and_form_opens(root, model):
    factories.key("k")
    factories.price()

    assert root.get(f"/admin/proxy/{model}/").status_code == 200
    if model != "exchange":
        assert root.get(f"/admin/proxy/{model}/add/").status_code == 200


def test_only_superusers_change_upstreams(client):
    client.force_login(factories.staff("dan", "add_upstream", "change_upstream", "view_upstream"))
    upstream = Upstream.objects.create(name="u", dialect="chat", base_url="https://x.example")

    assert client.get("/admin/proxy/upstream/add/").status_code == 403
    assert client.post(f"/admin/proxy/upstream/{upstream.pk}/change/", {}).status_code == 403
