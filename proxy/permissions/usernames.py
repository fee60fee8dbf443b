"""Decide whether a name may become the name of a new user."""

from typing import Final

from django.contrib.auth import get_user_model

from proxy.models import Exchange, State, UsageByCallerDay

TAKEN: Final = "this name is taken, or the ledger has requests of it"
# "gateway" is the name of the gateway itself in the audit log.
RESERVED: Final = frozenset({"gateway", "admin", "root"})


def is_taken(name: str) -> bool:
    """Return whether a new user cannot have this name.

    The ledger records the user name of each request, so a name in the ledger counts as taken even
    if the user was deleted. The sums by caller have all names of finished requests, and an index;
    the rows of old months may be archived.
    """
    return (
        name.lower() in RESERVED
        or get_user_model().objects.filter(username__iexact=name).exists()
        or UsageByCallerDay.objects.filter(user=name).exists()
        or Exchange.objects.filter(state=State.OPEN, user=name).exists()
    )
