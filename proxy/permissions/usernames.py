"""Decide whether a name may become the name of a new user."""

from typing import Final

from django.contrib.auth import get_user_model

TAKEN: Final = "this name is taken"
# "gateway" is the name of the gateway itself in the audit log.
RESERVED: Final = frozenset({"gateway", "admin", "root"})


def is_taken(name: str) -> bool:
    """Return whether a new user cannot have this name, because it is reserved or a user has it."""
    users = get_user_model().objects
    return name.lower() in RESERVED or users.filter(username__iexact=name).exists()
