"""Issue, rotate, revoke: the secret is on one page, once, and nowhere else."""

from datetime import timedelta
from html import unescape

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.sessions.models import Session
from django.utils.timezone import now

from proxy.models import ApiKey, Budget, Price, Route, Team, Upstream
from proxy.secrets import digest_of
from tests.proxy.admin import cast

pytestmark = pytest.mark.django_db
URL = "/admin/proxy/apikey/"


def form(team, **fields):
    return {
        "team": team.pk,
        "name": "laptop",
        "scopes": ["messages"],
        "models_allowed": "[]",
        "limits": "{}",
        "ip_allow": "[]",
        "options": "{}",
    } | fields


def test_a_new_key_is_shown_once(root):
    answer = root.post(f"{URL}add/", form(cast.team()))

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
    noted = " ".join(f"{e.object_repr} {e.change_message}" for e in LogEntry.objects.all())
    kept = " ".join(str(session.get_decoded()) for session in Session.objects.all())
    assert secret[10:] not in noted + kept
    assert "laptop" in noted


def test_rotating_keeps_the_name_and_lets_the_old_secret_run_out(root):
    key, secret = cast.key("laptop", limits={"rpm": 5})
    Budget.objects.create(key=key, usd=5)

    root.get(f"{URL}{key.pk}/rotate/")
    answer = root.post(f"{URL}{key.pk}/rotate/", {"overlap_h": "1"})

    key.refresh_from_db()
    assert key.name == "laptop"
    assert bytes(key.digest) == digest_of(answer.context["secret"])
    old = ApiKey.objects.get(digest=digest_of(secret))
    assert (old.limits, old.team) == ({"rpm": 5}, key.team)
    assert old.successor == key  # whose budget both spend
    assert not old.budget_set.exists()
    assert root.post(f"{URL}{old.pk}/rotate/", {"overlap_h": "1"}).status_code == 404
    assert old.name.startswith("laptop-until-")
    assert now() < old.expires < now() + timedelta(hours=1, minutes=1)


def test_revoking_is_final_and_noted(root):
    key, _ = cast.key("laptop")

    asked = root.get(f"{URL}{key.pk}/revoke/")
    key.refresh_from_db()
    assert key.revoked is None  # a GET changes nothing
    root.post(f"{URL}{key.pk}/revoke/")

    key.refresh_from_db()
    assert asked.status_code == 200
    assert key.revoked is not None
    assert LogEntry.objects.filter(change_message="Revoked.").count() == 1


def test_keys_are_never_deleted(root):
    key, _ = cast.key("laptop")

    assert root.post(f"{URL}{key.pk}/delete/", {"post": "yes"}).status_code == 403


def test_only_a_superuser_grants_the_admin_scope(client):
    team = cast.team()
    client.force_login(cast.staff("dan", "add_apikey", "view_apikey"))

    refused = client.post(f"{URL}add/", form(team, scopes=["admin"]))
    granted = client.post(f"{URL}add/", form(team, scopes=["messages", "reports"]))

    assert "only a superuser" in refused.content.decode()
    assert "secret" in granted.context
    assert ApiKey.objects.get().scopes == ["messages", "reports"]


def test_a_team_lead_issues_keys_of_their_team_only(client):
    cast.team("research")
    other, _ = cast.key("theirs", of="research")
    lead = cast.staff(
        "ada",
        "add_apikey",
        "change_apikey",
        "view_apikey",
        "view_exchange",
        groups=("team:platform",),
    )
    cast.team("platform")
    client.force_login(lead)

    refused = client.post(f"{URL}add/", form(Team.objects.get(name="research")))

    assert "Select a valid choice" in refused.content.decode()
    assert client.get(f"{URL}{other.pk}/change/").status_code == 302
    assert client.post(f"{URL}{other.pk}/revoke/").status_code == 404
    other.refresh_from_db()
    assert other.revoked is None


def test_what_the_file_declares_is_read_only(root):
    team = cast.team("filed", managed=True)
    key, _ = cast.key("k", of="filed", managed=True)
    upstream = Upstream.objects.create(
        name="u", dialect="chat", base_url="https://x.example", managed=True
    )
    route = Route.objects.create(model="claude-*", managed=True)
    budget = Budget.objects.create(team=team, usd=5, managed=True)
    for obj in (team, key, upstream, route, budget):
        url = f"/admin/proxy/{obj._meta.model_name}/{obj.pk}"
        assert root.get(f"{url}/change/").status_code == 200
        assert root.post(f"{url}/change/", {"name": "mine"}).status_code == 403
        assert root.post(f"{url}/delete/", {"post": "yes"}).status_code == 403
    assert root.post(f"{URL}{key.pk}/revoke/").status_code == 403


def test_a_change_is_noted_with_its_values(root):
    team = cast.team()

    root.post(
        f"/admin/proxy/team/{team.pk}/change/",
        {
            "name": "platform",
            "store": "metadata",
            "retention_days": 30,
            "models_allowed": "[]",
            "limits": "{}",
        },
    )

    (entry,) = LogEntry.objects.all()
    assert "retention_days: 90 → 30" in entry.get_change_message()
    assert "store: full → metadata" in entry.get_change_message()


@pytest.mark.parametrize(
    ("field", "typed", "told"),
    [
        ("limits", '{"rmp": 60}', "unknown key 'rmp'; did you mean 'rpm'?"),
        ("models_allowed", '"claude-*"', "Expected array, got str"),
    ],
)
def test_a_slip_in_a_rule_is_refused_since_the_gateway_would_read_none(root, field, typed, told):
    team = cast.team()
    page = {"name": "x", "store": "full", "retention_days": 1, "models_allowed": "[]"}

    refused = [
        root.post(f"{URL}add/", form(team, **{field: typed})),
        root.post("/admin/proxy/team/add/", {**page, "limits": "{}", field: typed}),
    ]

    for answer in refused:
        assert told in unescape(answer.content.decode())
    assert not ApiKey.objects.exists()
    assert not Team.objects.exclude(pk=team.pk).exists()


def test_a_rule_that_was_emptied_is_no_rule(root):
    left = dict.fromkeys(("models_allowed", "limits", "ip_allow", "options"), "")

    assert "secret" in root.post(f"{URL}add/", form(cast.team(), **left)).context

    key = ApiKey.objects.get()
    assert (key.models_allowed, key.limits, key.ip_allow, key.options) == ([], {}, [], {})


def test_prices_are_added_and_never_overwritten(root):
    price = cast.price()

    assert root.post(f"/admin/proxy/price/{price.pk}/change/", {"input": "9"}).status_code == 403
    assert Price.objects.get().input == price.input


@pytest.mark.parametrize(
    "model", ["team", "apikey", "upstream", "route", "price", "budget", "exchange"]
)
def test_every_list_and_form_opens(root, model):
    cast.key("k")
    cast.price()

    assert root.get(f"/admin/proxy/{model}/").status_code == 200
    if model != "exchange":
        assert root.get(f"/admin/proxy/{model}/add/").status_code == 200


def test_where_requests_go_is_for_superusers_only(client):
    client.force_login(cast.staff("dan", "add_upstream", "change_upstream", "view_upstream"))
    upstream = Upstream.objects.create(name="u", dialect="chat", base_url="https://x.example")

    assert client.get("/admin/proxy/upstream/add/").status_code == 403
    assert client.post(f"/admin/proxy/upstream/{upstream.pk}/change/", {}).status_code == 403
