"""Who signs people in: what the provider says of itself, and what we ask it.

Its addresses come from the discovery document (OpenID Connect Discovery 1.0, section 4), which is
read when the first person signs in and kept for an hour: a provider that is down stops nobody's
gateway. No redirect is followed, since the second call carries our secret.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import httpx
import msgspec

from .choices import is_safe

TIMEOUT_S: Final = 10.0
KEEP_S: Final = 3_600.0


class ProviderFault(Exception):
    """The provider cannot be reached, or what it says makes no sense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """The addresses that one sign-in needs."""

    authorization: str
    token: str
    keys: str
    userinfo: str
    """Empty: there is none."""
    basic: bool
    """Our secret goes into the header, not into the form."""

    @classmethod
    def of(cls, issuer: str, told: Mapping[str, Any]) -> Self:
        if told.get("issuer") != issuer:
            raise ProviderFault(f"it calls itself {str(told.get('issuer'))[:200]!r}")
        # RFC 8414, section 2: basic where it says nothing
        methods = told.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        return cls(
            authorization=_address(told, "authorization_endpoint"),
            token=_address(told, "token_endpoint"),
            keys=_address(told, "jwks_uri"),
            userinfo=_address(told, "userinfo_endpoint") if "userinfo_endpoint" in told else "",
            basic="client_secret_post" not in methods,
        )


_lock: Final = threading.Lock()
_known: Final[dict[str, tuple[float, Provider]]] = {}


def provider(issuer: str) -> Provider:
    """Raises ProviderFault."""
    with _lock:
        asked, known = _known.get(issuer, (0.0, None))
    if known is not None and time.monotonic() - asked < KEEP_S:
        return known
    found = Provider.of(issuer, ask(f"{issuer.rstrip('/')}/.well-known/openid-configuration"))
    with _lock:
        _known[issuer] = (time.monotonic(), found)
    return found


def forget() -> None:
    """The next sign-in reads the discovery document again."""
    with _lock:
        _known.clear()


def ask(url: str, bearer: str = "") -> dict[str, Any]:
    """A JSON object. Raises ProviderFault."""
    headers = {"accept": "application/json"}
    if bearer:
        headers["authorization"] = f"Bearer {bearer}"
    return _answer("GET", url, headers=headers)


def exchange(
    token_url: str, form: Mapping[str, str], basic: tuple[str, str] | None
) -> dict[str, Any]:
    """The tokens for a code. Raises ProviderFault."""
    return _answer("POST", token_url, data=form, auth=basic)


def _answer(method: str, url: str, **asked: Any) -> dict[str, Any]:
    try:
        reply = httpx.request(method, url, timeout=TIMEOUT_S, follow_redirects=False, **asked)
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        raise ProviderFault(f"{method} {_named(url)}: {type(exc).__name__}") from None
    if reply.status_code != 200:
        raise ProviderFault(f"{method} {_named(url)}: status {reply.status_code}")
    try:
        return msgspec.json.decode(reply.content, type=dict[str, Any])
    except msgspec.DecodeError:
        raise ProviderFault(f"{method} {_named(url)}: no JSON object") from None


def _address(told: Mapping[str, Any], name: str) -> str:
    url = told.get(name)
    if not isinstance(url, str) or not is_safe(url):
        raise ProviderFault(f"its {name} is {str(url)[:200]!r}, which is no https address")
    return url


def _named(url: str) -> str:
    """For the log: no query."""
    return url.partition("?")[0][:200]
