"""The identity provider of the sign-in tests."""

import pytest
from django.test import override_settings

from proxy.signin.oidc_client import clear_cache
from tests.fakes.servers.oidc import CLIENT_ID, CLIENT_SECRET, Provider

GROUPS = ["leads=owner", "audit=auditor", "staff=member", "bridge-*=team:*"]


@pytest.fixture(scope="module")
def running():
    with Provider() as provider:
        yield provider


@pytest.fixture
def provider(running):
    """Reset the provider and configure the gateway for it."""
    running.claims, running.document, running.status = {}, {}, {}
    running.userinfo, running.sign = None, running.signed
    running.requested_paths.clear()
    running.forms.clear()
    clear_cache()
    with override_settings(
        OIDC_ISSUER=running.issuer,
        OIDC_CLIENT_ID=CLIENT_ID,
        OIDC_CLIENT_SECRET=CLIENT_SECRET,
        OIDC_GROUPS=GROUPS,
        AUTHENTICATION_BACKENDS=[
            "axes.backends.AxesStandaloneBackend",
            "proxy.permissions.team_grants.RolesNeedTeams",
            "django.contrib.auth.backends.ModelBackend",
            "proxy.signin.backend.Backend",
        ],
    ):
        yield running
    clear_cache()
