"""What authenticates the gateway to an upstream, and the interface of the places it comes from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from yarl import URL

from translator.capabilities import Profile

Signer = Callable[[URL, bytes], Mapping[str, str]]


class CredentialError(Exception):
    """No credential could be fetched. The message names what to correct, and no secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A credential for one upstream, valid until ``expires_at``."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The request headers that carry the credential."""
    sign: Signer | None = field(default=None, repr=False)
    """Returns the headers for one request, if its URL and body are signed."""
    secret: bytes = field(default=b"", repr=False)
    """The bytes to redact in the upstream's responses. A signed request sends no secret."""
    expires_at: float | None = None
    """Seconds since 1970; None if it does not expire or the time is unknown."""
    origin: str = ""
    """Where it was found, for the operator, such as "the instance role"."""

    def headers_for(self, url: URL, body: bytes) -> Mapping[str, str]:
        """Return the headers that authenticate this request."""
        return self.headers if self.sign is None else self.sign(url, body)

    def is_valid(self, now: float) -> bool:
        return self.expires_at is None or now < self.expires_at


class CredentialSource(Protocol):
    """A place where credentials come from. Each kind of credentials has one."""

    def fetch(self) -> Credential:
        """Return a new credential; a cached one only if there is no newer one.

        Blocks for seconds, so it runs in a thread. Raises CredentialError.
        """
        ...


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def api_key_headers(dialect_name: str, profile: Profile, secret: str) -> dict[str, str]:
    """Return the header with an API key, as the upstream's API expects it."""
    if not secret:
        return {}
    if dialect_name == "anthropic" and not profile.bearer_auth:
        return {"x-api-key": secret}
    if profile.name == "azure":
        return {"api-key": secret}
    return bearer(secret)


NONE: Final = Credential()
"""For an upstream without authentication."""
