"""The provider that tests of the sign-in go to, and the way there and back."""

import pytest
from django.test import override_settings

from proxy.signin.provider import forget
from tests.fakes.oidc import CLIENT_ID, CLIENT_SECRET, Provider

GROUPS = ["leads=owner", "audit=auditor", "staff=member", "bridge-*=team:*"]


@pytest.fixture(scope="module")
def running():
    with Provider() as provider:
        yield provider


@pytest.fixture
def provider(running):
    """The provider, and a gateway that is set up for it."""
    running.claims, running.document, running.status = {}, {}, {}
    running.userinfo, running.sign = None, running.signed
    running.asked.clear()
    running.forms.clear()
    forget()
    with override_settings(
        OIDC_ISSUER=running.issuer,
        OIDC_CLIENT_ID=CLIENT_ID,
        OIDC_CLIENT_SECRET=CLIENT_SECRET,
        OIDC_GROUPS=GROUPS,
        AUTHENTICATION_BACKENDS=[
            "axes.backends.AxesStandaloneBackend",
            "django.contrib.auth.backends.ModelBackend",
            "proxy.signin.backend.Backend",
        ],
    ):
        yield running
    forget()
