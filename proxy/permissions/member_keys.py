"""Check a key that a member of a team makes or rotates against the limits that the team sets.

The limits are the field ``member_keys`` of the team: how many working keys a member may have, how
long a key is valid, and which scopes and models it may have. Without a count, members make none.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec
from django.db.models import Q
from django.utils.timezone import now

from proxy.models import ApiKey, Team
from proxy.models.setup.columns import MemberKeys, matches_any

WILDCARDS: Final = frozenset("*?[")


def member_limits(team: Team) -> MemberKeys:
    """Return the limits of the team's member keys; no keys if the stored value is invalid."""
    try:
        return msgspec.convert(team.member_keys, MemberKeys)
    except msgspec.ValidationError:
        return MemberKeys()


def working_keys(team: Team, user: Any) -> int:
    """Return how many keys of the team the user has that are neither revoked nor expired.

    The old secret of a rotated key is not counted.
    """
    valid = Q(expires=None) | Q(expires__gt=now())
    return ApiKey.objects.filter(valid, team=team, user=user, revoked=None, successor=None).count()


def limit_faults(key: ApiKey) -> Iterator[tuple[str, str]]:
    """Yield the field and the reason for each limit of the team that the key does not respect.

    The number of keys is checked only for a key that is not in the database yet.
    """
    limits = member_limits(key.team)
    count, days, models = limits.count, limits.days, limits.models
    if not count:
        yield "team", f"the members of {key.team.name!r} make no keys; a lead of the team does"
        return
    if key.pk is None and (used := working_keys(key.team, key.user)) >= count:
        yield "team", f"{used} of {count} keys of {key.team.name!r} are in use; revoke one first"
    latest = now() + timedelta(days=days or 0)
    if days is not None and (key.expires is None or key.expires > latest):
        yield "expires", f"a key of {key.team.name!r} expires on {latest:%Y-%m-%d} at the latest"
    scopes = limits.allowed_scopes
    for scope in key.scopes if isinstance(key.scopes, list) else [key.scopes]:
        if scope not in scopes:
            yield "scopes", f"{scope!r} is not one of {', '.join(scopes)}"
    if models and not key.models_allowed:
        yield "models_allowed", f"choose from {', '.join(models)}"
    for model in key.models_allowed:
        if models and not _covers(models, model):
            yield "models_allowed", f"{str(model)[:60]!r} is not one of {', '.join(models)}"


def _covers(allowed: Sequence[str], model: Any) -> bool:
    """Return whether a model name matches an allowed glob, or a glob is itself in the list."""
    if model in allowed:
        return True
    return isinstance(model, str) and not WILDCARDS & set(model) and matches_any(model, allowed)
