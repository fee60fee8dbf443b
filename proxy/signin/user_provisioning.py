"""Create a user at the first sign-in of an OpenID Connect subject; set its groups at each sign-in.

The provider controls only the groups ``owner``, ``auditor``, ``member`` and ``team:...`` of its
users. Superusers are not changed, so that they keep access in an emergency.
"""

import hashlib
import logging
import re
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import IntegrityError, transaction

from proxy.audit_log import Actor, acting_as, current_actor
from proxy.models import ActorKind, Identity
from proxy.models.ledger_names import person_id
from proxy.permissions.roles import AUDITOR, OWNER, ROLES, TEAM_GROUP
from proxy.permissions.usernames import is_taken

from .oidc_settings import OIDCConfig

log = logging.getLogger(__name__)

MAX_NAME_LENGTH: Final = 64
NOT_IN_NAMES: Final = re.compile(r"[^\w.@+-]+", re.ASCII)


class SignInDenied(Exception):
    """The user may not sign in. The message is shown to the user, ``reason`` is for the log."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def find_user(config: OIDCConfig, claims: dict[str, Any]) -> list[Any]:
    """Return the user of this issuer and subject in a list, as the library expects; [] for none."""
    identities = Identity.objects.filter(issuer=config.issuer, subject=_subject(claims))
    return [identity.user for identity in identities.select_related("user")]


def create_user(config: OIDCConfig, claims: dict[str, Any]) -> Any:
    """Create a user for a subject. Raise SignInDenied if no group of it permits the sign-in."""
    groups = _groups(config, claims)
    if not groups & set(ROLES):
        raise _no_group_error(config, claims)
    try:
        with transaction.atomic():
            user = get_user_model().objects.create_user(_name(config, claims))
            Identity.objects.create(user=user, issuer=config.issuer, subject=_subject(claims))
    except IntegrityError:  # a concurrent sign-in of the same subject created the user
        user = find_user(config, claims)[0]
    return update_user(config, user, claims)


@transaction.atomic
def _sync_groups(user: Any, groups: set[str], claims: dict[str, Any]) -> None:
    """Set the groups that the provider controls, the user's name and the e-mail address."""
    controlled = [
        group
        for group in user.groups.all()
        if group.name in ROLES or group.name.startswith(TEAM_GROUP)
    ]
    current = {group.name for group in controlled}
    if current != groups:
        user.groups.remove(*(group for group in controlled if group.name not in groups))
        for name in groups - current:
            user.groups.add(Group.objects.get_or_create(name=name)[0])
    fields = {
        "is_staff": bool(groups & set(ROLES)),
        "email": _text(claims, "email", 254),
        "first_name": _text(claims, "given_name", 150),
        "last_name": _text(claims, "family_name", 150),
    }
    changed = [name for name, value in fields.items() if getattr(user, name) != value]
    for name in changed:
        setattr(user, name, fields[name])
    if changed:
        user.save(update_fields=changed)


def update_user(config: OIDCConfig, user: Any, claims: dict[str, Any]) -> Any:
    """Update the user's groups and personal data, and return the user.

    If no group permits the sign-in, remove all groups that the provider controls, then raise
    SignInDenied. Also raise it for a deactivated user.
    """
    groups = _groups(config, claims)
    if not user.is_superuser:
        # The audit log names the user who signs in as the actor.
        address = current_actor().address
        with acting_as(Actor(kind=ActorKind.USER, user=person_id(user), address=address)):
            _sync_groups(user, groups if groups & set(ROLES) else set(), claims)
    if not groups & set(ROLES):
        raise _no_group_error(config, claims)
    if groups & {OWNER, AUDITOR} and not any(name.startswith(TEAM_GROUP) for name in groups):
        log.warning("sign-in: %s has no group of a team, and sees only own requests", user)
    if not user.is_active:
        raise SignInDenied("Your account is deactivated.", f"{user} is not active")
    return user


def _groups(config: OIDCConfig, claims: dict[str, Any]) -> set[str]:
    claim = claims.get(config.groups_claim)
    if config.groups_claim == "email" and claims.get("email_verified") is not True:
        claim = None  # an unverified address may belong to another person
    names = [claim] if isinstance(claim, str) else claim if isinstance(claim, list) else []
    return config.gateway_groups([group for group in names if isinstance(group, str)])


def _no_group_error(config: OIDCConfig, claims: dict[str, Any]) -> SignInDenied:
    reason = f"subject {_subject(claims)[:100]!r} has no mapped group in {config.groups_claim!r}"
    if config.groups_claim not in claims:
        reason = f"subject {_subject(claims)[:100]!r} has no claim {config.groups_claim!r}"
    return SignInDenied("You are signed in, but in no group that may use this gateway.", reason)


def _subject(claims: dict[str, Any]) -> str:
    subject = claims["sub"]
    if not isinstance(subject, str) or not 0 < len(subject) <= 255:
        raise ValueError("sub")
    return subject


def _name(config: OIDCConfig, claims: dict[str, Any]) -> str:
    """Return a user name that is not taken, for a new user."""
    preferred = _text(claims, "preferred_username", 150) or _text(claims, "email", 254)
    name = NOT_IN_NAMES.sub("-", preferred)[:MAX_NAME_LENGTH].strip("-.") or "user"
    if not is_taken(name):
        return name
    suffix = hashlib.sha256(f"{config.issuer}\0{_subject(claims)}".encode()).hexdigest()[:8]
    return f"{name}-{suffix}"


def _text(claims: dict[str, Any], name: str, max_length: int) -> str:
    value = claims.get(name)
    return value[:max_length].replace("\0", "") if isinstance(value, str) else ""
