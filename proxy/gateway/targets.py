"""Who answers a request: a server as configured, and one of its models."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self
from urllib.parse import urlsplit, urlunsplit

from yarl import URL

from translator.carrier import CarrierKeys
from translator.dialect import Dialect
from translator.dialect import Target as TranslatorTarget
from translator.profiles import Profile

from .policies import NONE as NO_POLICIES
from .policies import Policies
from .wire import Origin, head_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds; see design.md 3.2. Three are named as the ``Stop`` that they lead to."""

    connect_s: float = 5
    first_byte_s: float = 120
    idle_s: float = 120
    total_s: float = 1_800


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One upstream, ready to be called: its secret is resolved and bound to its address."""

    name: str
    dialect: Dialect
    dialect_name: str
    url: URL
    count_url: URL | None
    headers: Mapping[str, str] = field(repr=False)
    origin: Origin
    head: bytes = field(repr=False)
    """Of each request to ``url``, as ``head_of`` makes it of the headers."""
    secret: bytes = field(repr=False)
    profile: Profile
    profile_name: str
    timeouts: Timeouts
    extra_body: Mapping[str, Any]
    capabilities: Mapping[str, Any]
    hears_out: bool
    """An answer is read to its end when its client has left: this upstream bills all of it."""
    connection_reuse: str = "shared"
    """Whose requests may share a connection: of all keys, of one ``key``, or ``never``."""
    policies: Policies = NO_POLICIES

    @classmethod
    def of(
        cls,
        *,
        name: str,
        dialect: Dialect,
        dialect_name: str,
        base_url: str,
        secret: str,
        profile: Profile,
        timeouts: Timeouts,
        extra_body: Mapping[str, Any],
        capabilities: Mapping[str, Any],
        hears_out: bool = False,
        connection_reuse: str = "shared",
    ) -> Self:
        """Raises ValueError for a secret that no header can hold."""
        count = COUNT_PATHS.get(dialect_name) if profile.count_tokens else None
        url = _endpoint(base_url, dialect.path)
        headers = {
            "content-type": "application/json",
            "accept-encoding": "identity",
            **_credential(dialect_name, profile, secret),
        }
        return cls(
            name=name,
            dialect=dialect,
            dialect_name=dialect_name,
            url=url,
            count_url=_endpoint(base_url, count) if count else None,
            headers=headers,
            origin=Origin.of(url),
            head=head_of(url, headers),
            secret=secret.encode(),
            profile=profile,
            profile_name=profile.name,
            timeouts=timeouts,
            extra_body=extra_body,
            capabilities=capabilities,
            hears_out=hears_out,
            connection_reuse=connection_reuse,
        )


COUNT_PATHS: Mapping[str, str] = {
    "anthropic": "/v1/messages/count_tokens",
    "chat": "/messages/count_tokens",
    "responses": "/responses/input_tokens",
}


ANY: Final = frozenset({"", "*"})
"""Names of a target that mean the one that the client sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One server and one of its models; ``model`` empty or ``*``: the name the client sent."""

    server: Server
    model: str
    carrier_keys: CarrierKeys | None = None

    def model_for(self, asked: str) -> str:
        return asked if self.model in ANY else self.model

    def for_translator(self, asked: str, session: str = "") -> TranslatorTarget:
        return TranslatorTarget(
            upstream=self.server.name,
            model=asked if self.model in ANY else self.model,
            profile=self.server.profile,
            carrier_keys=self.carrier_keys,
            session=session,
        )

    def as_record(self, asked: str) -> dict[str, Any]:
        """What the ledger keeps, so that a stored answer can be translated again."""
        return {
            "upstream": self.server.name,
            "model": asked if self.model in ANY else self.model,
            "dialect": self.server.dialect_name,
            "profile": self.server.profile_name,
            "capabilities": self.server.capabilities,
        }


def _endpoint(base_url: str, path: str) -> URL:
    """The path behind the base; a query of the base (Azure's ``api-version``) stays."""
    parts = urlsplit(base_url)
    return URL(urlunsplit(parts._replace(path=parts.path.rstrip("/") + path)))


def _credential(dialect_name: str, profile: Profile, secret: str) -> dict[str, str]:
    if not secret:
        return {}
    if dialect_name == "anthropic" and not profile.bearer_auth:
        return {"x-api-key": secret}
    if profile.name == "azure":
        return {"api-key": secret}
    return {"authorization": f"Bearer {secret}"}
