"""A sign-in is set whole, or not at all."""

import pytest
from django.test import override_settings

from proxy.signin.checks import check_sign_in
from proxy.signin.choices import choices
from tests.house.test_secrets import manage  # the command line of a fresh installation

WHOLE = {
    "OIDC_ISSUER": "https://login.example.com",
    "OIDC_CLIENT_ID": "bridge",
    "OIDC_CLIENT_SECRET": "s3cret",
    "OIDC_GROUPS": ["leads=owner", "bridge-*=team:*"],
}
NOTHING = dict.fromkeys(WHOLE, "") | {"OIDC_GROUPS": []}


def complaints(**changed):
    with override_settings(**{**WHOLE, **changed}):
        assert (choices() is None) is bool(check_sign_in())
        return [str(found.msg) for found in check_sign_in()]


def test_nothing_set_is_no_sign_in_and_no_complaint():
    with override_settings(**NOTHING):
        assert check_sign_in() == []
        assert choices() is None


def test_a_whole_one_is_taken():
    assert complaints() == []


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"OIDC_CLIENT_ID": ""}, "BRIDGE_OIDC_CLIENT_ID is missing"),
        ({"OIDC_ISSUER": ""}, "BRIDGE_OIDC_CLIENT_ID is set, but BRIDGE_OIDC_ISSUER is missing"),
        ({"OIDC_CLIENT_SECRET": ""}, "BRIDGE_OIDC_CLIENT_SECRET is missing"),
        ({"OIDC_GROUPS": []}, "BRIDGE_OIDC_GROUPS is missing"),
        ({"OIDC_ISSUER": "http://login.example.com"}, "https://... is expected"),
        ({"OIDC_ISSUER": "login.example.com"}, "https://... is expected"),
        ({"OIDC_ISSUER": "https://[bad"}, "https://... is expected"),
        ({"OIDC_ALGORITHM": "none"}, "BRIDGE_OIDC_ALGORITHM is 'none'"),
        ({"OIDC_ALGORITHM": "HS256"}, "BRIDGE_OIDC_ALGORITHM is 'HS256'"),
        ({"OIDC_SCOPES": "email"}, "it needs openid"),
        ({"OIDC_GROUPS": ["leads"]}, "'leads' is not THEIRS=OURS"),
        ({"OIDC_GROUPS": ["leads=boss"]}, "'leads=boss' leads to no group; known: owner"),
        ({"OIDC_GROUPS": ["*=owner"]}, "has a star on one side only"),
        ({"OIDC_GROUPS": ["a-*=team:x"]}, "has a star on one side only"),
        ({"OIDC_GROUPS": ["a=team:x"]}, "nobody could sign in"),
        ({"OIDC_GROUPS": ["a=superuser"]}, "leads to no group"),
    ],
)
def test_what_is_missing_or_wrong_is_named(changed, told):
    (found,) = complaints(**changed)

    assert told in found


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (["leads"], {"owner"}),
        (["bridge-a", "bridge-b"], {"team:a", "team:b"}),
        (["bridge-", "bridge-a b", "bridge-*", "xbridge-a", "Leads"], set()),
        (["bridge-" + "a" * 65], set()),
    ],
)
def test_their_groups_become_ours(there, here):
    with override_settings(**WHOLE):
        assert choices().groups_here(there) == here


def test_signs_of_patterns_in_a_group_mean_themselves():
    with override_settings(**{**WHOLE, "OIDC_GROUPS": ["a[b]-*=team:*", "x=owner"]}):
        assert choices().groups_here(["a[b]-t", "ab-t"]) == {"team:t"}


def test_a_half_set_sign_in_refuses_to_start_by_name(tmp_path, request):
    run = manage(
        request.config.rootpath, tmp_path, "serve", "--port", "0",
        BRIDGE_OIDC_ISSUER="https://login.example.com", BRIDGE_OIDC_CLIENT_SECRET="s3cret-1234",
    )  # fmt: skip

    assert run.returncode == 2, run.stderr
    assert "BRIDGE_OIDC_CLIENT_ID is missing" in run.stderr
    assert "BRIDGE_OIDC_GROUPS is missing" in run.stderr
    assert "s3cret-1234" not in run.stderr
    assert not (tmp_path / "data" / "ledger.sqlite3").exists()
