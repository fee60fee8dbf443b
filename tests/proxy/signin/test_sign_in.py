"""Sign-in by OpenID Connect, against a provider that answers over real sockets."""

import base64
import json
import time
from functools import partial

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client, override_settings

from proxy.roles import OWNER
from tests.fakes.oidc import CLIENT_ID, CLIENT_SECRET
from tests.proxy.admin import cast

from .walking import refused, signed_in

pytestmark = pytest.mark.django_db


def test_somebody_of_a_mapped_group_is_in(provider):
    provider.claims = {"groups": ["leads", "bridge-platform", "choir"]}

    client, answer = signed_in(provider)

    assert (answer.status_code, answer["Location"]) == (302, "/admin/")
    assert client.get("/admin/").status_code == 200
    alice = User.objects.get()
    assert (alice.username, alice.email, alice.is_staff) == ("alice", "alice@example.com", True)
    assert not alice.is_superuser
    assert not alice.has_usable_password()
    assert {group.name for group in alice.groups.all()} == {OWNER, "team:platform"}
    told = LogEntry.objects.get(object_id=str(alice.pk)).get_change_message()
    assert "none → owner, team:platform" in told


def test_the_way_back_leads_where_the_person_wanted_to_go(provider):
    _, answer = signed_in(provider, begin="/sign-in/?next=/admin/proxy/exchange/")

    assert answer["Location"] == "/admin/proxy/exchange/"


def test_no_way_back_leads_elsewhere(provider):
    _, answer = signed_in(provider, begin="/sign-in/?next=https://evil.example/")

    assert answer["Location"] == "/admin/"


def now():
    return int(time.time())


@pytest.mark.parametrize(
    ("claims", "told"),
    [
        ({"aud": "another-client"}, "could not be verified"),
        ({"aud": [CLIENT_ID, "another-client"]}, "could not be verified"),  # no azp
        ({"aud": [CLIENT_ID, "another"], "azp": "another"}, "could not be verified"),
        ({"aud": None}, "could not be verified"),
        ({"iss": "https://login.evil.example"}, "could not be verified"),
        ({"iss": None}, "could not be verified"),
        ({"exp": 1_700_000_000}, "could not be verified"),
        ({"exp": None}, "could not be verified"),
        ({"nbf": 4_000_000_000}, "could not be verified"),
        ({"nonce": "of-another-sign-in"}, "could not be verified"),
        ({"nonce": None}, "could not be verified"),
        ({"sub": None}, "could not be verified"),
        ({"sub": "x" * 256}, "could not be verified"),
        ({"groups": ["choir"]}, "in no group that may use this gateway"),
        ({"groups": ["bridge-platform"]}, "in no group that may use this gateway"),  # no role
        ({"groups": "leadsleads"}, "in no group that may use this gateway"),
        ({"groups": None}, "in no group that may use this gateway"),
        ({"groups": {"leads": True}}, "in no group that may use this gateway"),
    ],
    ids=lambda value: json.dumps(value)[:40],
)  # fmt: skip
def test_a_token_that_is_not_right_lets_nobody_in(provider, claims, told):
    provider.claims = claims

    assert told in refused(*signed_in(provider))
    assert not User.objects.exists()


def unsigned(claims):
    part = [base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=")
            for each in ({"alg": "none", "kid": "k1"}, claims)]  # fmt: skip
    return f"{part[0]}.{part[1]}."


