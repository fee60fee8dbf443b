"""The settings of the sign-in are complete, or the gateway does not start."""

import pytest
from django.test import override_settings

from proxy.signin.checks import check_sign_in
from proxy.signin.oidc_settings import oidc_settings
from tests.repo.secrets.test_secret_settings import (
    manage,  # the command line of a fresh installation
)

COMPLETE = {
    "OIDC_ISSUER": "https://login.example.com",
    "OIDC_CLIENT_ID": "bridge",
    "OIDC_CLIENT_SECRET": "s3cret",
    "OIDC_GROUPS": ["leads=owner", "bridge-*=team:*"],
}
EMPTY = dict.fromkeys(COMPLETE, "") | {"OIDC_GROUPS": []}


def error_messages(**changed):
    with override_settings(**{**COMPLETE, **changed}):
        assert (oidc_settings() is None) is bool(check_sign_in())
        return [str(error.msg) for error in check_sign_in()]


def test_without_settings_the_sign_in_is_off_without_errors():
    with override_settings(**EMPTY):
        assert check_sign_in() == []
        assert oidc_settings() is None


def test_a_complete_configuration_has_no_errors():
    assert error_messages() == []


@pytest.mark.parametrize(
    ("changed", "message"),
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
        ({"OIDC_GROUPS": ["leads=boss"]}, "'leads=boss' names no known group; known: owner"),
        ({"OIDC_GROUPS": ["*=owner"]}, "has a star on one side only"),
        ({"OIDC_GROUPS": ["a-*=team:x"]}, "has a star on one side only"),
        ({"OIDC_GROUPS": ["a=team:x"]}, "no user could sign in"),
        ({"OIDC_GROUPS": ["a=superuser"]}, "names no known group"),
    ],
)
def test_a_missing_or_invalid_setting_is_named(changed, message):
    (error,) = error_messages(**changed)

    assert message in error


@pytest.mark.parametrize(
    ("provider_groups", "gateway_groups"),
    [
        (["leads"], {"owner"}),
        (["bridge-a", "bridge-b"], {"team:a", "team:b"}),
        (["bridge-", "bridge-a b", "bridge-*", "xbridge-a", "Leads"], set()),
        (["bridge-" + "a" * 65], set()),
    ],
)
def test_groups_of_the_provider_are_mapped(provider_groups, gateway_groups):
    with override_settings(**COMPLETE):
        assert oidc_settings().gateway_groups(provider_groups) == gateway_groups


def test_pattern_characters_other_than_a_star_are_literal():
    with override_settings(**{**COMPLETE, "OIDC_GROUPS": ["a[b]-*=team:*", "x=owner"]}):
        assert oidc_settings().gateway_groups(["a[b]-t", "ab-t"]) == {"team:t"}


def test_an_incomplete_configuration_prevents_the_start_and_is_named(tmp_path, request):
    process = manage(
        request.config.rootpath, tmp_path, "serve", "--port", "0",
        BRIDGE_OIDC_ISSUER="https://login.example.com", BRIDGE_OIDC_CLIENT_SECRET="s3cret-1234",
    )  # fmt: skip

    assert process.returncode == 2, process.stderr
    assert "BRIDGE_OIDC_CLIENT_ID is missing" in process.stderr
    assert "BRIDGE_OIDC_GROUPS is missing" in process.stderr
    assert "s3cret-1234" not in process.stderr
    assert not (tmp_path / "data" / "ledger.sqlite3").exists()


def test_roles_without_any_team_are_a_warning():
    with override_settings(**COMPLETE | {"OIDC_GROUPS": ["leads=owner", "all=member"]}):
        (warning,) = check_sign_in()
        assert oidc_settings() is not None
    assert "no team to owners and auditors" in warning.msg

    for team in ("a=team:red", "leads=team:*"):
        assert error_messages(OIDC_GROUPS=["leads=owner", team]) == []


@pytest.mark.parametrize(
    ("group", "granted"),
    [
        ("bridge-red", {"team:red"}),
        ("bridge-*", set()),
        ("bridge-", set()),
        ("bridge-a b", set()),
        ("all", {"team:*"}),
    ],
)
def test_only_an_explicit_pair_gives_all_teams(group, granted):
    with override_settings(**COMPLETE | {"OIDC_GROUPS": [*COMPLETE["OIDC_GROUPS"], "all=team:*"]}):
        assert oidc_settings().gateway_groups([group]) == granted
