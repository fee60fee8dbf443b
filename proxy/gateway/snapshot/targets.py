"""The targets of a route. A target is an upstream server with one of its models."""

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final, NamedTuple, Self

import msgspec
from msgspec import UNSET
from yarl import URL

from proxy.gateway.credentials.credential import STATIC, Credential, LiveCredential, api_key_headers
from proxy.gateway.credentials.registry import static_credential
from proxy.models.setup.columns import Conditions, Timeouts
from proxy.models.setup.upstream_connection import DIRECT, ResolvedConnection
from translator.anthropic_upstream.clouds import CLOUDS, Cloud
from translator.capabilities import Profile, profile_with
from translator.dialect import Dialect
from translator.dialect import TranslationTarget as TranslatorTarget
from translator.stream.reasoning_signature import SigningKeys

from .endpoints import Endpoints, Origin, request_head, url_with_model
from .upstream_policies import NO_POLICIES, Policies

USER_AGENT: Final = f"messages-bridge/{version('messages-bridge')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamServer:
    """One upstream with its credential, its URLs and its settings."""

    name: str
    dialect: Dialect
    dialect_name: str
    url: URL
    """The URL of a streamed request, if it does not contain the model."""
    endpoints: Endpoints
    cloud: Cloud | None
    headers: Mapping[str, str]
    """The headers of each request, without the credential."""
    origin: Origin
    credential: LiveCredential = field(repr=False, compare=False)
    fixed: Credential | None = field(repr=False)
    """The credential in ``head``; None if the upstream's credential expires."""
    head: bytes = field(repr=False)
    """The request line and headers of each request to ``url``, built by ``request_head``."""
    secret: bytes = field(repr=False)
    """All secrets that requests contain beside the credential, one in each line, to redact them
    from responses."""
    profile: Profile
    """The profile of models without capabilities of their own; see ``profile_for``."""
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
    row_id: int = 0
    """The id of the upstream's row; 0 if it has none."""
    model_capabilities: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Capabilities by model name or glob. A longer pattern has precedence."""
    policies: Policies = NO_POLICIES

    @classmethod
    def of(
        cls,
        *,
        name: str,
        dialect: Dialect,
        dialect_name: str,
        base_url: str,
        profile: Profile,
        timeouts: Timeouts,
        secret: str = "",
        credential: LiveCredential | None = None,
        extra_body: Mapping[str, Any],
        capabilities: Mapping[str, Any],
        drains_on_disconnect: bool = False,
        connection_reuse: str = "shared",
        api_version: str = "",
        connection: ResolvedConnection = DIRECT,
    ) -> Self:
        """Return an UpstreamServer. ``secret`` is a fixed API key, without ``credential``.

        Raises ValueError if the secret is not a valid header value.
        """
        cloud = CLOUDS.get(profile.name) if dialect_name == "anthropic" else None
        endpoints = Endpoints.of(base_url, dialect, profile, cloud, api_version)
        url = URL(endpoints.stream.replace("{model}", "model"), encoded=True)
        headers = {
            "content-type": "application/json",
            "accept-encoding": "identity",
            "user-agent": USER_AGENT,
            **connection.headers,
        }
        credential = credential or static_credential(
            name, secret, lambda key: api_key_headers(dialect_name, profile, key)
        )
        fixed = credential.current if credential.kind == STATIC else None
        origin = Origin.of(url, connection.proxy, connection.tls)
        secrets = list(connection.secrets)
        if origin.proxy is not None and origin.is_forwarded:
            secrets.append(origin.proxy.credentials)
        return cls(
            name=name,
            dialect=dialect,
            dialect_name=dialect_name,
            url=url,
            endpoints=endpoints,
            cloud=cloud,
            headers=headers,
            origin=origin,
            credential=credential,
            fixed=fixed,
            head=request_head(
                url, {**headers, **(fixed.headers if fixed else {})}, connection.proxy
            ),
            secret="\n".join(filter(None, secrets)).encode(),
            forwarded_headers=connection.forwarded,
            profile=profile,
            profile_name=profile.name,
            timeouts=timeouts,
            extra_body=extra_body,
            capabilities=capabilities,
            drains_on_disconnect=drains_on_disconnect,
            connection_reuse=connection_reuse,
        )

    def capabilities_for(self, model: str) -> Mapping[str, Any]:
        """Return the capabilities that are configured for a model, on top of the profile."""
        if not self.model_capabilities:
            return self.capabilities
        own: dict[str, Any] = {**self.capabilities}
        for pattern in sorted(self.model_capabilities, key=len):
            if fnmatch.fnmatchcase(model, pattern):
                own |= self.model_capabilities[pattern]
        return own

    def profile_for(self, model: str) -> Profile:
        if not self.model_capabilities:
            return self.profile
        return profile_with(self.profile_name, self.capabilities_for(model))

    def url_for(self, model: str, *, streaming: bool = True) -> URL:
        """Return the URL of a request. Raises BadRequest if the model cannot be part of a URL."""
        template = self.endpoints.stream if streaming else self.endpoints.whole
        return url_with_model(template, model) if "{model}" in template else self.url

    def count_url_for(self, model: str) -> URL | None:
        """Return the URL that counts tokens; None if there is none. Raises BadRequest."""
        template = self.endpoints.count
        return url_with_model(template, model) if template else None


class RequestFacts(NamedTuple):
    """What the conditions of targets depend on."""

    input_tokens: int  # estimated
    client: str  # name and version: "claude-cli 2.1.0"
    headers: Mapping[bytes, bytes]


def _header(headers: Mapping[bytes, bytes], name: str) -> str:
    return headers.get(name.encode(), b"").decode("latin-1")


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
    when: Conditions | None = None  # None: the target takes every request

    @classmethod
    def of(
        cls, server: UpstreamServer, model: str, when: Mapping[str, Any], ring: SigningKeys
    ) -> Self:
        """Return a target with the conditions of its row."""
        conditions = msgspec.convert(when, Conditions) if when else None
        return cls(server=server, model=model, reasoning_signing_keys=ring, when=conditions)

    def takes(self, request: RequestFacts) -> bool:
        """Return whether the request meets the target's conditions."""
        when = self.when
        if when is None:
            return True
        least, most = when.min_input_tokens, when.max_input_tokens
        return (
            (least is UNSET or request.input_tokens >= least)
            and (most is UNSET or request.input_tokens <= most)
            and (not when.client or fnmatch.fnmatchcase(request.client, when.client))
            and all(
                fnmatch.fnmatchcase(_header(request.headers, name), pattern)
                for name, pattern in when.headers.items()
            )
        )

    def model_for(self, requested: str) -> str:
        return requested if self.model in SAME_MODEL else self.model

    def for_translator(self, requested: str, session: str = "") -> TranslatorTarget:
        model = self.model_for(requested)
        return TranslatorTarget(
            upstream=self.server.name,
            model=model,
            profile=self.server.profile_for(model),
            signing_keys=self.reasoning_signing_keys,
            session=session,
        )

    def as_record(self, requested: str) -> dict[str, Any]:
        """Return the target's fields for the ledger. They suffice to translate a response again."""
        model = self.model_for(requested)
        return {
            "upstream": self.server.name,
            "model": model,
            "dialect": self.server.dialect_name,
            "profile": self.server.profile_name,
            "capabilities": self.server.capabilities_for(model),
        }
