"""Read and validate the settings of the OpenID Connect sign-in.

``BRIDGE_OIDC_GROUPS`` maps groups of the provider to groups of the gateway, for example
``platform-leads=owner, bridge-*=team:*``. A star stands for the same text on both sides; it never
stands for a star, so only a pair such as ``platform-leads=team:*`` gives the group of all teams.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest

from proxy.checks import is_loopback
from proxy.permissions.roles import ALL_TEAMS, AUDITOR, OWNER, ROLES, TEAM_GROUP
from proxy.secrets import ConfigError, setting_now
from proxy.url_hosts import host_error

REQUIRED: Final = ("ISSUER", "CLIENT_ID", "CLIENT_SECRET", "GROUPS")
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512")
"""Signature algorithms with a public key, which the provider's key set (JWKS) contains."""
TEAM_NAME: Final = re.compile(r"[-\w]{1,64}", re.ASCII)

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OIDCConfig:
    """The complete and valid settings of the OpenID Connect sign-in."""

    issuer: str
    client_id: str
    client_secret: str
    groups: tuple[Pair, ...]
    groups_claim: str

    def gateway_groups(self, provider_groups: Collection[str]) -> set[str]:
        """Return the names of the gateway groups to which these provider groups are mapped."""
        found = set()
        for provider_group, gateway_group in self.groups:
            pattern = re.escape(provider_group).replace(r"\*", f"({TEAM_NAME.pattern})")
            for group in provider_groups:
                if match := re.fullmatch(pattern, group, re.ASCII):
                    text = match[1] if "*" in provider_group else "*"
                    found.add(gateway_group.replace("*", text))
        return found


def oidc_settings() -> OIDCConfig | None:
    """Return the sign-in settings; None if they are absent or invalid.

    The gateway does not start with invalid settings (see ``checks.py``).
    """
    if not settings.OIDC_ISSUER or any(setting_errors()):
        return None
    return OIDCConfig(
        issuer=settings.OIDC_ISSUER,
        client_id=settings.OIDC_CLIENT_ID,
        client_secret=setting_now("BRIDGE_OIDC_CLIENT_SECRET", settings.OIDC_CLIENT_SECRET),
        groups=tuple(_pairs()),
        groups_claim=settings.OIDC_GROUPS_CLAIM,
    )


def setting_errors() -> Iterator[str]:
    """Yield a message for each missing or invalid setting; none if no setting is set."""
    given = [name for name in REQUIRED if getattr(settings, f"OIDC_{name}")]
    if not given:
        return
    for name in REQUIRED:
        if name not in given:
            yield f"BRIDGE_OIDC_{given[0]} is set, but BRIDGE_OIDC_{name} is missing"
    if settings.OIDC_ISSUER and not is_safe_url(settings.OIDC_ISSUER):
        yield f"BRIDGE_OIDC_ISSUER is {settings.OIDC_ISSUER!r}; https://... is expected"
    if settings.OIDC_ALGORITHM not in ALGORITHMS:
        known = ", ".join(ALGORITHMS)
        yield f"BRIDGE_OIDC_ALGORITHM is {settings.OIDC_ALGORITHM!r}; known: {known}"
    if "openid" not in settings.OIDC_SCOPES.split():
        yield f"BRIDGE_OIDC_SCOPES is {settings.OIDC_SCOPES!r}; it needs openid"
    try:
        pairs = list(_pairs())
    except ConfigError as error:
        yield str(error)
    else:
        if settings.OIDC_GROUPS and not any(gateway_group in ROLES for _, gateway_group in pairs):
            yield f"BRIDGE_OIDC_GROUPS maps no group to {', '.join(ROLES)}: no user could sign in"


def maps_no_team() -> bool:
    """Whether the valid settings give roles that need a team, but no team."""
    groups = {gateway_group for _, gateway_group in _pairs()}
    return bool(groups & {OWNER, AUDITOR}) and not any(map(_is_team, groups))


def is_sign_in(request: HttpRequest | None, credentials: Mapping[str, Any] | None) -> bool:
    """Whether this is an OpenID Connect sign-in.

    The lockout after failed sign-ins ignores it, because it cannot be used to guess passwords.
    """
    return bool(credentials and credentials.get("nonce"))


def is_safe_url(url: str) -> bool:
    """Whether the URL uses https, or http with a loopback address."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return (
        bool(host)
        and not host_error(host)
        and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))
    )


def _pairs() -> Iterator[Pair]:
    for entry in settings.OIDC_GROUPS:
        provider_group, equals, gateway_group = (part.strip() for part in entry.rpartition("="))
        if not (provider_group and equals and gateway_group):
            raise ConfigError(f"BRIDGE_OIDC_GROUPS: {entry!r} is not THEIRS=OURS")
        if gateway_group not in ROLES and not _is_team(gateway_group):
            known = ", ".join((*ROLES, f"{TEAM_GROUP}<name>", ALL_TEAMS))
            raise ConfigError(f"BRIDGE_OIDC_GROUPS: {entry!r} names no known group; known: {known}")
        is_all_teams = gateway_group == ALL_TEAMS and "*" not in provider_group
        if gateway_group.count("*") != provider_group.count("*") and not is_all_teams:
            raise ConfigError(f"BRIDGE_OIDC_GROUPS: {entry!r} has a star on one side only")
        yield provider_group, gateway_group


def _is_team(gateway_group: str) -> bool:
    kind, name = gateway_group[: len(TEAM_GROUP)], gateway_group[len(TEAM_GROUP) :]
    return kind == TEAM_GROUP and (name == "*" or TEAM_NAME.fullmatch(name) is not None)
