"""Django's authentication backend for OpenID Connect: verify an ID token and return its user.

The library mozilla-django-oidc controls the flow and finds the signing key; this module verifies
the claims. A user is identified by issuer and subject, never by e-mail address, because an address
can be reassigned to another person.
"""

import logging
from typing import Any, Final

import jwt
from django.contrib.auth import get_user_model
from django.core.exceptions import SuspiciousOperation
from django.http import HttpRequest
from mozilla_django_oidc.auth import OIDCAuthenticationBackend

from . import user_provisioning
from .oidc_client import (
    TIMEOUT_S,
    Provider,
    ProviderError,
    exchange_code,
    fetch_json,
    load_provider,
)
from .oidc_settings import OIDCConfig, oidc_settings
from .user_provisioning import SignInDenied

log = logging.getLogger(__name__)

SKEW_S: Final = 60
"""Tolerated difference between the clocks of the sign-in provider and this server, in seconds."""
CLAIMS: Final = ("iss", "sub", "aud", "exp", "iat")

UNREACHABLE: Final = "The sign-in provider cannot be reached right now. Try again in a minute."
NOT_VERIFIED: Final = "The sign-in provider's answer could not be verified. Try again."


class Backend(OIDCAuthenticationBackend):  # type: ignore[misc]  # mozilla-django-oidc has no types
    """The backend. Django creates an instance for each request; only a sign-in sets attributes."""

    config: OIDCConfig
    provider: Provider

    def __init__(self) -> None:
        self.UserModel = get_user_model()

    def authenticate(
        self,
        request: HttpRequest | None,
        nonce: str | None = None,
        code_verifier: str | None = None,
    ) -> Any:
        """Return the user of an OpenID Connect callback, or None.

        If the sign-in fails, ``request.sign_in_error`` is set to a message for the user. For a
        password sign-in, which has no nonce, this backend returns None.
        """
        config = oidc_settings()
        if request is None or not nonce or config is None:
            return None
        self.config = config
        self.OIDC_RP_CLIENT_ID = config.client_id
        self.OIDC_RP_CLIENT_SECRET = config.client_secret
        self.OIDC_RP_SIGN_ALGO = self.get_settings("OIDC_ALGORITHM")
        self.OIDC_RP_IDP_SIGN_KEY = None
        try:
            self.provider = load_provider(config.issuer)
            self.OIDC_OP_JWKS_ENDPOINT = self.provider.keys
            return super().authenticate(request, nonce=nonce, code_verifier=code_verifier)
        except SignInDenied as denied:
            log.warning("sign-in refused: %s", denied.reason)
            request.sign_in_error = str(denied)  # type: ignore[attr-defined]  # CallbackView shows it
        except (
            ProviderError,
            OSError,
        ) as error:  # the errors of the library requests are subclasses of OSError
            log.warning("sign-in: provider error: %s", _describe(error))
            request.sign_in_error = UNREACHABLE  # type: ignore[attr-defined]
        except (jwt.PyJWTError, SuspiciousOperation, LookupError, TypeError, ValueError) as error:
            log.warning("sign-in: the ID token is invalid: %s", _describe(error))
            request.sign_in_error = NOT_VERIFIED  # type: ignore[attr-defined]
        return None

    def get_settings(self, attr: str, *default: Any) -> Any:
        return SETTINGS[attr] if attr in SETTINGS else super().get_settings(attr, *default)

    def get_token(self, payload: dict[str, str]) -> dict[str, Any]:
        """Exchange the authorization code for tokens.

        The client follows no redirects, because the request contains the client secret.
        """
        basic = None
        if self.provider.basic:
            basic = (payload["client_id"], payload.pop("client_secret"))
        return exchange_code(self.provider.token, payload, basic)

    def get_payload_data(self, token: str, key: Any) -> dict[str, Any]:
        """Verify the ID token and return its claims (OpenID Connect Core 3.1.3.7).

        The nonce is not verified here but by mozilla-django-oidc.
        """
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[self.OIDC_RP_SIGN_ALGO],
            audience=self.config.client_id,
            issuer=self.config.issuer,
            leeway=SKEW_S,
            options={"require": list(CLAIMS)},
        )
        has_many_audiences = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if (
            claims.get("azp", None if has_many_audiences else self.config.client_id)
            != self.config.client_id
        ):
            raise SuspiciousOperation("the token was issued for another client (azp)")
        return claims

    def get_userinfo(
        self, access_token: str, id_token: str, payload: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the claims; read the userinfo endpoint only if the token has no groups claim."""
        claim = self.config.groups_claim
        if claim in payload or not self.provider.userinfo or not access_token:
            return payload
        userinfo = fetch_json(self.provider.userinfo, bearer=access_token)
        if userinfo.get("sub") != payload["sub"]:  # see OpenID Connect Core 5.3.2
            raise SuspiciousOperation("the userinfo has another subject")
        return {**userinfo, **payload}

    def verify_claims(self, claims: dict[str, Any]) -> bool:
        """Return True, because ``get_payload_data`` has already verified the claims."""
        return True

    def filter_users_by_claims(self, claims: dict[str, Any]) -> list[Any]:
        return user_provisioning.find_user(self.config, claims)

    def create_user(self, claims: dict[str, Any]) -> Any:
        return user_provisioning.create_user(self.config, claims)

    def update_user(self, user: Any, claims: dict[str, Any]) -> Any:
        return user_provisioning.update_user(self.config, user, claims)


SETTINGS: Final = {
    "OIDC_AUTHENTICATION_CALLBACK_URL": "sign-in-callback",
    "OIDC_TIMEOUT": TIMEOUT_S,
    "OIDC_USE_NONCE": True,
    "OIDC_USE_PKCE": True,
    "OIDC_ALLOW_UNSECURED_JWT": False,
    "OIDC_STORE_ACCESS_TOKEN": False,
    "OIDC_STORE_ID_TOKEN": False,
    "OIDC_CREATE_USER": True,
}
"""Settings of mozilla-django-oidc that operators of the gateway cannot change."""


def _describe(error: Exception) -> str:
    """Return the type and message of an error for the log.

    Errors of the library ``requests`` are logged without their message, which contains whole URLs.
    """
    if isinstance(error, ProviderError | jwt.PyJWTError | SuspiciousOperation):
        return f"{type(error).__name__}: {str(error)[:300]}"
    return type(error).__name__