FORGERIES = {
    "another key": {"key": "other"},
    "alg none": unsigned,
    "our secret as the key": {"key": CLIENT_SECRET, "algorithm": "HS256"},
    "an unknown key id": {"headers": {"kid": "k2"}},
    "no key id": {"headers": {}},
    "another algorithm": {"algorithm": "RS512"},
    "no token": lambda _: "",
    "no text": lambda _: 7,
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_token_that_the_provider_did_not_sign_lets_nobody_in(provider, forgery):
    how = FORGERIES[forgery]
    if isinstance(how, dict):
        how = how | ({"key": provider.other_key} if how.get("key") == "other" else {})
        provider.sign = partial(provider.signed, **how)
    else:
        provider.sign = how

    assert "could not be verified" in refused(*signed_in(provider))
    assert not User.objects.exists()


@pytest.mark.parametrize("path", ["/token", "/keys", "/userinfo"])
@pytest.mark.parametrize("status", [500, 307])
def test_a_provider_that_fails_on_the_way_is_told(provider, path, status):
    provider.status = {path: status}
    provider.claims = {"groups": None}  # so that the userinfo is asked

    told = refused(*signed_in(provider))

    assert "cannot be reached" in told or "could not be verified" in told
    assert not User.objects.exists()


def test_our_secret_follows_no_redirect(provider):
    provider.status = {"/token": 307}

    signed_in(provider)

    assert "/token" in provider.asked
    assert "/elsewhere" not in provider.asked


def test_a_provider_that_is_down_leaves_the_password(provider):
    cast.superuser()
    with override_settings(OIDC_ISSUER="http://127.0.0.1:9/realms/main"):
        client = Client()
        answer = client.get("/sign-in/")

        assert "cannot be reached" in refused(client, answer)
        assert 'name="password"' in client.get("/admin/login/").content.decode()


@pytest.mark.parametrize(
    "document",
    [
        {"issuer": "https://login.evil.example"},
        {"token_endpoint": "http://login.example.com/token"},
        {"jwks_uri": None},
        {"authorization_endpoint": "javascript:alert(1)"},
    ],
    ids=lambda document: next(iter(document)),
)
def test_a_discovery_document_that_cannot_be_is_not_followed(provider, document):
    provider.document = document
    client = Client()

    assert "cannot be reached" in refused(client, client.get("/sign-in/"))


@pytest.mark.parametrize("method", ["client_secret_post", "client_secret_basic"])
def test_the_secret_goes_the_way_that_the_provider_takes(provider, method):
    provider.document = {"token_endpoint_auth_methods_supported": [method]}

    _, answer = signed_in(provider)

    assert answer["Location"] == "/admin/"
    assert ("client_secret" in provider.forms[-1]) is (method == "client_secret_post")


class TestTheWayBack:
    def test_works_once(self, provider):
        client = Client()
        back = provider.browse(client.get("/sign-in/")["Location"])
        assert client.get(back)["Location"] == "/admin/"
        client.post("/admin/logout/")

        assert "not begun here" in refused(client, client.get(back))

    def test_of_another_browser_is_nobodys(self, provider):
        """Login CSRF: somebody else's code may not sign this browser in."""
        back = provider.browse(Client().get("/sign-in/")["Location"])
        client = Client()
        client.get("/sign-in/")

        assert "not begun here" in refused(client, client.get(back))

    def test_with_the_providers_own_error_says_so(self, provider):
        client = Client()
        left = client.get("/sign-in/")["Location"]
        state = provider.browse(left).partition("state=")[2]

        answer = client.get(f"/sign-in/callback/?error=access_denied&state={state}")

        assert "provider refused" in refused(client, answer)

    def test_a_bare_link_signs_nobody_out(self, provider):
        client, _ = signed_in(provider)
        client.get("/sign-in/callback/?error=access_denied")

        assert client.get("/admin/").status_code == 200


def test_many_failures_lock_no_office_out(provider):
    provider.claims = {"groups": []}
    for _ in range(7):
        signed_in(provider)
    provider.claims = {}

    assert signed_in(provider)[1]["Location"] == "/admin/"


def test_the_sign_in_page_shows_the_button_only_with_a_provider(provider, client):
    with override_settings(OIDC_LABEL="Example <Co>"):
        page = client.get("/admin/login/?next=/admin/proxy/team/").content.decode()
    assert "Sign in with Example &lt;Co&gt;" in " ".join(page.split())
    assert 'href="/sign-in/?next=%2Fadmin%2Fproxy%2Fteam%2F"' in page
    with override_settings(
        OIDC_ISSUER="", OIDC_CLIENT_ID="", OIDC_CLIENT_SECRET="", OIDC_GROUPS=[]
    ):
        assert "Sign in with" not in client.get("/admin/login/").content.decode()
        assert client.get("/sign-in/").status_code == 404
        assert client.get("/sign-in/callback/?code=a&state=b").status_code == 404


def test_the_secret_stands_on_no_page_and_in_no_log(provider, caplog):
    caplog.set_level("DEBUG")
    provider.claims = {"groups": []}
    client, answer = signed_in(provider)
    provider.status = {"/token": 500}
    signed_in(provider)

    assert CLIENT_SECRET not in refused(client, answer)
    assert CLIENT_SECRET not in caplog.text
    assert "at-1" not in caplog.text
