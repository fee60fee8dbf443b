"""The user behind a subject: made at the first sign-in, given the groups of the claims at each.

The provider rules over the groups ``owner``, ``auditor``, ``member`` and ``team:...`` of whom it
signs in, and over nothing else. Superusers are left as they are: they are the emergency door.
"""

import hashlib
import re
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import IntegrityError, transaction

from proxy.audit_trail import GATEWAY, note
from proxy.models import Exchange, Identity
from proxy.roles import ROLES
from proxy.visibility import TEAM_GROUP

from .choices import Choices

LONGEST_NAME: Final = 64
NOT_IN_NAMES: Final = re.compile(r"[^\w.@+-]+", re.ASCII)
RESERVED: Final = frozenset({GATEWAY, "admin", "root"})


class Refused(Exception):
    """Somebody may not sign in; the message is for them, ``why`` for the log."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


def known(chosen: Choices, claims: dict[str, Any]) -> list[Any]:
    """The user of this issuer and subject, if they were here before."""
    found = Identity.objects.filter(issuer=chosen.issuer, subject=_subject(claims))
    return [identity.user for identity in found.select_related("user")]


def made(chosen: Choices, claims: dict[str, Any]) -> Any:
    """A new user; nobody is made who may not enter."""
    groups = _groups(chosen, claims)
    if not groups & set(ROLES):
        raise _without_group(chosen, claims)
    try:
        with transaction.atomic():
            user = get_user_model().objects.create_user(_name(chosen, claims))
            Identity.objects.create(user=user, issuer=chosen.issuer, subject=_subject(claims))
    except IntegrityError:  # the same person, at the same moment, in another window
        user = known(chosen, claims)[0]
    return renewed(chosen, user, claims)


@transaction.atomic
def _rule(user: Any, groups: set[str], claims: dict[str, Any]) -> None:
    """Give the user exactly these of the groups that the provider rules over."""
    ruled = [
        group
        for group in user.groups.all()
        if group.name in ROLES or group.name.startswith(TEAM_GROUP)
    ]
    had = {group.name for group in ruled}
    if had != groups:
        user.groups.remove(*(group for group in ruled if group.name not in groups))
        for name in groups - had:
            user.groups.add(Group.objects.get_or_create(name=name)[0])
        note(user, user, f"Groups by sign-in: {_listed(had)} → {_listed(groups)}.")
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


def renewed(chosen: Choices, user: Any, claims: dict[str, Any]) -> Any:
    """The user with the rights of today. Raises Refused, and then they have none."""
    groups = _groups(chosen, claims)
    if not user.is_superuser:
        _rule(user, groups if groups & set(ROLES) else set(), claims)
    if not groups & set(ROLES):
        raise _without_group(chosen, claims)
    if not user.is_active:
        raise Refused("Your account here is switched off.", f"{user} is not active")
    return user


def _groups(chosen: Choices, claims: dict[str, Any]) -> set[str]:
    told = claims.get(chosen.groups_claim)
    if chosen.groups_claim == "email" and claims.get("email_verified") is not True:
        told = None  # anybody can claim an address
    several = [told] if isinstance(told, str) else told if isinstance(told, list) else []
    return chosen.groups_here([group for group in several if isinstance(group, str)])


def _without_group(chosen: Choices, claims: dict[str, Any]) -> Refused:
    why = f"subject {_subject(claims)[:100]!r} has no mapped group in {chosen.groups_claim!r}"
    if chosen.groups_claim not in claims:
        why = f"subject {_subject(claims)[:100]!r} came without the claim {chosen.groups_claim!r}"
    return Refused("You are signed in, but in no group that may use this gateway.", why)


def _subject(claims: dict[str, Any]) -> str:
    subject = claims["sub"]
    if not isinstance(subject, str) or not 0 < len(subject) <= 255:
        raise ValueError("sub")
    return subject


def _name(chosen: Choices, claims: dict[str, Any]) -> str:
    """A free user name. Requests are told apart by it, so one that the ledger knows is not free."""
    wanted = _text(claims, "preferred_username", 150) or _text(claims, "email", 254)
    name = NOT_IN_NAMES.sub("-", wanted)[:LONGEST_NAME].strip("-.") or "user"
    taken = (
        name.lower() in RESERVED
        or get_user_model().objects.filter(username__iexact=name).exists()
        or Exchange.objects.filter(user=name).exists()
    )
    if not taken:
        return name
    mark = hashlib.sha256(f"{chosen.issuer}\0{_subject(claims)}".encode()).hexdigest()[:8]
    return f"{name}-{mark}"


def _text(claims: dict[str, Any], name: str, longest: int) -> str:
    value = claims.get(name)
    return value[:longest].replace("\0", "") if isinstance(value, str) else ""


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"
