"""Decide whether a name may become the name of a new user."""

from typing import Final

from django.contrib.auth import get_user_model
from django.db.models import Q

from proxy.models import ActorKind, AuditEntry, Exchange, State, UsageByCallerDay

TAKEN: Final = "this name is taken, or the ledger has requests of it, or the audit log entries"
# "gateway" is the name of the gateway itself in the audit log.
RESERVED: Final = frozenset({"gateway", "admin", "root"})


def is_taken(name: str) -> bool:
    """Return whether a new user cannot have this name.

    A name that was the name of a deleted person counts as taken.
    """
    return (
        name.lower() in RESERVED
        or get_user_model().objects.filter(username__iexact=name).exists()
        or was_used(name)
    )


def was_used(name: str) -> bool:
    """Return whether the ledger or the audit log has rows of a user with this name.

    Both record names, and a user sees the rows of the user's name. The sums by caller have all
    names of finished requests, and an index; the rows of old months may be archived.
    """
    own = Q(user=name, actor_kind=ActorKind.USER) | Q(subject=name)
    return (
        UsageByCallerDay.objects.filter(user=name).exists()
        or Exchange.objects.filter(state=State.OPEN, user=name).exists()
        or AuditEntry.objects.filter(own).exists()
    )
