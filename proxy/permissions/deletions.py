"""Which gateway keys and teams can be deleted: those whose names no recorded request shows.

A key is revoked first. The row of a key that was used stays, and its team with it, because requests
and reports show the names of both; a team without a valid key can send no request.
"""

from collections.abc import Sequence
from typing import Final

from django.db.models import Q, QuerySet
from django.utils.timezone import now

from proxy.models import ApiKey, Team

MAX_NAMES: Final = 5


def deletable_keys() -> QuerySet[ApiKey]:
    """Return the revoked keys that were never used, and that bridge.toml does not declare.

    A key that has the replaced secret of a rotated key is revoked with that key, and deleted with
    it, so neither is deletable after a request with the replaced secret.
    """
    revoked = Q(revoked__lte=now()) | Q(successor__revoked__lte=now())
    unused = ApiKey.objects.filter(revoked, last_used=None, managed=False)
    replaced = ApiKey.objects.filter(successor__isnull=False).exclude(last_used=None)
    return unused.exclude(pk__in=replaced.values("successor"))


def deletion_obstacle(team: Team) -> str:
    """Return why this team cannot be deleted because of its keys; empty if it can be deleted."""
    kept = ApiKey.objects.filter(team=team).exclude(pk__in=deletable_keys())
    if valid := list(kept.filter(revoked=None).values_list("name", flat=True)):
        return f"{team} is in use by {_names(valid)}; revoke first, then delete the team"
    if used := list(kept.exclude(last_used=None).values_list("name", flat=True)):
        return (
            f"{team} stays because requests are recorded with {_names(used)}; no key of the team "
            "is valid, so it can send no more requests"
        )
    if names := list(kept.values_list("name", flat=True)):
        return f"{team} is in use by {_names(names)} of bridge.toml; remove it there"
    return ""


def delete_unused_keys(team: Team) -> None:
    """Delete the keys of a team that are deletable, before the team is deleted."""
    deletable_keys().filter(team=team).delete()


def _names(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"the key {names[0]}"
    shown = ", ".join(names[:MAX_NAMES])
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"the keys {shown}{more}"
