"""Who stands behind an ID token, and what they may do here.

The library carries the code to the provider and finds the key; what the token must say is checked
here. A person is known by issuer and subject, never by an e-mail address, which can change hands.
"""

import logging
from typing import Any, Final

import jwt
from django.contrib.auth import get_user_model
from django.core.exceptions import SuspiciousOperation
from django.http import HttpRequest
from mozilla_django_oidc.auth import OIDCAuthenticationBackend

from . import people
from .choices import Choices, choices
from .people import Refused
from .provider import TIMEOUT_S, Provider, ProviderFault, ask, exchange, provider

log = logging.getLogger(__name__)

SKEW_S: Final = 60
"""How far the provider's clock may be from ours."""
CLAIMS: Final = ("iss", "sub", "aud", "exp", "iat")

UNREACHABLE: Final = "The sign-in provider cannot be reached right now. Try again in a minute."
NOT_BELIEVED: Final = "The sign-in provider's answer could not be verified. Try again."


class Backend(OIDCAuthenticationBackend):  # type: ignore[misc]  # the library has no types
    """Django makes one for each request; only a sign-in fills it."""

    chosen: Choices
    provider: Provider

    def __init__(self) -> None:
        self.UserModel = get_user_model()

    def authenticate(
        self,
        request: HttpRequest | None,
        nonce: str | None = None,
        code_verifier: str | None = None,
    ) -> Any:
        """The user, or None; then ``request.sign_in_fault`` says why, in words for the person.

        A password sign-in does not come here: it has no nonce.
        """
        chosen = choices()
        if request is None or not nonce or chosen is None:
            return None
        self.chosen = chosen
        self.OIDC_RP_CLIENT_ID = chosen.client_id
        self.OIDC_RP_CLIENT_SECRET = chosen.client_secret
        self.OIDC_RP_SIGN_ALGO = self.get_settings("OIDC_ALGORITHM")
        self.OIDC_RP_IDP_SIGN_KEY = None
        try:
            self.provider = provider(chosen.issuer)
            self.OIDC_OP_JWKS_ENDPOINT = self.provider.keys
            return super().authenticate(request, nonce=nonce, code_verifier=code_verifier)
        except Refused as refused:
            log.warning("sign-in refused: %s", refused.why)
            request.sign_in_fault = str(refused)  # type: ignore[attr-defined]  # for the view
        except (ProviderFault, OSError) as away:  # OSError: all that requests raises
            log.warning("sign-in: the provider: %s", _told(away))
            request.sign_in_fault = UNREACHABLE  # type: ignore[attr-defined]
        except (jwt.PyJWTError, SuspiciousOperation, LookupError, TypeError, ValueError) as wrong:
            log.warning("sign-in: the ID token was not believed: %s", _told(wrong))
            request.sign_in_fault = NOT_BELIEVED  # type: ignore[attr-defined]
        return None

    def get_settings(self, attr: str, *default: Any) -> Any:
        return SETTINGS[attr] if attr in SETTINGS else super().get_settings(attr, *default)

    def get_token(self, payload: dict[str, str]) -> dict[str, Any]:
        """The tokens for the code, without following a redirect that our secret would go with."""
        basic = None
        if self.provider.basic:
            basic = (payload["client_id"], payload.pop("client_secret"))
        return exchange(self.provider.token, payload, basic)

    def get_payload_data(self, token: str, key: Any) -> dict[str, Any]:
        """The claims, after all that OpenID Connect Core 3.1.3.7 asks for but the nonce."""
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[self.OIDC_RP_SIGN_ALGO],
            audience=self.chosen.client_id,
            issuer=self.chosen.issuer,
            leeway=SKEW_S,
            options={"require": list(CLAIMS)},
        )
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("azp", None if several else self.chosen.client_id) != self.chosen.client_id:
            raise SuspiciousOperation("it was made for another client (azp)")
        return claims

    def get_userinfo(
        self, access_token: str, id_token: str, payload: dict[str, Any]
    ) -> dict[str, Any]:
        """The token's claims; the userinfo is asked only for groups that the token lacks."""
        claim = self.chosen.groups_claim
        if claim in payload or not self.provider.userinfo or not access_token:
            return payload
        more = ask(self.provider.userinfo, bearer=access_token)
        if more.get("sub") != payload["sub"]:  # OpenID Connect Core 5.3.2
            raise SuspiciousOperation("the userinfo is about somebody else")
        return {**more, **payload}

    def verify_claims(self, claims: dict[str, Any]) -> bool:
        """``get_payload_data`` has."""
        return True

    def filter_users_by_claims(self, claims: dict[str, Any]) -> list[Any]:
        return people.known(self.chosen, claims)

    def create_user(self, claims: dict[str, Any]) -> Any:
        return people.made(self.chosen, claims)

    def update_user(self, user: Any, claims: dict[str, Any]) -> Any:
        return people.renewed(self.chosen, user, claims)


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
"""The library's settings that are not for operators to choose."""


def _told(fault: Exception) -> str:
    """For the log. Messages of ``requests`` hold whole URLs; a KeyError's is a bare name."""
    if isinstance(fault, ProviderFault | jwt.PyJWTError | SuspiciousOperation):
        return f"{type(fault).__name__}: {str(fault)[:300]}"
    return type(fault).__name__
