"""Sign-in through OpenID Connect with a provider on a real socket."""

import base64
import json
import time
from functools import partial

import pytest
from django.contrib.auth.models import User
from django.test import Client, override_settings

from proxy.models import AuditEntry
from proxy.permissions.roles import OWNER
from tests.fakes.servers.oidc import CLIENT_ID, CLIENT_SECRET
from tests.proxy.admin import factories

from .oidc_flow import sign_in, sign_in_refusal

pytestmark = pytest.mark.django_db


def test_a_user_in_a_mapped_group_is_signed_in(provider):
    provider.claims = {"groups": ["leads", "bridge-platform", "choir"]}

    client, response = sign_in(provider)

    assert (response.status_code, response["Location"]) == (302, "/admin/")
    assert client.get("/admin/").status_code == 200
    alice = User.objects.get()
    assert (alice.username, alice.email, alice.is_staff) == ("alice", "alice@example.com", True)
    assert not alice.is_superuser
    assert not alice.has_usable_password()
    assert {group.name for group in alice.groups.all()} == {OWNER, "team:platform"}
    entries = AuditEntry.objects.filter(
        AuditEntry.acted_by("alice"), object_id=str(alice.pk), model="user"
    )
    groups = [e.changes["groups"]["after"] for e in entries if "groups" in e.changes]
    assert sorted(name for names in groups for name in names) == [OWNER, "team:platform"]


def test_the_sign_in_redirects_to_the_requested_page(provider):
    _, response = sign_in(provider, begin="/sign-in/?next=/admin/proxy/exchange/")

    assert response["Location"] == "/admin/proxy/exchange/"


def test_the_sign_in_does_not_redirect_to_another_host(provider):
    _, response = sign_in(provider, begin="/sign-in/?next=https://evil.example/")

    assert response["Location"] == "/admin/"


def now():
    return int(time.time())


@pytest.mark.parametrize(
    ("claims", "message"),
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
def test_an_invalid_token_or_group_is_refused(provider, claims, message):
    provider.claims = claims

    assert message in sign_in_refusal(*sign_in(provider))
    assert not User.objects.exists()


def unsigned(claims):
    part = [base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")
            for value in ({"alg": "none", "kid": "k1"}, claims)]  # fmt: skip
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
def test_a_token_not_signed_by_the_provider_is_refused(provider, forgery):
    forgery_options = FORGERIES[forgery]
    if isinstance(forgery_options, dict):
        forgery_options = forgery_options | (
            {"key": provider.other_key} if forgery_options.get("key") == "other" else {}
        )
        provider.sign = partial(provider.signed, **forgery_options)
    else:
        provider.sign = forgery_options

    assert "could not be verified" in sign_in_refusal(*sign_in(provider))
    assert not User.objects.exists()


@pytest.mark.parametrize("path", ["/token", "/keys", "/userinfo"])
@pytest.mark.parametrize("status", [500, 307])
def test_a_failing_provider_endpoint_is_shown_to_the_user(provider, path, status):
    provider.status = {path: status}
    provider.claims = {"groups": None}  # so that the userinfo is requested

    page = sign_in_refusal(*sign_in(provider))

    assert "cannot be reached" in page or "could not be verified" in page
    assert not User.objects.exists()


def test_the_client_secret_is_not_sent_to_a_redirect(provider):
    provider.status = {"/token": 307}

    sign_in(provider)

    assert "/token" in provider.requested_paths
    assert "/elsewhere" not in provider.requested_paths


def test_the_password_sign_in_works_while_the_provider_is_down(provider):
    factories.superuser()
    with override_settings(OIDC_ISSUER="http://127.0.0.1:9/realms/main"):
        client = Client()
        response = client.get("/sign-in/")

        assert "cannot be reached" in sign_in_refusal(client, response)
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
def test_an_invalid_discovery_document_is_refused(provider, document):
    provider.document = document
    client = Client()

    assert "cannot be reached" in sign_in_refusal(client, client.get("/sign-in/"))


@pytest.mark.parametrize("method", ["client_secret_post", "client_secret_basic"])
def test_the_secret_is_sent_by_the_method_of_the_provider(provider, method):
    provider.document = {"token_endpoint_auth_methods_supported": [method]}

    _, response = sign_in(provider)

    assert response["Location"] == "/admin/"
    assert ("client_secret" in provider.forms[-1]) is (method == "client_secret_post")


class TestTheCallback:
    def test_works_once(self, provider):
        client = Client()
        callback_url = provider.browse(client.get("/sign-in/")["Location"])
        assert client.get(callback_url)["Location"] == "/admin/"
        client.post("/admin/logout/")

        assert "not started here" in sign_in_refusal(client, client.get(callback_url))

    def test_of_another_browser_is_refused(self, provider):
        """Login CSRF: the code of another browser must not sign this browser in."""
        callback_url = provider.browse(Client().get("/sign-in/")["Location"])
        client = Client()
        client.get("/sign-in/")

        assert "not started here" in sign_in_refusal(client, client.get(callback_url))

    def test_with_an_error_of_the_provider_shows_it(self, provider):
        client = Client()
        begin_url = client.get("/sign-in/")["Location"]
        state = provider.browse(begin_url).partition("state=")[2]

        response = client.get(f"/sign-in/callback/?error=access_denied&state={state}")

        assert "provider refused" in sign_in_refusal(client, response)

    def test_without_a_state_does_not_end_a_session(self, provider):
        client, _ = sign_in(provider)
        client.get("/sign-in/callback/?error=access_denied")

        assert client.get("/admin/").status_code == 200


def test_failed_provider_sign_ins_do_not_lock_the_address(provider):
    provider.claims = {"groups": []}
    for _ in range(7):
        sign_in(provider)
    provider.claims = {}

    assert sign_in(provider)[1]["Location"] == "/admin/"


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


def test_the_secret_is_on_no_page_and_in_no_log(provider, caplog):
    caplog.set_level("DEBUG")
    provider.claims = {"groups": []}
    client, response = sign_in(provider)
    provider.status = {"/token": 500}
    sign_in(provider)

    assert CLIENT_SECRET not in sign_in_refusal(client, response)
    assert CLIENT_SECRET not in caplog.text
    assert "at-1" not in caplog.text
