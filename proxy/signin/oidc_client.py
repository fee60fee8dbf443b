"""HTTP client for the OpenID Connect provider: discovery, token and userinfo endpoints.

The URLs come from the provider's discovery document (OpenID Connect Discovery 1.0, section 4). The
first sign-in reads this document, which is then cached for an hour, so the gateway can start while
the provider is down. The client follows no redirects, because the token request contains the client
secret.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import httpx
import msgspec

from .oidc_settings import is_safe_url

TIMEOUT_S: Final = 10.0
CACHE_S: Final = 3_600.0


class ProviderError(Exception):
    """The sign-in provider cannot be reached, or its response is invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """The endpoint URLs of the sign-in provider."""

    authorization: str
    token: str
    keys: str
    userinfo: str
    """URL of the userinfo endpoint; empty if the provider has none."""
    basic: bool
    """Whether the client secret is sent in the Authorization header, and not in the form body."""

    @classmethod
    def of(cls, issuer: str, document: Mapping[str, Any]) -> Self:
        if document.get("issuer") != issuer:
            raise ProviderError(f"its issuer is {str(document.get('issuer'))[:200]!r}")
        # RFC 8414, section 2: the default is client_secret_basic
        methods = document.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        return cls(
            authorization=_endpoint(document, "authorization_endpoint"),
            token=_endpoint(document, "token_endpoint"),
            keys=_endpoint(document, "jwks_uri"),
            userinfo=_endpoint(document, "userinfo_endpoint")
            if "userinfo_endpoint" in document
            else "",
            basic="client_secret_post" not in methods,
        )


_lock: Final = threading.Lock()
_cache: Final[dict[str, tuple[float, Provider]]] = {}


def load_provider(issuer: str) -> Provider:
    """Return the endpoints of this issuer, cached for an hour. Raise ProviderError."""
    with _lock:
        cached_at, cached = _cache.get(issuer, (0.0, None))
    if cached is not None and time.monotonic() - cached_at < CACHE_S:
        return cached
    fresh = Provider.of(
        issuer, fetch_json(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    )
    with _lock:
        _cache[issuer] = (time.monotonic(), fresh)
    return fresh


def clear_cache() -> None:
    """Clear the cache, so that the next sign-in reads the discovery document again."""
    with _lock:
        _cache.clear()


def fetch_json(url: str, bearer: str = "") -> dict[str, Any]:
    """Get the JSON object at this URL, with a bearer token if there is one. Raise ProviderError."""
    headers = {"accept": "application/json"}
    if bearer:
        headers["authorization"] = f"Bearer {bearer}"
    return _request("GET", url, headers=headers)


def exchange_code(
    token_url: str, form: Mapping[str, str], basic: tuple[str, str] | None
) -> dict[str, Any]:
    """Exchange an authorization code for tokens. Raise ProviderError."""
    return _request("POST", token_url, data=form, auth=basic)


def _request(method: str, url: str, **options: Any) -> dict[str, Any]:
    try:
        response = httpx.request(method, url, timeout=TIMEOUT_S, follow_redirects=False, **options)
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        raise ProviderError(f"{method} {_without_query(url)}: {type(exc).__name__}") from None
    if response.status_code != 200:
        raise ProviderError(f"{method} {_without_query(url)}: status {response.status_code}")
    try:
        return msgspec.json.decode(response.content, type=dict[str, Any])
    except msgspec.DecodeError:
        raise ProviderError(f"{method} {_without_query(url)}: not a JSON object") from None


def _endpoint(document: Mapping[str, Any], name: str) -> str:
    url = document.get(name)
    if not isinstance(url, str) or not is_safe_url(url):
        raise ProviderError(f"its {name} is {str(url)[:200]!r}, which is not an https URL")
    return url


def _without_query(url: str) -> str:
    """Return the URL without its query string, for the log."""
    return url.partition("?")[0][:200]
