"""Build an upstream server of the snapshot from the rows of an upstream and its policies."""

import dataclasses
from collections.abc import Iterable

import msgspec

from proxy.gateway.credentials.registry import CREDENTIALS
from proxy.models import OnClientDisconnect, Upstream, UpstreamPolicy
from proxy.models.setup.columns import Timeouts
from proxy.models.setup.upstream_connection import resolve_connection
from translator.capabilities import Profile, profile_with

from .dialects import DIALECTS
from .targets import UpstreamServer
from .upstream_policies import MESSAGE_KINDS, build_policies


def build_server(upstream: Upstream, rules: Iterable[UpstreamPolicy]) -> UpstreamServer:
    """Return the UpstreamServer of an upstream. ``rules`` are the policies of all upstreams.

    Raises ConfigError, TranslatorError, KeyError or ValueError if the upstream cannot be used.
    """
    profile: Profile = profile_with(upstream.profile, upstream.capabilities)
    server = UpstreamServer.of(
        name=upstream.name,
        dialect=DIALECTS[upstream.dialect],
        dialect_name=upstream.dialect,
        base_url=upstream.base_url,
        credential=CREDENTIALS.credential_of(upstream, profile),
        profile=profile,
        timeouts=msgspec.convert(upstream.timeouts, Timeouts),
        extra_body=upstream.extra_body,
        capabilities=upstream.capabilities,
        drains_on_disconnect=upstream.when_client_leaves == OnClientDisconnect.DRAIN,
        connection_reuse=upstream.connection_reuse,
        api_version=upstream.api_version,
        connection=resolve_connection(upstream.connection, upstream.base_url),
    )
    rules = list(rules)
    policies = build_policies(
        (rule.as_rule() for rule in rules if rule.upstream_id in (upstream.pk, None)),
        native=upstream.dialect == "anthropic",
        filters_messages=bool(message_rules(rules)),
    )
    return dataclasses.replace(
        server,
        policies=policies,
        row_id=upstream.pk or 0,
        model_capabilities=upstream.model_capabilities,
    )


def message_rules(rules: Iterable[UpstreamPolicy]) -> list[UpstreamPolicy]:
    """Return the policies for blocks and roles of messages."""
    return [rule for rule in rules if rule.kind in MESSAGE_KINDS]
