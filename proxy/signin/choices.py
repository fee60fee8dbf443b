"""What the operator chose for the sign-in, read from the settings and judged there.

``BRIDGE_OIDC_GROUPS`` says what a group of the provider is here: ``platform-leads=owner,
bridge-*=team:*``. A star stands for the same text on both sides.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest

from proxy.checks import is_loopback
from proxy.roles import ROLES
from proxy.secrets import ConfigError, setting_now
from proxy.visibility import TEAM_GROUP

NEEDED: Final = ("ISSUER", "CLIENT_ID", "CLIENT_SECRET", "GROUPS")
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512")
"""Signatures that a public key checks; the others the library cannot check by the key set."""
TEAM_NAME: Final = re.compile(r"[-\w]{1,64}", re.ASCII)

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """A whole and sound configuration."""

    issuer: str
    client_id: str
    client_secret: str
    groups: tuple[Pair, ...]
    groups_claim: str

    def groups_here(self, groups_there: Collection[str]) -> set[str]:
        """The names of our groups for somebody in these groups of the provider."""
        return {
            here.replace("*", _starred(there, group))
            for there, here in self.groups
            for group in groups_there
            if _matches(there, group)
        }


def choices() -> Choices | None:
    """None: there is no such sign-in. What is wrong has refused the start before."""
    if not settings.OIDC_ISSUER or any(mistakes()):
        return None
    return Choices(
        issuer=settings.OIDC_ISSUER,
        client_id=settings.OIDC_CLIENT_ID,
        client_secret=setting_now("BRIDGE_OIDC_CLIENT_SECRET", settings.OIDC_CLIENT_SECRET),
        groups=tuple(_pairs()),
        groups_claim=settings.OIDC_GROUPS_CLAIM,
    )


def mistakes() -> Iterator[str]:
    """What is missing or wrong, each naming the setting; nothing when the sign-in is off."""
    given = [name for name in NEEDED if getattr(settings, f"OIDC_{name}")]
    if not given:
        return
    for name in NEEDED:
        if name not in given:
            yield f"BRIDGE_OIDC_{given[0]} is set, but BRIDGE_OIDC_{name} is missing"
    if settings.OIDC_ISSUER and not is_safe(settings.OIDC_ISSUER):
        yield f"BRIDGE_OIDC_ISSUER is {settings.OIDC_ISSUER!r}; https://... is expected"
    if settings.OIDC_ALGORITHM not in ALGORITHMS:
        known = ", ".join(ALGORITHMS)
        yield f"BRIDGE_OIDC_ALGORITHM is {settings.OIDC_ALGORITHM!r}; known: {known}"
    if "openid" not in settings.OIDC_SCOPES.split():
        yield f"BRIDGE_OIDC_SCOPES is {settings.OIDC_SCOPES!r}; it needs openid"
    try:
        found = list(_pairs())
    except ConfigError as mistake:
        yield str(mistake)
    else:
        if settings.OIDC_GROUPS and not any(here in ROLES for _, here in found):
            yield f"BRIDGE_OIDC_GROUPS makes nobody one of {', '.join(ROLES)}: nobody could sign in"


def is_sign_in(request: HttpRequest | None, credentials: Mapping[str, Any] | None) -> bool:
    """For the lock on passwords: an office behind one address is not locked out by a failure."""
    return bool(credentials and credentials.get("nonce"))


def is_safe(url: str) -> bool:
    """https; plain http stays on this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return bool(host) and (
        parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))
    )


def _pairs() -> Iterator[Pair]:
    for entry in settings.OIDC_GROUPS:
        there, equals, here = (part.strip() for part in entry.rpartition("="))
        if not (there and equals and here):
            raise ConfigError(f"BRIDGE_OIDC_GROUPS: {entry!r} is not THEIRS=OURS")
        if here not in ROLES and not _is_team(here):
            known = ", ".join((*ROLES, f"{TEAM_GROUP}<name>"))
            raise ConfigError(f"BRIDGE_OIDC_GROUPS: {entry!r} leads to no group; known: {known}")
        if here.count("*") != there.count("*"):
            raise ConfigError(f"BRIDGE_OIDC_GROUPS: {entry!r} has a star on one side only")
        yield there, here


def _is_team(here: str) -> bool:
    kind, name = here[: len(TEAM_GROUP)], here[len(TEAM_GROUP) :]
    return kind == TEAM_GROUP and (name == "*" or TEAM_NAME.fullmatch(name) is not None)


def _matches(there: str, group: str) -> bool:
    if "*" not in there:
        return there == group
    before, _, after = there.partition("*")
    return (
        group.startswith(before)
        and group.endswith(after)
        and TEAM_NAME.fullmatch(_starred(there, group)) is not None
    )


def _starred(there: str, group: str) -> str:
    """What stands in the star's place."""
    before, _, after = there.partition("*")
    return group[len(before) : len(group) - len(after)]
