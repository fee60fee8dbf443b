"""The targets of a route. A target is an upstream server with one of its models."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final, Self
from urllib.parse import urlsplit, urlunsplit

from yarl import URL

from proxy.models.setup.upstream_connection import DIRECT, ResolvedConnection
from translator.capabilities import Profile
from translator.dialect import Dialect
from translator.dialect import TranslationTarget as TranslatorTarget
from translator.stream.reasoning_signature import SigningKeys

from .request_head import Origin, request_head
from .upstream_policies import NO_POLICIES, Policies

USER_AGENT: Final = f"messages-bridge/{version('messages-bridge')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """An upstream's timeouts in seconds. Three field names are also values of ``CancelReason``."""

    connect_s: float = 5
    first_byte_s: float = 120
    idle_s: float = 120
    total_s: float = 1_800


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamServer:
    """One upstream with its resolved secret, its URLs and its settings."""

    name: str
    dialect: Dialect
    dialect_name: str
    url: URL
    count_url: URL | None
    headers: Mapping[str, str] = field(repr=False)
    origin: Origin
    head: bytes = field(repr=False)
    """The request line and headers of each request to ``url``, built by ``request_head``."""
    secret: bytes = field(repr=False)
    """All secrets in ``headers``, one in each line, to redact them from responses."""
    profile: Profile
    profile_name: str
    timeouts: Timeouts
    extra_body: Mapping[str, Any]
    capabilities: Mapping[str, Any]
    drains_on_disconnect: bool
    """Whether to read a response to its end after the client disconnects, because the upstream
    bills the whole response anyway."""
    forwarded_headers: re.Pattern[bytes] | None = None
    """The names of client headers that are sent on, in lower case."""
    connection_reuse: str = "shared"
    """Which requests may share a connection to the upstream: ``shared`` (all requests), ``key``
    (requests of the same gateway key) or ``never``."""
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
        drains_on_disconnect: bool = False,
        connection_reuse: str = "shared",
        connection: ResolvedConnection = DIRECT,
    ) -> Self:
        """Return an UpstreamServer. Raises ValueError if the secret is not a valid header value."""
        count = COUNT_PATHS.get(dialect_name) if profile.count_tokens else None
        url = _endpoint(base_url, dialect.path)
        headers = {
            "content-type": "application/json",
            "accept-encoding": "identity",
            "user-agent": USER_AGENT,
            **connection.headers,
            **_credential(dialect_name, profile, secret),
        }
        return cls(
            name=name,
            dialect=dialect,
            dialect_name=dialect_name,
            url=url,
            count_url=_endpoint(base_url, count) if count else None,
            headers=headers,
            origin=Origin.of(url, connection.proxy, connection.tls),
            head=request_head(url, headers),
            secret="\n".join(filter(None, (secret, *connection.secrets))).encode(),
            forwarded_headers=connection.forwarded,
            profile=profile,
            profile_name=profile.name,
            timeouts=timeouts,
            extra_body=extra_body,
            capabilities=capabilities,
            drains_on_disconnect=drains_on_disconnect,
            connection_reuse=connection_reuse,
        )


COUNT_PATHS: Mapping[str, str] = {
    "anthropic": "/v1/messages/count_tokens",
    "chat": "/messages/count_tokens",
    "responses": "/responses/input_tokens",
}


SAME_MODEL: Final = frozenset({"", "*"})
"""Model names of a target that mean "the model of the request"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One upstream server and one of its models.

    An empty model or ``*`` means the request's model.
    """

    server: UpstreamServer
    model: str
    reasoning_signing_keys: SigningKeys | None = None

    def model_for(self, requested: str) -> str:
        return requested if self.model in SAME_MODEL else self.model

    def for_translator(self, requested: str, session: str = "") -> TranslatorTarget:
        return TranslatorTarget(
            upstream=self.server.name,
            model=requested if self.model in SAME_MODEL else self.model,
            profile=self.server.profile,
            signing_keys=self.reasoning_signing_keys,
            session=session,
        )

    def as_record(self, requested: str) -> dict[str, Any]:
        """Return the target's fields for the ledger. They suffice to translate a response again."""
        return {
            "upstream": self.server.name,
            "model": requested if self.model in SAME_MODEL else self.model,
            "dialect": self.server.dialect_name,
            "profile": self.server.profile_name,
            "capabilities": self.server.capabilities,
        }


def _endpoint(base_url: str, path: str) -> URL:
    """Append the path to the base URL; keep its query string (Azure's ``api-version``)."""
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
