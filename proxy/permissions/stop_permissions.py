"""Define who may stop all running requests of a team, a gateway key or an upstream.

Users need the permission ``stop_exchange``, and those in groups named ``team:<name>`` may name only
these teams and their keys; a gateway key needs the scope ``admin``. ``may_stop`` in
``write_permissions`` is for a single request.
"""

from collections.abc import Mapping
from typing import Any, Final

from django.db.models import Model, QuerySet

from proxy.models import ApiKey, Scope, Team, Upstream

from .roles import STOP_REQUESTS
from .write_permissions import choices
from .writers import writer_of

MAX_NAME: Final = 140
"""Maximum characters of a name: team and key with a slash."""


KINDS: Final[Mapping[str, tuple[type[Model], str]]] = {
    "team": (Team, "team_id"),
    "key": (ApiKey, "key_id"),
    "upstream": (Upstream, "upstream"),
}
"""Kind of object -> its model, and the column of the live row by which requests are found."""


def may_stop_all(caller: Any) -> bool:
    """Whether the caller may stop all requests of any object."""
    if isinstance(caller, ApiKey):
        return Scope.ADMIN in caller.scopes
    return bool(caller.has_perm(f"proxy.{STOP_REQUESTS}"))


def stoppable(caller: Any, kind: str) -> QuerySet[Any]:
    """Return the objects of this kind whose requests the caller may stop."""
    rows = KINDS[kind][0]._default_manager.all()  # noqa: SLF001 - documented by Django
    covers_all = kind != "upstream" or writer_of(caller).has_all_teams
    return choices(caller, rows) if may_stop_all(caller) and covers_all else rows.none()


def find_stoppable(caller: Any, kind: str, name: str) -> Any:
    """Return the team, key (named ``team/key``) or upstream of this name; None without one.

    The result is also None if the caller may not stop its requests.
    """
    team, _, last = name.rpartition("/")
    by_name = {"team__name": team, "name": last} if kind == "key" else {"name": name}
    return stoppable(caller, kind).filter(**by_name).first()


def live_values(row: Any) -> list[str | int]:
    """Return the values of the live column for a row; a rotated key has one for each secret."""
    if isinstance(row, ApiKey):
        return [row.pk, *row.retiring.values_list("pk", flat=True)]
    return [row.ledger_id if isinstance(row, Team) else row.name]
